/// bench_step: how long each operation of a model's training step takes on a device, at the shapes of that model, as JSON lines.
///
/// The first line has the device and two ceilings measured in the same run: bytes a second of a copy (read and written) and FLOP/s of a
/// large square product. Then a line for each operation: calls in a micro-step or in a step, seconds, FLOPs and bytes of a call. An
/// operation is repeated back to back, so that the time to start one does not count where it is shorter; each repetition has tensors of its
/// own as far as a pool several times larger than caches reaches, because in a step nothing is left in a cache either.
#include "tools/step_operations.hpp"
#include "tools/tool.hpp"

#include "sherd/backend/devices.hpp"
#include "sherd/tensor/half.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <omp.h>
#include <random>

namespace sherd::tools {
namespace {

constexpr std::string_view usage = "bench_step cpu|cuda MODEL TOKENS LENGTH [fp32] [layers=N]";
constexpr std::size_t block = std::size_t{32} << 20;

/// Device memory full of random numbers, normal(0, 1) both as bf16 and as fp32.
class Pool {
  public:
    Pool(Backend& backend, Stream& stream, std::size_t bytes) : memory_(backend, (bytes + block - 1) / block * block, "bench") {
        std::vector<bfloat16> values(block / sizeof(bfloat16));
        std::mt19937 random(1);
        std::normal_distribution<float> normal;
        for (auto& v : values) v = to_bfloat16(normal(random));
        for (std::size_t at = 0; at < memory_.bytes(); at += block)
            backend.copy_to_device(stream, memory_.as<char>() + at, values.data(), block);
        backend.synchronize(stream);
    }
    std::size_t sets_of(std::size_t bytes) const { return std::max<std::size_t>(1, memory_.bytes() / bytes); }
    char* at(std::size_t offset) const { return memory_.as<char>() + offset; }

  private:
    DeviceMemory memory_;
};

std::size_t aligned(std::size_t bytes) {
    return (bytes + 255) / 256 * 256;
}
std::size_t set_bytes(const Operation& operation) {
    std::size_t total = 0;
    for (const TensorShape& t : operation.tensors) total += aligned(t.bytes());
    return total;
}

class Bench {
  public:
    explicit Bench(std::unique_ptr<Backend> backend) : backend_(std::move(backend)), stream_(backend_->make_stream("compute")) {}
    Backend& backend() { return *backend_; }

    template <class T>
    const T* place(const std::vector<T>& values) {
        memory_.emplace_back(*backend_, values.size() * sizeof(T), "bench");
        backend_->copy_to_device(*stream_, memory_.back().data(), values.data(), values.size() * sizeof(T));
        backend_->synchronize(*stream_);
        return memory_.back().template as<T>();
    }
    void reserve(std::size_t bytes) { pool_ = std::make_unique<Pool>(*backend_, *stream_, bytes); }

    /// Seconds of one call: the best of three series, each at least 20 ms and at least two calls long.
    double seconds(const Operation& operation) {
        const std::size_t bytes = set_bytes(operation), sets = pool_->sets_of(bytes);
        std::size_t next = 0;
        const auto series = [&](int calls) {
            const auto start = std::chrono::steady_clock::now();
            for (int i = 0; i < calls; ++i) operation.run(*backend_, *stream_, tensors(operation, bytes * (next++ % sets)));
            backend_->synchronize(*stream_);
            return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / calls;
        };
        (void)series(1);  // loads code, asks cuBLASLt for its algorithm
        const double first = series(2);
        double best = first;
        for (int i = 0; i < 3; ++i) best = std::min(best, series(std::clamp(static_cast<int>(0.02 / first), 2, 2000)));
        return best;
    }

