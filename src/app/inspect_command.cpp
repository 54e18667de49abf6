/// sherd inspect: what is in a weights file, a Hugging Face folder, a token file or a checkpoint, and is it intact.
#include "file_options.hpp"
#include "inspect_checkpoint.hpp"

#include "sherd/app/commands.hpp"
#include "sherd/checkpoint/sets.hpp"
#include "sherd/data/token_file.hpp"
#include "sherd/io/hdf5.hpp"
#include "sherd/io/weight_source.hpp"
#include "sherd/model/config.hpp"
#include "sherd/model/parameters.hpp"
#include "sherd/runtime/error.hpp"
#include "sherd/runtime/log.hpp"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <system_error>

namespace sherd {

namespace fs = std::filesystem;
namespace po = boost::program_options;

namespace app {
void print_config(const ModelConfig& c) {
    log::line(fmt::format("model       {}: {} layers, hidden {}, intermediate {}, vocabulary {}", c.architecture, c.layers, c.hidden,
                          c.intermediate, c.vocabulary));
    log::line(fmt::format("attention   {} heads of {}, {} key/value heads, positions {}, rope theta {:g}, norm epsilon {:g}{}", c.heads,
                          c.head_dim, c.kv_heads, c.max_positions, c.rope.theta, c.norm_epsilon, c.tied ? ", tied embedding" : ""));
    constexpr const char* rope_types[] = {"default", "linear", "llama3", "yarn"};
    const auto windowed = std::count_if(c.windows.begin(), c.windows.end(), [](std::int64_t w) { return w > 0; });
    std::string more = fmt::format("rope type {}", rope_types[static_cast<int>(c.rope.type)]);
    if (c.qkv_bias) more += c.output_bias ? ", biases of attention" : ", biases of queries, keys and values";
    if (c.mlp_bias) more += ", biases of the MLP";
    if (c.head_norm) more += ", norms of queries and keys";
    if (windowed > 0)
        more += fmt::format(", a window of {} tokens in {} of {} layers", *std::max_element(c.windows.begin(), c.windows.end()), windowed,
                            c.layers);
    log::line(fmt::format("            {}", more));
    for (const std::string& assumed : c.assumed) log::line(fmt::format("assumed     {}", assumed));
}
}  // namespace app

namespace {
constexpr const char* introduction =
    "usage: sherd inspect FILE|FOLDER|CHECKPOINT [--verify]\n\n"
    "Says what is in a weights file, a Hugging Face folder, a token file or a checkpoint (its folder, a link to it, or a run's directory, "
    "of\n"
    "which the newest whole one is taken). With --verify all of it is read: weights must fit the config and be finite, token ids must lie "
    "below\n"
    "the vocabulary, every piece of a checkpoint must be there and be finite.";

void print_tensors(const WeightSource& source) {
    std::size_t width = 9;
    for (const TensorInfo& tensor : source.tensors()) width = std::max(width, tensor.name.size());
    log::line(fmt::format("{:<{}}  {:<16}  {:<5}  {:>14}", "parameter", width, "shape", "type", "bytes"));
    std::map<std::string, std::uint64_t> bytes_by_type;
    std::int64_t elements = 0;
    for (const TensorInfo& tensor : source.tensors()) {
        log::line(fmt::format("{:<{}}  {:<16}  {:<5}  {:>14}", tensor.name, width, to_string(tensor.shape), name_of(tensor.dtype),
                              tensor.bytes()));
        bytes_by_type[std::string(name_of(tensor.dtype))] += tensor.bytes();
        elements += tensor.elements();
    }
    log::line(fmt::format("total       {} parameters: {}", elements, app::dtype_summary(source.tensors())));
    for (const auto& [type, bytes] : bytes_by_type) log::line(fmt::format("            {:<5} {} bytes", type, bytes));
}

void inspect_weights(const std::string& kind, const WeightSource& source, bool verify) {
    log::line(fmt::format("{}", source.path()));
    log::line(fmt::format("kind        {}", kind));
    const ModelConfig config = parse_model_config(source.config(), source.path());
    app::print_config(config);
    print_tensors(source);
    for (const std::string& name : source.file_names()) log::line(fmt::format("file        {} ({} bytes)", name, source.file(name).size()));
    if (!verify) return;
    check_parameters(config, source);
    for (const TensorInfo& tensor : source.tensors()) app::stream_tensor(source, tensor, [](std::int64_t, std::int64_t, const void*) {});
    log::line("verified    every parameter is there, has its shape and is finite");
}

void print_layout(const io::HdfFile& file, const std::string& dataset) {
    if (!file.exists(dataset)) return;
    const io::DatasetInfo info = file.info(dataset);
    log::line(
        fmt::format("  {:<12} {:<7} {}{}", dataset.substr(dataset.rfind('/') + 1), name_of(info.dtype),
                    info.chunk_bytes == 0 ? std::string("contiguous") : fmt::format("chunks of {}", app::human_bytes(info.chunk_bytes)),
                    info.filtered ? ", compressed or filtered" : ""));
}

void print_group(const io::HdfFile& file, const TokenGroup& group, std::int64_t vocabulary) {
    const GroupFacts facts = group.scan(vocabulary, std::numeric_limits<std::int64_t>::max());
    log::line(fmt::format("{:<11} {} documents, {} tokens, {} targets, longest document {} tokens (document {})", group.name(),
                          facts.documents, facts.tokens, facts.targets, facts.longest, facts.longest_index));
    for (const char* dataset : {"tokens", "doc_offsets", "loss_mask"}) print_layout(file, group.name() + "/" + dataset);
}

void inspect_tokens(const fs::path& path) {
    const io::HdfFile file = io::open_kind(path, "tokens");
    const TokenFile tokens(path, 0);
    log::line(path.string());
    log::line("kind        tokens");
    const std::int64_t vocabulary = tokens.vocabulary();
    log::line(vocabulary < 0 ? std::string("vocabulary  not stated") : fmt::format("vocabulary  {}", vocabulary));
    const std::string tokenizer = file.string_attribute("/", "tokenizer").value_or("");
    log::line(fmt::format("tokenizer   {}", tokenizer.empty() ? "not stated" : tokenizer));
    // a token file says everything only when it is read through: --verify has nothing to add
    const std::int64_t limit = vocabulary < 0 ? std::numeric_limits<std::int64_t>::max() : vocabulary;
    print_group(file, tokens.train(), limit);
    if (const TokenGroup* validation = tokens.validation()) print_group(file, *validation, limit);
}

void inspect_file(const fs::path& path, bool verify) {
    const std::string kind = io::HdfFile::open(path).string_attribute("/", "sherd.kind").value_or("");
    if (kind == "weights") return inspect_weights("weights", *open_weights_file(path), verify);
    if (kind == "tokens") return inspect_tokens(path);
    throw InputError("'{}' is an HDF5 file of kind '{}' (attribute 'sherd.kind'); inspect knows weights, tokens and checkpoints",
                     path.string(), kind);
}
}  // namespace

int inspect_command(const std::vector<std::string>& arguments) {
    po::options_description options("Options");
    options.add_options()("path", po::value<std::string>(), "file or folder to look into")("verify", "read and check everything")(
        "help,h", "this text");
    po::positional_options_description positional;
    positional.add("path", 1);
    const auto values = app::parse_file_options(arguments, introduction, options, positional);
    if (!values) return static_cast<int>(ExitCode::done);
    if (!values->contains("path")) throw UsageError("inspect needs a file or a folder; 'sherd inspect --help' tells more");
    const fs::path path = (*values)["path"].as<std::string>();
    const bool verify = values->contains("verify");
    std::error_code error;
    if (names_a_set(path))
        app::inspect_checkpoint(path, verify);
    else if (fs::is_directory(path, error))
        inspect_weights("Hugging Face folder", *open_hugging_face_folder(path), verify);
    else
        inspect_file(path, verify);
    return static_cast<int>(ExitCode::done);
}

}  // namespace sherd
