#include "sherd/checkpoint/checkpoint.hpp"
#include "sherd/io/files.hpp"
#include "sherd/io/hdf5.hpp"
#include "sherd/runtime/error.hpp"

#include <array>
#include <chrono>
#include <cstdlib>
#include <unistd.h>

namespace sherd {

namespace fs = std::filesystem;

namespace {

constexpr std::int64_t piece_elements = 4 << 20;  // 16 MiB of fp32 a call

std::string rank_file_name(int rank) {
    return fmt::format("rank-{:05}.h5", rank);
}

/// Pieces that this rank owns, by parameter in layout order.
std::vector<ManifestPiece> owned_pieces(const TrainingState& state, int rank_file) {
    std::vector<ManifestPiece> pieces;
    const auto places = state.layout().places();
    for (std::size_t i = 0; i < places.size(); ++i) {
        const FlatParameter& p = state.layout().at(places[i]);
        const Interval both = intersect(p.interval(), state.owned(places[i].unit));
        if (!both.empty()) pieces.push_back({static_cast<std::int32_t>(i), rank_file, both.begin - p.begin, both.end - p.begin});
    }
    return pieces;
}

/// What is read and written at once.
struct Part {
    StateKind kind;
    ParameterPlace place;
    std::int64_t begin;  ///< in the parameter
    std::int64_t at;     ///< in the dataset
    std::int64_t count;
    std::int64_t whole;  ///< of the dataset
};

std::vector<Part> parts_of(const std::vector<ManifestPiece>& pieces, const TrainingState& state) {
    const auto places = state.layout().places();
    std::vector<Part> parts;
    for (const StateKind kind : {StateKind::master, StateKind::exp_avg, StateKind::exp_avg_sq})
        for (const ManifestPiece& piece : pieces) {
            const std::int64_t whole = piece.end - piece.begin;
            for (std::int64_t at = 0; at < whole; at += piece_elements)
                parts.push_back({kind, places[static_cast<std::size_t>(piece.parameter)], piece.begin + at, at,
                                 std::min(piece_elements, whole - at), whole});
        }
    return parts;
}

/// A part is on its way from the device while the one before it is written.
void write_rank_file(const fs::path& path, const std::vector<ManifestPiece>& pieces, TrainingState& state) {
    io::HdfFile file = io::HdfFile::create(path);
    const std::vector<Part> parts = parts_of(pieces, state);
    std::array<std::vector<float>, 2> values;
    const auto guard = state.guard_of_reads();
    const auto start_read = [&](std::size_t i) {
        const Part& p = parts[i];
        values[i % 2].resize(static_cast<std::size_t>(p.count));
        state.start_read(p.kind, p.place, p.begin, p.count, values[i % 2].data());
    };
    start_read(0);
    for (std::size_t i = 0; i < parts.size(); ++i) {
        state.finish_reads();
        if (i + 1 < parts.size()) start_read(i + 1);
        const Part& p = parts[i];
        const std::string name = fmt::format("{}/{}", state_groups[static_cast<int>(p.kind)], state.layout().at(p.place).spec.name);
        if (p.at == 0) file.create_dataset(name, {p.whole}, DType::f32);
        file.write(name, p.at, p.count, values[i % 2].data());
    }
    file.close();
    io::sync_path(path);
}

std::string job_name() {
    const char* slurm = std::getenv("SLURM_JOB_ID");
    return slurm != nullptr ? std::string(slurm) : std::to_string(::getpid());
}

std::string encode(const std::vector<ManifestPiece>& pieces, std::uint64_t bytes) {
    std::string text(sizeof bytes + pieces.size() * sizeof(ManifestPiece), '\0');
    std::copy_n(reinterpret_cast<const char*>(&bytes), sizeof bytes, text.data());
    std::copy_n(reinterpret_cast<const char*>(pieces.data()), pieces.size() * sizeof(ManifestPiece), text.data() + sizeof bytes);
    return text;
}

/// Every rank's pieces and file size as one table, sorted as a manifest wants them.
void collect(const std::vector<std::string>& parts, Manifest& m) {
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
        RankFile file{rank_file_name(static_cast<int>(rank)), 0};
        std::copy_n(parts[rank].data(), sizeof file.bytes, reinterpret_cast<char*>(&file.bytes));
        std::vector<ManifestPiece> pieces((parts[rank].size() - sizeof file.bytes) / sizeof(ManifestPiece));
        std::copy_n(parts[rank].data() + sizeof file.bytes, pieces.size() * sizeof(ManifestPiece), reinterpret_cast<char*>(pieces.data()));
        if (pieces.empty()) continue;
        for (ManifestPiece& p : pieces) p.rank_file = static_cast<std::int32_t>(m.rank_files.size());
        m.pieces.insert(m.pieces.end(), pieces.begin(), pieces.end());
        m.rank_files.push_back(file);
    }
    std::sort(m.pieces.begin(), m.pieces.end(),
              [](const auto& a, const auto& b) { return std::pair(a.parameter, a.begin) < std::pair(b.parameter, b.begin); });
}

Manifest make_manifest(const CheckpointContext& context, const Progress& progress, const TrainingState& state, int world_size) {
    Manifest m;
    m.progress = progress;
    m.config = context.config;
    m.deck = context.deck;
    m.inputs = context.inputs;
    m.world_size = world_size;
    const auto places = state.layout().places();
    for (std::size_t i = 0; i < places.size(); ++i) {
        const ParameterSpec& spec = state.layout().at(places[i]).spec;
        m.parameters.push_back({spec.name, spec.shape, context.source_types[i]});
    }
    return m;
}

/// Gives the finished folder its name; a set of the same step (an older run that was resumed before it) gives way.
void publish(const fs::path& temporary, const fs::path& final_folder) {
    io::sync_path(temporary);
    std::error_code error;
    if (!fs::exists(final_folder, error)) return io::rename_durably(temporary, final_folder);
    io::replace_folder(temporary, final_folder);
    fs::remove_all(temporary, error);
}

}  // namespace

