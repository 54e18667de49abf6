#include "sherd/checkpoint/manifest.hpp"

#include "sherd/io/hdf5.hpp"
#include "sherd/io/json.hpp"
#include "sherd/runtime/error.hpp"

#include <nlohmann/json.hpp>

namespace sherd {

const char* const state_groups[3] = {"parameters", "exp_avg", "exp_avg_sq"};

namespace {

using nlohmann::json;
namespace fs = std::filesystem;

json to_json(const Manifest& m) {
    json j;
    j["position"] = m.progress.position;
    j["optimizer_steps"] = m.progress.optimizer_steps;
    j["world_size"] = m.world_size;
    const auto digest = [](Digest d) { return json::array({d.low, d.high}); };
    j["digests"] = {{"weights", digest(m.inputs.weights)}, {"train", digest(m.inputs.train)}, {"validation", digest(m.inputs.validation)}};
    for (const auto& p : m.parameters)
        j["parameters"].push_back({{"name", p.name}, {"shape", p.shape}, {"source", safetensors_name(p.source)}});
    for (const auto& p : m.pieces) j["pieces"].push_back({p.parameter, p.begin, p.end, p.rank_file});
    for (const auto& f : m.rank_files) j["rank_files"].push_back({{"name", f.name}, {"bytes", f.bytes}});
    return j;
}

void from_json(const json& j, Manifest& m) {
    m.progress.position = j.at("position").get<std::int64_t>();
    m.progress.optimizer_steps = j.at("optimizer_steps").get<std::int64_t>();
    m.world_size = j.at("world_size").get<std::int32_t>();
    const auto digest = [&](const char* name) {
        const json& d = j.at("digests").at(name);
        return Digest{d.at(0).get<std::uint64_t>(), d.at(1).get<std::uint64_t>()};
    };
    m.inputs = {digest("weights"), digest("train"), digest("validation")};
    for (const json& p : j.at("parameters")) {
        const auto type = dtype_from_safetensors(p.at("source").get<std::string>());
        m.parameters.push_back(
            {p.at("name").get<std::string>(), p.at("shape").get<std::vector<std::int64_t>>(), type.value_or(DType::f32)});
    }
    for (const json& p : j.at("pieces"))
        m.pieces.push_back(
            {p.at(0).get<std::int32_t>(), p.at(3).get<std::int32_t>(), p.at(1).get<std::int64_t>(), p.at(2).get<std::int64_t>()});
    for (const json& f : j.at("rank_files")) m.rank_files.push_back({f.at("name").get<std::string>(), f.at("bytes").get<std::uint64_t>()});
}

std::int64_t elements(const std::vector<std::int64_t>& shape) {
    std::int64_t n = 1;
    for (const std::int64_t d : shape) n *= d;
    return n;
}

void write_bytes(io::HdfFile& file, const std::string& name, const void* data, std::size_t size) {
    file.create_dataset(name, {static_cast<std::int64_t>(size)}, DType::u8);
    if (size > 0) file.write(name, 0, static_cast<std::int64_t>(size), data);
}

std::vector<std::uint8_t> read_bytes(const io::HdfFile& file, const std::string& name) {
    const auto info = file.info(name);
    if (info.dtype != DType::u8 || info.shape.size() != 1)
        throw InputError("{}: dataset '{}' is not a vector of bytes", file.path().string(), name);
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(info.shape[0]));
    if (!bytes.empty()) file.read(name, 0, info.shape[0], bytes.data());
    return bytes;
}

/// Every parameter is covered exactly once by pieces of files that are listed.
void check_cover(const Manifest& m, const std::string& path) {
    std::size_t next = 0;
    for (std::size_t p = 0; p < m.parameters.size(); ++p) {
        std::int64_t at = 0;
        for (; next < m.pieces.size() && m.pieces[next].parameter == static_cast<std::int32_t>(p); ++next) {
            const ManifestPiece& piece = m.pieces[next];
            if (piece.begin != at || piece.end < piece.begin || piece.rank_file < 0 ||
                piece.rank_file >= static_cast<std::int32_t>(m.rank_files.size()))
                throw InputError("{}: the pieces of '{}' do not follow one another at element {}", path, m.parameters[p].name, at);
            at = piece.end;
        }
        if (at != elements(m.parameters[p].shape))
            throw InputError("{}: the pieces of '{}' end at element {} of {}", path, m.parameters[p].name, at,
                             elements(m.parameters[p].shape));
    }
    if (next != m.pieces.size()) throw InputError("{}: {} pieces belong to no parameter", path, m.pieces.size() - next);
}

}  // namespace

void write_manifest(const fs::path& folder, const Manifest& m, const std::vector<RideAlong>& files) {
    io::HdfFile file = io::HdfFile::create(folder / "manifest.h5");
    file.set_attribute("/", "sherd.kind", std::string("checkpoint"));
    file.set_attribute("/", "sherd.version", 1);
    file.set_attribute("/", "step", m.progress.step);
    file.set_attribute("/", "epoch", m.progress.epoch);
    file.set_attribute("/", "config", m.config);
    file.set_attribute("/", "deck", m.deck);
    const std::string state = to_json(m).dump();
    write_bytes(file, "state", state.data(), state.size());
    file.create_group("files");
    for (const RideAlong& f : files) write_bytes(file, "files/" + f.name, f.bytes.data(), f.bytes.size());
    for (const char* group : state_groups) {
        std::size_t next = 0;
        for (std::size_t p = 0; p < m.parameters.size(); ++p) {
            std::vector<io::HdfFile::Piece> pieces;
            for (; next < m.pieces.size() && m.pieces[next].parameter == static_cast<std::int32_t>(p); ++next) {
                const ManifestPiece& piece = m.pieces[next];
                pieces.push_back({piece.begin, piece.end - piece.begin, m.rank_files[static_cast<std::size_t>(piece.rank_file)].name,
                                  fmt::format("{}/{}", group, m.parameters[p].name)});
            }
            file.create_virtual(fmt::format("{}/{}", group, m.parameters[p].name), m.parameters[p].shape, DType::f32, pieces);
        }
    }
    file.close();
}

Manifest read_manifest(const fs::path& folder) {
    const fs::path path = folder / "manifest.h5";
    const io::HdfFile file = io::open_kind(path, "checkpoint");
    Manifest m;
    const auto text = [&](const char* name) {
        const auto value = file.string_attribute("/", name);
        if (!value) throw InputError("{}: attribute '{}' is missing", path.string(), name);
        return *value;
    };
    const auto number = [&](const char* name) {
        const auto value = file.integer_attribute("/", name);
        if (!value) throw InputError("{}: attribute '{}' is missing", path.string(), name);
        return *value;
    };
    m.config = text("config");
    m.deck = text("deck");
    m.progress.step = number("step");
    m.progress.epoch = number("epoch");
    const auto bytes = read_bytes(file, "state");
    try {
        from_json(io::parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path.string() + " state"), m);
    } catch (const json::exception& e) {
        throw InputError("{}: dataset 'state' is not what a checkpoint holds: {}", path.string(), e.what());
    }
    check_cover(m, path.string());
    for (const RankFile& f : m.rank_files) {
        std::error_code error;
        const auto size = fs::file_size(folder / f.name, error);
        if (error) throw InputError("{}: {}", (folder / f.name).string(), error.message());
        if (size != f.bytes) throw InputError("{}: has {} bytes, the manifest says {}", (folder / f.name).string(), size, f.bytes);
    }
    return m;
}

}  // namespace sherd
