/// sherd export: weights become a Hugging Face folder, whole or not at all.
#include "file_options.hpp"
#include "hugging_face_writer.hpp"

#include "sherd/app/commands.hpp"
#include "sherd/io/files.hpp"
#include "sherd/model/config.hpp"
#include "sherd/model/parameters.hpp"
#include "sherd/runtime/error.hpp"
#include "sherd/runtime/log.hpp"
#include "sherd/runtime/signals.hpp"
#include "sherd/train/inputs.hpp"

#include <filesystem>
#include <system_error>

namespace sherd {

namespace fs = std::filesystem;
namespace po = boost::program_options;

namespace {
constexpr const char* introduction =
    "usage: sherd export --from W.h5|HF/|CHECKPOINT --to HF/ [--force] [--max-shard-size 5GB] [--dtype fp32|bf16|fp16]\n\n"
    "Writes a Hugging Face folder: config.json and the tokenizer's files as they were imported, and the weights as safetensors, each "
    "tensor\n"
    "in the type it has. The folder appears whole or not at all. A folder that is in use is replaced with --force only: its safetensors "
    "and\n"
    "their index go, config and tokenizer files are written anew, everything else in it stays, a README or a licence too.\n"
    "Sizes: KB, MB, GB, TB are powers of 1000 bytes; KiB, MiB, GiB, TiB are powers of 1024.";

bool is_empty_folder(const fs::path& path) {
    std::error_code error;
    return fs::is_directory(path, error) && fs::is_empty(path, error);
}

/// Whether a run writes into this folder, or it is a checkpoint: swapping it away would take it from under a running job.
bool is_of_a_run(const fs::path& folder) {
    std::error_code error;
    if (fs::exists(folder / "manifest.h5", error) || fs::exists(folder / "metrics.jsonl", error)) return true;
    for (const auto& entry : fs::directory_iterator(folder, error))
        if (entry.path().filename().string().starts_with("step-")) return true;
    return false;
}

void check_target(const fs::path& target, bool force) {
    std::error_code error;
    const fs::file_status status = fs::status(target, error);
    if (!fs::exists(status)) return;
    if (!fs::is_directory(status)) throw UsageError("'{}' is a file; --to names the folder to write", target.string());
    if (!is_empty_folder(target) && !force)
        throw UsageError("'{}' exists and is not empty; --force replaces the model in it (other files stay), or choose a new folder",
                         target.string());
    if (is_of_a_run(target))
        throw UsageError("'{}' is the directory of a run or a checkpoint; --to names a folder of its own", target.string());
    if (app::lies_in(target, fs::current_path()))
        throw UsageError("'{}' is the working directory or holds it; run sherd from elsewhere, for the folder is replaced as a whole",
                         target.string());
}

bool is_old_weight(const std::string& name) {
    return name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json");
}

/// Brings what is no weight of an earlier export into the new folder: as hard links, so that nothing is copied, or as copies.
void keep_foreign_files(const fs::path& old, const fs::path& fresh, bool top = true) {
    for (const auto& entry : fs::directory_iterator(old)) {
        const std::string name = entry.path().filename().string();
        const fs::path to = fresh / name;
        if (top && is_old_weight(name)) continue;
        if (entry.is_directory() && !entry.is_symlink()) {
            fs::create_directory(to, entry.path());
            keep_foreign_files(entry.path(), to, false);
            continue;
        }
        std::error_code error;
        if (!entry.is_symlink()) fs::create_hard_link(entry.path(), to, error);
        if (entry.is_symlink() || error) fs::copy(entry.path(), to, fs::copy_options::copy_symlinks);
        if (top && (name.ends_with(".bin") || name.ends_with(".pth")))
            log::notice(fmt::format("'{}' stays in the folder; it is not of this export", name));
    }
}

/// The parameters in the model's own order, as the source stores them.
std::vector<TensorInfo> ordered_tensors(const ModelConfig& config, const WeightSource& source) {
    std::vector<TensorInfo> tensors;
    for (const UnitSpec& unit : parameter_units(config))
        for (const ParameterSpec& parameter : unit.parameters) tensors.push_back(*source.find(parameter.name));
    return tensors;
}
}  // namespace

int export_command(const std::vector<std::string>& arguments) {
    po::options_description options("Options");
    options.add_options()("from", po::value<std::string>(), "weights file, Hugging Face folder or checkpoint to read")(
        "to", po::value<std::string>(), "folder to write")("force", "replace the model in a folder that is not empty")(
        "max-shard-size", po::value<std::string>()->default_value("5GB"),
        "largest safetensors file; a tensor that is larger gets a file of its own")("help,h", "this text");
    app::add_dtype_option(options, "each has the type that it was imported with");
    const auto values = app::parse_file_options(arguments, introduction, options, {});
    if (!values) return static_cast<int>(ExitCode::done);
    const fs::path from = app::required_path(*values, "from", "export"), to = app::required_path(*values, "to", "export");
    const std::uint64_t limit = app::parse_size((*values)["max-shard-size"].as<std::string>());
    check_target(to, values->contains("force"));

    const auto source = app::as_requested(open_model(from), *values);
    const ModelConfig config = parse_model_config(source->config(), source->path());
    check_parameters(config, *source);
    const std::vector<TensorInfo> tensors = ordered_tensors(config, *source);
    const StopSignals signals;  // an interrupted command removes what it has begun
    io::AtomicTarget target(to, io::AtomicTarget::Kind::folder);
    try {
        if (fs::exists(to)) keep_foreign_files(to, target.path());
    } catch (const fs::filesystem_error& e) {
        throw InputError("cannot keep the other files of '{}': {}", to.string(), e.what());
    }
    const std::size_t shards = app::write_hugging_face_folder(*source, tensors, limit, target.path());
    target.commit();
    log::line(fmt::format("exported '{}' to '{}': {} in {} {}", from.string(), to.string(), app::dtype_summary(tensors), shards,
                          shards == 1 ? "file" : "files"));
    return static_cast<int>(ExitCode::done);
}

}  // namespace sherd