CheckpointReport write_checkpoint(const CheckpointContext& context, const Progress& progress, TrainingState& state,
                                  Communicator& communicator) {
    const auto start = std::chrono::steady_clock::now();
    const std::string name = set_name(progress.step);
    const fs::path temporary = context.directory / broadcast(communicator, fmt::format(".{}.tmp-{}", name, job_name()));
    const bool first = communicator.rank() == 0;
    const auto pieces = owned_pieces(state, communicator.rank());
    std::uint64_t bytes = 0;
    CheckpointReport report{context.directory / name, 0, 0};
    try {
        collectively(communicator, [&] {
            if (!first) return;
            std::error_code error;
            fs::remove_all(temporary, error);
            io::make_directories(temporary);
        });
        collectively(communicator, [&] {
            if (pieces.empty()) return;
            const fs::path path = temporary / rank_file_name(communicator.rank());
            write_rank_file(path, pieces, state);
            bytes = fs::file_size(path);
        });
        const auto parts = communicator.exchange(encode(pieces, bytes));
        Manifest manifest = make_manifest(context, progress, state, communicator.size());
        collect(parts, manifest);
        collectively(communicator, [&] {
            if (!first) return;
            write_manifest(temporary, manifest, context.files);
            io::sync_path(temporary / "manifest.h5");
            report.bytes = fs::file_size(temporary / "manifest.h5");
            for (const RankFile& f : manifest.rank_files) report.bytes += f.bytes;
            publish(temporary, report.folder);
            set_aside_newer(context.directory, progress.step);
            point_latest(context.directory, progress.step);
            prune_sets(context.directory, context.keep, progress.step);
        });
    } catch (...) {
        std::error_code error;
        if (first) fs::remove_all(temporary, error);
        throw;
    }
    report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return report;
}

}  // namespace sherd
