#include "inspect_checkpoint.hpp"

#include "file_options.hpp"

#include "sherd/checkpoint/checkpoint.hpp"
#include "sherd/checkpoint/verify.hpp"
#include "sherd/runtime/error.hpp"
#include "sherd/runtime/log.hpp"

#include <algorithm>
#include <vector>

namespace sherd::app {

namespace fs = std::filesystem;

namespace {

FoundSet find_set(const fs::path& path) {
    try {
        return find_named_set(path);
    } catch (const InputError& e) {
        throw InputError("checkpoint '{}' is damaged or not there: {}", path.string(), e.what());
    }
}

void print_progress(const Manifest& m) {
    log::line(fmt::format("step        {} (epoch {}, position {}: documents taken, over all epochs; {} updates of AdamW)", m.progress.step,
                          m.progress.epoch, m.progress.position, m.progress.optimizer_steps));
    log::line(fmt::format("world size  {}", m.world_size));
    log::line(fmt::format("inputs      weights {}", to_string(m.inputs.weights)));
    log::line(fmt::format("            train {}", to_string(m.inputs.train)));
    log::line(fmt::format("            validation {}", to_string(m.inputs.validation)));
}

void print_parameters(const Manifest& m) {
    std::vector<TensorInfo> tensors;
    std::vector<std::int64_t> pieces(m.parameters.size());
    for (const ManifestPiece& piece : m.pieces) ++pieces[static_cast<std::size_t>(piece.parameter)];
    std::size_t width = 9;
    std::int64_t elements = 0;
    for (const ManifestParameter& p : m.parameters) {
        tensors.push_back({p.name, p.shape, p.source});
        width = std::max(width, p.name.size());
        elements += tensors.back().elements();
    }
    log::line(fmt::format("{:<{}}  {:<16}  {:<8}  {:>6}", "parameter", width, "shape", "imported", "pieces"));
    for (std::size_t i = 0; i < tensors.size(); ++i)
        log::line(fmt::format("{:<{}}  {:<16}  {:<8}  {:>6}", tensors[i].name, width, to_string(tensors[i].shape),
                              name_of(tensors[i].dtype), pieces[i]));
    log::line(fmt::format("total       {} parameters; imported as {}", elements, dtype_summary(tensors)));
    log::line("states      parameters, exp_avg, exp_avg_sq: fp32 each");
}

void print_rank_files(const Manifest& m) {
    std::vector<std::int64_t> pieces(m.rank_files.size()), elements(m.rank_files.size());
    for (const ManifestPiece& piece : m.pieces) {
        ++pieces[static_cast<std::size_t>(piece.rank_file)];
        elements[static_cast<std::size_t>(piece.rank_file)] += piece.end - piece.begin;
    }
    for (std::size_t f = 0; f < m.rank_files.size(); ++f)
        log::line(fmt::format("rank file   {}: {} bytes, {} pieces with {} parameters", m.rank_files[f].name, m.rank_files[f].bytes,
                              pieces[f], elements[f]));
}

}  // namespace

void inspect_checkpoint(const fs::path& path, bool verify) {
    const FoundSet set = find_set(path);
    const Manifest& m = set.manifest;
    log::line(set.folder.string());
    log::line("kind        checkpoint");
    print_progress(m);
    print_config(parse_model_config(m.config, (set.folder / "manifest.h5").string() + ", attribute 'config'"));
    print_parameters(m);
    print_rank_files(m);
    const auto source = open_checkpoint(set.folder);
    for (const std::string& name : source->file_names())
        log::line(fmt::format("file        {} ({} bytes)", name, source->file(name).size()));
    log::line(fmt::format("whole       every rank file is there with its size{}", verify ? "" : "; --verify reads them"));
    if (!verify) return;
    log::line(fmt::format("verified    {} elements of all states are there and finite", verify_set(set)));
}

}  // namespace sherd::app
