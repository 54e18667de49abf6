#include "train/resume.hpp"

#include "sherd/io/weight_source.hpp"
#include "sherd/runtime/error.hpp"
#include "sherd/runtime/log.hpp"

#include <algorithm>
#include <map>

namespace sherd {

namespace fs = std::filesystem;

namespace {

/// The folder to resume from, found by one rank; empty: start anew.
std::string look(const Settings& settings) {
    const fs::path directory = settings.run.directory;
    if (settings.checkpoint.resume == "never") {
        if (const auto sets = list_sets(directory); !sets.empty())
            throw UsageError(
                "checkpoint.resume = never, but {} holds {} checkpoint(s), the newest {}; remove them or choose another run.directory",
                directory.string(), sets.size(), sets.front().filename().string());
        return {};
    }
    if (settings.checkpoint.resume != "auto") {
        std::error_code missing;
        if (!fs::exists(settings.checkpoint.resume, missing) && settings.checkpoint.resume.find('/') == std::string::npos)
            throw InputError("checkpoint.resume = {} is neither auto nor never, and no checkpoint of that name is here",
                             settings.checkpoint.resume);
        const FoundSet named = find_named_set(settings.checkpoint.resume);
        std::error_code error;
        // a run that began from a set elsewhere goes on from its own sets when it is started again
        if (!fs::equivalent(named.folder.parent_path(), directory, error) && !list_sets(directory).empty()) {
            auto own = find_newest_set(directory);
            log::notice(fmt::format("{} holds checkpoints of this run; going on from {}, not from checkpoint.resume", directory.string(),
                                    own->folder.filename().string()));
            return own->folder.string();
        }
        return named.folder.string();
    }
    const auto found = find_newest_set(directory);
    return found ? found->folder.string() : std::string();
}

/// A set of another model cannot be used whatever the user allows.
void check_model(const FoundSet& set, const Inputs& inputs) {
    std::map<std::string, std::vector<std::int64_t>> stored;
    for (const ManifestParameter& p : set.manifest.parameters) stored[p.name] = p.shape;
    for (const ParameterPlace place : inputs.layout->places()) {
        const ParameterSpec& p = inputs.layout->at(place).spec;
        const auto found = stored.find(p.name);
        if (found == stored.end()) throw InputError("{}: is of another model: it has no parameter '{}'", set.folder.string(), p.name);
        if (found->second != p.shape)
            throw InputError("{}: is of another model: parameter '{}' has shape {}, model.weights has {}", set.folder.string(), p.name,
                             to_string(found->second), to_string(p.shape));
    }
    if (stored.size() != inputs.layout->places().size())
        throw InputError("{}: is of another model: it has {} parameters, model.weights has {}", set.folder.string(), stored.size(),
                         inputs.layout->places().size());
}

void check_changes(const FoundSet& set, const Settings& settings, const TrainOptions& options, const Inputs& inputs) {
    std::vector<std::string> changes;
    for (const KeyChange& change : options.changes(set.manifest.deck, settings.text)) {
        if (change.fixed) changes.push_back(fmt::format("{}: {} -> {}", change.name, change.before, change.after));
        if (change.name == "run.steps" || change.name == "run.epochs")
            log::notice(fmt::format("{} changed since the checkpoint, {} -> {}: the schedule of the learning rate changes with it",
                                    change.name, change.before, change.after));
    }
    const InputDigests &before = set.manifest.inputs, &now = inputs.digests;
    const auto compare = [&](const char* what, Digest old_digest, Digest new_digest) {
        if (!(old_digest == new_digest))
            changes.push_back(fmt::format("{}: content {} -> {}", what, to_string(old_digest), to_string(new_digest)));
    };
    compare("model.weights", before.weights, now.weights);
    compare("data.tokens, group train", before.train, now.train);
    if (!(before.validation == now.validation))
        log::notice(fmt::format("data.tokens: the validation group changed since the checkpoint, content {} -> {}",
                                to_string(before.validation), to_string(now.validation)));
    if (changes.empty()) return;
    std::string list;
    for (const std::string& change : changes) list += "\n  " + change;
    if (!options.allow_changes)
        throw UsageError(
            "the run in {} was started with other settings:{}\nresume with the old ones, choose another run.directory, or add "
            "--allow-changes",
            set.folder.string(), list);
    log::notice("resuming with changes, as --allow-changes says:" + list);
}

}  // namespace

std::optional<FoundSet> find_start(const Settings& settings, const TrainOptions& options, const Inputs& inputs, Communicator& world) {
    std::string folder;
    collectively(world, [&] {
        if (world.rank() == 0) folder = look(settings);
    });
    folder = broadcast(world, folder);
    if (folder.empty()) return std::nullopt;
    std::optional<FoundSet> set;
    collectively(world, [&] {
        set = FoundSet{folder, read_manifest(folder)};
        check_model(*set, inputs);
        check_changes(*set, settings, options, inputs);
    });
    return set;
}

}  // namespace sherd