  private:
    Tensors tensors(const Operation& operation, std::size_t offset) const {
        Tensors all;
        for (const TensorShape& shape : operation.tensors) {
            all.push_back({pool_->at(offset), shape.type, shape.rows, shape.columns});
            offset += aligned(shape.bytes());
        }
        return all;
    }
    std::unique_ptr<Backend> backend_;
    std::vector<DeviceMemory> memory_;
    std::unique_ptr<Pool> pool_;
    std::unique_ptr<Stream> stream_;
};

void print(const nlohmann::ordered_json& line) {
    log::line(line.dump());
}

MicroBatch make_batch(Bench& bench, const ModelShape& shape, std::int64_t rows, std::int64_t length, DType compute) {
    std::vector<std::int32_t> ids, positions, offsets;
    std::vector<float> cosine, sine;
    std::mt19937 random(2);
    for (std::int64_t i = 0; i < rows; ++i) {
        ids.push_back(static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(shape.vocabulary)));
        positions.push_back(static_cast<std::int32_t>(i % length));
    }
    for (std::int64_t at = 0; at < rows; at += length) offsets.push_back(static_cast<std::int32_t>(at));
    offsets.push_back(static_cast<std::int32_t>(rows));
    for (std::int64_t i = 0; i < length * shape.head_dim() / 2; ++i) {
        cosine.push_back(static_cast<float>(std::cos(0.01 * static_cast<double>(i))));
        sine.push_back(static_cast<float>(std::sin(0.01 * static_cast<double>(i))));
    }
    const Documents documents{bench.place(offsets), static_cast<std::int64_t>(offsets.size()) - 1, std::min(rows, length)};
    const std::int32_t* id = bench.place(ids);
    return {rows, length, compute, id, id, bench.place(positions), documents, bench.place(cosine), bench.place(sine)};
}

/// The ceilings: a copy, and a product of square matrices of `side` rows.
std::vector<Operation> ceilings(std::int64_t copied, std::int64_t side, DType compute) {
    const TensorShape matrix{side, side, compute};
    const double n = static_cast<double>(side);
    return {{"copy",
             1,
             0,
             2.0 * static_cast<double>(copied),
             {{1, copied, DType::u8}, {1, copied, DType::u8}},
             [](Backend& b, Stream& s, const Tensors& t) { b.copy(s, t[0].data, t[1].data, t[0].bytes()); }},
            {"product", 1, 2 * n * n * n, 0, {matrix, matrix, matrix}, [](Backend& b, Stream& s, const Tensors& t) {
                 b.linear_forward(s, t[0], t[1], t[2], {});
             }}};
}

void measure(const std::vector<std::string>& arguments) {
    const bool gpu = arguments[0] == "cuda";
    if (!gpu && arguments[0] != "cpu") throw UsageError("'{}' is no device; usage: {}", arguments[0], usage);
    ModelShape shape = shape_named(arguments[1]);
    const std::int64_t rows = whole_number("TOKENS", arguments[2], 1, 1 << 20), length = whole_number("LENGTH", arguments[3], 1, rows);
    if (rows % length != 0) throw UsageError("TOKENS is {} and LENGTH {}: expected whole documents", rows, length);
    DType compute = DType::bf16;
    for (std::size_t i = 4; i < arguments.size(); ++i) {
        if (arguments[i] == "fp32")
            compute = DType::f32;
        else if (arguments[i].starts_with("layers="))
            shape.layers = whole_number("layers", arguments[i].substr(7), 1, 10000);
        else
            throw UsageError("'{}': expected fp32 or layers=N; usage: {}", arguments[i], usage);
    }

    Bench bench(gpu ? make_cuda_backend({}) : make_cpu_backend(omp_get_max_threads()));
    const MicroBatch batch = make_batch(bench, shape, rows, length, compute);
    const auto operations = StepOperations(shape, batch, bench.backend()).take();
    const auto limits = ceilings(std::int64_t{1} << (gpu ? 30 : 25), gpu ? 8192 : 512, compute);
    std::size_t largest = std::size_t{gpu ? 512u : 64u} << 20;
    for (const auto* list : {&operations, &limits})
        for (const Operation& o : *list) largest = std::max(largest, set_bytes(o));
    bench.reserve(largest);
    nlohmann::ordered_json head;
    head["device"] = bench.backend().description();
    head["model"] = shape.name;
    head["rows"] = rows;
    head["length"] = length;
    head["compute"] = name_of(compute);
    head["parameters"] = shape.parameters();
    head["copy_bytes_per_s"] = limits[0].bytes / bench.seconds(limits[0]);
    head["product_flops"] = limits[1].flops / bench.seconds(limits[1]);
    print(head);
    for (const Operation& o : operations) {
        nlohmann::ordered_json line;
        line["operation"] = o.name;
        line["calls"] = o.calls;
        line["per"] = o.in_step ? "step" : "micro-step";
        line["seconds"] = bench.seconds(o);
        line["flops"] = o.flops;
        line["bytes"] = o.bytes;
        print(line);
    }
}

}  // namespace
}  // namespace sherd::tools

int main(int argc, char** argv) {
    return sherd::tools::run(argc, argv, sherd::tools::usage, 4, 6, sherd::tools::measure);
}
