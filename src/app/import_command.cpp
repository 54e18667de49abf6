/// sherd import: a Hugging Face folder becomes an HDF5 weights file, tensor by tensor.
#include "file_options.hpp"
#include "words.hpp"

#include "sherd/app/commands.hpp"
#include "sherd/io/files.hpp"
#include "sherd/io/hdf5.hpp"
#include "sherd/io/weight_source.hpp"
#include "sherd/model/config.hpp"
#include "sherd/model/parameters.hpp"
#include "sherd/runtime/error.hpp"
#include "sherd/runtime/log.hpp"
#include "sherd/runtime/signals.hpp"

#include <filesystem>
#include <system_error>

namespace sherd {

namespace fs = std::filesystem;
namespace po = boost::program_options;

namespace {
constexpr const char* introduction =
    "usage: sherd import --from HF/ --to W.h5 [--force] [--dtype fp32|bf16|fp16]\n\n"
    "Reads a Hugging Face folder (config.json and safetensors) and writes one HDF5 weights file that holds every tensor in the type it "
    "has,\n"
    "the config as it stands, and the tokenizer's files. The file appears whole or not at all.\n"
    "Metadata entries of the safetensors files are not kept; an export always carries {\"format\": \"pt\"}.";

void check_target(const fs::path& from, const fs::path& target, bool force) {
    std::error_code error;
    const fs::file_status status = fs::status(target, error);
    if (fs::is_directory(status)) throw UsageError("'{}' is a folder; --to names the HDF5 file to write", target.string());
    if (fs::exists(status) && !fs::is_regular_file(status))
        throw UsageError("'{}' is no regular file; --to names the HDF5 file to write", target.string());
    if (fs::exists(status) && app::lies_in(from, target))
        throw UsageError("'{}' is a part of the folder that is imported; --to names the HDF5 file to write", target.string());
    if (fs::exists(status) && !force) throw UsageError("'{}' exists already; --force replaces it", target.string());
}

void write_tensors(const WeightSource& source, io::HdfFile& file) {
    const std::size_t total = source.tensors().size();
    std::size_t done = 0;
    file.create_group("model");
    for (const TensorInfo& tensor : source.tensors()) {
        const std::string dataset = "model/" + tensor.name;
        file.create_dataset(dataset, tensor.shape, tensor.dtype);
        app::stream_tensor(source, tensor,
                           [&](std::int64_t begin, std::int64_t count, const void* data) { file.write(dataset, begin, count, data); });
        log::progress(fmt::format("{} of {} tensors", ++done, total));
    }
}

void write_files(const WeightSource& source, io::HdfFile& file) {
    for (const std::string& name : source.file_names()) {
        const std::vector<std::uint8_t> bytes = source.file(name);
        const auto size = static_cast<std::int64_t>(bytes.size());
        file.create_dataset("files/" + name, {size}, DType::u8);
        file.write("files/" + name, 0, size, bytes.data());
    }
}
}  // namespace

int import_command(const std::vector<std::string>& arguments) {
    po::options_description options("Options");
    options.add_options()("from", po::value<std::string>(), "Hugging Face folder to read")(
        "to", po::value<std::string>(), "HDF5 weights file to write")("force", "replace an existing file")("help,h", "this text");
    app::add_dtype_option(options, "each keeps the type that it has in the folder");
    const auto values = app::parse_file_options(arguments, introduction, options, {});
    if (!values) return static_cast<int>(ExitCode::done);
    const fs::path from = app::required_path(*values, "from", "import"), to = app::required_path(*values, "to", "import");
    check_target(from, to, values->contains("force"));

    const auto source = app::as_requested(open_hugging_face_folder(from), *values);
    const ModelConfig config = parse_model_config(source->config(), (from / "config.json").string());
    if (!config.assumed.empty())
        log::notice(fmt::format("config.json does not say, and as in transformers this is assumed: {}", joined(config.assumed)));
    check_parameters(config, *source);
    const StopSignals signals;  // an interrupted command removes what it has begun
    io::AtomicTarget target(to, io::AtomicTarget::Kind::file);
    io::HdfFile file = io::HdfFile::create(target.path());
    file.set_attribute("/", "sherd.kind", std::string("weights"));
    file.set_attribute("/", "sherd.version", std::int64_t{1});
    file.set_attribute("/", "config", source->config());
    write_tensors(*source, file);
    write_files(*source, file);
    file.close();
    target.commit();
    log::line(fmt::format("imported '{}' to '{}': {}, {} files beside them", from.string(), to.string(),
                          app::dtype_summary(source->tensors()), source->file_names().size()));
    return static_cast<int>(ExitCode::done);
}

}  // namespace sherd
