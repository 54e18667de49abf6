#include "sherd/checkpoint/sets.hpp"

#include "sherd/io/files.hpp"
#include "sherd/runtime/error.hpp"
#include "sherd/runtime/log.hpp"

#include <algorithm>
#include <charconv>

namespace sherd {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view prefix = "step-", temporary_prefix = ".step-", latest_name = "latest";

std::optional<std::int64_t> step_of(const fs::path& folder) {
    const std::string name = folder.filename().string();
    if (!name.starts_with(prefix) || name.size() < prefix.size() + 8) return std::nullopt;
    std::int64_t step = 0;
    const char *begin = name.data() + prefix.size(), *end = name.data() + name.size();
    const auto [rest, error] = std::from_chars(begin, end, step);
    return error == std::errc() && rest == end ? std::optional(step) : std::nullopt;
}

/// Says so where the link does not lead to the set that is used.
void remark_on_latest(const fs::path& directory, const fs::path& used) {
    const fs::path link = directory / latest_name;
    std::error_code error;
    const fs::file_status status = fs::symlink_status(link, error);
    if (status.type() == fs::file_type::not_found) {
        log::notice(fmt::format("{}: no link 'latest'; using the newest whole set, {}", directory.string(), used.filename().string()));
    } else if (status.type() != fs::file_type::symlink) {
        log::notice(fmt::format("{} is no link; using the newest whole set, {}", link.string(), used.filename().string()));
    } else if (const fs::path target = fs::read_symlink(link, error); target.filename() != used.filename()) {
        log::notice(
            fmt::format("{} points to {}; using the newest whole set, {}", link.string(), target.string(), used.filename().string()));
    }
}

fs::path without_trailing_slash(const fs::path& path) {
    return path.has_filename() ? path : path.parent_path();
}

}  // namespace

std::string set_name(std::int64_t step) {
    return fmt::format("step-{:08}", step);
}

std::vector<fs::path> list_sets(const fs::path& directory) {
    std::vector<std::pair<std::int64_t, fs::path>> found;
    std::error_code error;
    for (auto entry = fs::directory_iterator(directory, error); !error && entry != fs::directory_iterator(); entry.increment(error)) {
        std::error_code ignored;
        if (const auto step = step_of(entry->path()); step && entry->is_directory(ignored) && !entry->is_symlink(ignored))
            found.emplace_back(*step, entry->path());
    }
    std::sort(found.begin(), found.end(), std::greater<>());
    std::vector<fs::path> folders;
    folders.reserve(found.size());
    for (auto& [step, folder] : found) folders.push_back(std::move(folder));
    return folders;
}

std::optional<FoundSet> find_newest_set(const fs::path& directory) {
    const std::vector<fs::path> sets = list_sets(directory);
    if (sets.empty()) {
        std::error_code error;
        if (const fs::path latest = directory / latest_name; fs::is_directory(latest, error) && !fs::is_symlink(latest, error))
            return FoundSet{latest, read_manifest(latest)};  // copied with its link followed: still a whole set
        return std::nullopt;
    }
    std::string damage;
    for (const fs::path& folder : sets) {
        try {
            FoundSet found{folder, read_manifest(folder)};
            remark_on_latest(directory, folder);
            return found;
        } catch (const InputError& e) {
            log::warning(fmt::format("checkpoint {} is damaged and not used: {}", folder.string(), e.what()));
            if (damage.empty()) damage = e.what();
        }
    }
    throw InputError("{}: {} checkpoint(s) and none is whole; the newest: {}. Remove them to start anew", directory.string(), sets.size(),
                     damage);
}

bool names_a_set(const fs::path& given) {
    const fs::path path = without_trailing_slash(given);
    std::error_code error;
    return path.filename() == "manifest.h5" || fs::exists(path / "manifest.h5", error) || !list_sets(path).empty() ||
           (step_of(path) && fs::is_directory(path, error));  // a set that lost its manifest
}

FoundSet find_named_set(const fs::path& given) {
    fs::path path = without_trailing_slash(given);
    if (path.filename() == "manifest.h5") path = path.has_parent_path() ? path.parent_path() : fs::path(".");
    std::error_code error;
    if (!fs::is_directory(path, error)) throw InputError("{}: no such checkpoint", given.string());
    if (fs::exists(path / "manifest.h5", error)) {
        const fs::path real = fs::canonical(path, error);
        return {real, read_manifest(real)};
    }
    if (auto found = find_newest_set(path)) return std::move(*found);
    throw InputError("{}: holds no whole checkpoint (no manifest.h5 and no step-NNNNNNNN folder)", given.string());
}

void point_latest(const fs::path& directory, std::int64_t step) {
    const fs::path link = directory / latest_name;
    std::error_code error;
    const auto type = fs::symlink_status(link, error).type();
    if (type != fs::file_type::symlink && type != fs::file_type::not_found) {
        fs::path aside;
        for (int i = 1; fs::exists(aside = directory / fmt::format("latest.set-aside-{}", i), error); ++i) {
        }
        io::rename_durably(link, aside);
        log::notice(fmt::format("{} was no link and is now {}", link.string(), aside.filename().string()));
    }
    io::replace_link(link, set_name(step));
}

void set_aside_newer(const fs::path& directory, std::int64_t current_step) {
    std::error_code error;
    for (const fs::path& folder : list_sets(directory)) {
        if (*step_of(folder) <= current_step) break;  // newest first
        fs::path aside = folder.string() + ".set-aside";
        for (int i = 2; fs::exists(aside, error); ++i) aside = fmt::format("{}.set-aside-{}", folder.string(), i);
        io::rename_durably(folder, aside);
        log::notice(fmt::format("{} is of a later step than this run has taken and is now {}", folder.string(), aside.filename().string()));
    }
}

namespace {
void remove_set(const fs::path& folder) {
    std::error_code error;
    // renamed first: a removal that is cut short leaves no set that looks damaged
    const fs::path doomed = folder.parent_path() / ("." + folder.filename().string() + ".tmp-removed");
    fs::remove_all(doomed, error);
    fs::rename(folder, doomed, error);
    if (!error) fs::remove_all(doomed, error);
    if (error) log::warning(fmt::format("cannot remove the old checkpoint {}: {}", folder.string(), error.message()));
}
}  // namespace

void prune_sets(const fs::path& directory, std::int64_t keep, std::int64_t current_step) {
    std::int64_t kept = 0;
    for (const fs::path& folder : list_sets(directory))
        if (*step_of(folder) != current_step && ++kept >= keep) remove_set(folder);
    std::error_code error;
    for (auto entry = fs::directory_iterator(directory, error); !error && entry != fs::directory_iterator(); entry.increment(error)) {
        const std::string name = entry->path().filename().string();
        std::error_code ignored;
        if (name.starts_with(temporary_prefix) && name.find(".tmp-") != std::string::npos) fs::remove_all(entry->path(), ignored);
    }
}

}  // namespace sherd
