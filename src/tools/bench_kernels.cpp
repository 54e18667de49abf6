/// bench_kernels [THREADS...]: how fast the CPU's operations are, beside what the machine can do, measured in the same run.
///
/// Shapes are those of a model with 512 hidden units at 1,024 tokens. Every line is the best of several rounds, the ceilings are measured
/// again beside each group, because cores of a shared machine are not always alike.
#include "sherd/backend/backend.hpp"
#include "sherd/tensor/half.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <omp.h>
#include <random>
#include <string>
#include <vector>

namespace {

using namespace sherd;

double seconds_of(const std::function<void()>& f) {
    const auto start = std::chrono::steady_clock::now();
    f();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Best seconds of one call, over at least 0.15 s.
double best_of(const std::function<void()>& f) {
    f();
    double best = 1e9, total = 0;
    for (int i = 0; i < 5 || (total < 0.15 && i < 1000); ++i) {
        const double s = seconds_of(f);
        best = std::min(best, s);
        total += s;
    }
    return best;
}

/// Multiply-adds of independent sums that stay in registers: 14 registers of 16 floats hide the latency of any unit.
template <int Sums>
__attribute__((always_inline)) inline float multiply_adds(std::int64_t n) {
    using Vector [[gnu::vector_size(64)]] = float;
    Vector sums[Sums], factor = Vector{} + 0.999f;
    for (int v = 0; v < Sums; ++v) sums[v] = Vector{} + static_cast<float>(v);  // equal sums would be computed once
    for (std::int64_t i = 0; i < n; ++i) {
        for (int v = 0; v < Sums; ++v) sums[v] = sums[v] * factor + factor;
    }
    float total = 0;
    for (const auto& s : sums) total += s[0];
    return total;
}
__attribute__((target("avx512f,fma,prefer-vector-width=512"), noinline)) float multiply_adds_avx512(std::int64_t n) {
    return multiply_adds<14>(n);
}
__attribute__((noinline)) float multiply_adds_baseline(std::int64_t n) {
    return multiply_adds<6>(n);
}

double peak_gflops(int threads) {
    const bool wide = __builtin_cpu_supports("avx512f");
    constexpr std::int64_t n = 200000;
    volatile float sink = 0;
    const double s = best_of([&] {
#pragma omp parallel num_threads(threads)
        {
            const float total = wide ? multiply_adds_avx512(n) : multiply_adds_baseline(n);
#pragma omp critical
            sink = sink + total;
        }
    });
    return 2.0 * 16 * (wide ? 14 : 6) * static_cast<double>(n) * threads / s / 1e9;
}

/// GB/s of memcpy, bytes read and written, blocks of 64 MiB.
double copy_bandwidth(Backend& backend, int threads) {
    constexpr std::size_t bytes = std::size_t{64} << 20;
    const DeviceMemory a(backend, bytes, "bench"), b(backend, bytes, "bench");
    std::memset(a.data(), 1, bytes);
    const double s = best_of([&] {
#pragma omp parallel for num_threads(threads) schedule(static)
        for (int i = 0; i < 64; ++i) {
            std::memcpy(b.as<char>() + (std::size_t{1} << 20) * static_cast<std::size_t>(i),
                        a.as<char>() + (std::size_t{1} << 20) * static_cast<std::size_t>(i), std::size_t{1} << 20);
        }
    });
    return 2.0 * bytes / s / 1e9;
}

/// A backend with memory that is filled with small random numbers.
class Bench {
  public:
    explicit Bench(int threads) : threads_(threads), backend_(make_cpu_backend(threads)), stream_(backend_->make_stream("compute")) {}

    Tensor tensor(std::int64_t rows, std::int64_t columns, DType type) {
        memory_.emplace_back(*backend_, static_cast<std::size_t>(rows * columns) * size_of(type), "bench");
        const Tensor t{memory_.back().data(), type, rows, columns};
        std::normal_distribution<float> normal;
        for (std::int64_t i = 0; i < t.elements(); ++i) {
            if (type == DType::f32) t.as<float>()[i] = normal(engine_);
            if (type == DType::bf16) t.as<bfloat16>()[i] = to_bfloat16(normal(engine_));
        }
        return t;
    }
    double seconds(const std::function<void(Backend&, Stream&)>& operation) {
        return best_of([&] {
            operation(*backend_, *stream_);
            backend_->synchronize(*stream_);
        });
    }
    void products();
    void attention();
    void bandwidths();

  private:
    void report(const std::string& name, double rate, const char* unit, double ceiling) const {
        fmt::print("{} thread{}  {:<42} {:8.1f} {:<8} {:5.0f} % of {:.0f}\n", threads_, threads_ == 1 ? " " : "s", name, rate, unit,
                   100 * rate / ceiling, ceiling);
        std::fflush(stdout);
    }

    int threads_;
    std::unique_ptr<Backend> backend_;
    std::unique_ptr<Stream> stream_;
    std::vector<DeviceMemory> memory_;
    std::mt19937 engine_{1};
};

void Bench::products() {
    const std::int64_t rows = 1024;
    for (const auto type : {DType::f32, DType::bf16}) {
        for (const auto& [in, out] : {std::pair<std::int64_t, std::int64_t>{512, 512}, {512, 1536}, {1536, 512}, {512, 4096}}) {
            const Tensor x = tensor(rows, in, type), w = tensor(out, in, type), y = tensor(rows, out, type);
            const Tensor dw = tensor(out, in, DType::f32);
            // bf16 instructions do twice the work of fp32 ones
            const double peak = peak_gflops(threads_) * (type == DType::bf16 && backend_->has_native(DType::bf16) ? 2 : 1);
            const double work = 2.0 * static_cast<double>(rows * in * out) / 1e9;
            const std::string name = fmt::format("{} {}x{}", name_of(type), in, out);
            report("linear_forward " + name, work / seconds([&](auto& b, auto& s) { b.linear_forward(s, y, x, w, {}); }), "GFLOP/s", peak);
            report("linear_backward_input " + name, work / seconds([&](auto& b, auto& s) { b.linear_backward_input(s, x, y, w, false); }),
                   "GFLOP/s", peak);
            report("linear_backward_weight " + name, work / seconds([&](auto& b, auto& s) { b.linear_backward_weight(s, dw, y, x, true); }),
                   "GFLOP/s", peak);
        }
    }
}

void Bench::attention() {
    const std::int64_t rows = 1024, length = 256, d = 64, heads = 8;
    const std::vector<std::int32_t> offsets{0, 256, 512, 768, 1024};
    const Documents documents{offsets.data(), 4, length};
    // what causal attention needs: half of the square of each document, twice (scores, values)
    const std::int64_t scores = rows / length * (length * (length + 1) / 2);
    const double work = 2.0 * 2.0 * static_cast<double>(d * heads * scores) / 1e9;
    for (const auto& [type, kv_heads] : {std::pair<DType, std::int64_t>{DType::f32, 8}, {DType::f32, 2}, {DType::bf16, 8}}) {
        const AttentionShape shape{heads, kv_heads, d, 0.125f};
        const Tensor q = tensor(rows, heads * d, type), out = tensor(rows, heads * d, type), dq = tensor(rows, heads * d, type);
        const Tensor k = tensor(rows, kv_heads * d, type), v = tensor(rows, kv_heads * d, type);
        const Tensor dk = tensor(rows, kv_heads * d, type), dv = tensor(rows, kv_heads * d, type);
        const Tensor lse = tensor(heads, rows, DType::f32);
        const Tensor scratch = tensor(1, backend_->attention_scratch(rows, length, shape, type), DType::f32);
        const double peak = peak_gflops(threads_);
        const std::string name = fmt::format("{} {} heads of {}, {} kv", name_of(type), heads, d, kv_heads);
        const double forward = seconds([&](auto& b, auto& s) { b.attention_forward(s, out, lse.as<float>(), q, k, v, documents, shape); });
        const double backward = seconds(
            [&](auto& b, auto& s) { b.attention_backward(s, dq, dk, dv, q, out, lse.as<float>(), q, k, v, documents, shape, scratch); });
        report("attention_forward " + name, work / forward, "GFLOP/s", peak);
        report("attention_backward " + name, 2.5 * work / backward, "GFLOP/s", peak);  // five products for two
    }
}

void Bench::bandwidths() {
    const std::int64_t rows = 8192, columns = 1536, n = 16 << 20;
    for (const auto type : {DType::f32, DType::bf16}) {
        const double peak = copy_bandwidth(*backend_, threads_),
                     gigabytes = static_cast<double>(rows * columns) * 1e-9 * static_cast<double>(size_of(type));
        const Tensor x = tensor(rows, columns, type), y = tensor(rows, columns, type), z = tensor(rows, columns, type);
        const Tensor w = tensor(1, columns, type), rstd = tensor(1, rows, DType::f32), dw = tensor(1, columns, DType::f32);
        const Tensor scratch = tensor(1, backend_->rms_norm_scratch(rows, columns), DType::f32);
        const auto rate = [&](double passes, const std::function<void(Backend&, Stream&)>& f) { return passes * gigabytes / seconds(f); };
        const std::string name(name_of(type));
        float* const r = rstd.as<float>();
        report("rms_norm_forward " + name, rate(2, [&](auto& b, auto& s) { b.rms_norm_forward(s, y, r, {}, x, {}, w, 1e-5f); }), "GB/s",
               peak);
        report("rms_norm_forward with delta " + name, rate(4, [&](auto& b, auto& s) { b.rms_norm_forward(s, y, r, x, x, z, w, 1e-5f); }),
               "GB/s", peak);
        report("rms_norm_backward " + name,
               rate(4, [&](auto& b, auto& s) { b.rms_norm_backward(s, y, dw.as<float>(), z, x, r, w, scratch.as<float>(), true); }), "GB/s",
               peak);
        report("swiglu_forward " + name, rate(3, [&](auto& b, auto& s) { b.swiglu_forward(s, z, x, y); }), "GB/s", peak);
        report("swiglu_backward " + name, rate(6, [&](auto& b, auto& s) { b.swiglu_backward(s, x, y, z); }), "GB/s", peak);
    }
    const Tensor p = tensor(1, n, DType::f32), m = tensor(1, n, DType::f32), g = tensor(1, n, DType::f32), v = tensor(1, n, DType::f32);
    std::memset(v.data, 0, v.bytes());
    const Tensor weights = tensor(1, n, DType::bf16), logits = tensor(512, 32000, DType::f32);
    const double peak = copy_bandwidth(*backend_, threads_);
    const AdamWStep step{1e-4, 0.9, 0.999, 1e-8, 0.1, 0.5, 0.5, 1.0};
    const auto adamw = [&](Tensor to) {
        return seconds([&](auto& b, auto& s) { b.adamw(s, step, p.as<float>(), m.as<float>(), v.as<float>(), g.as<float>(), to, n); });
    };
    report("adamw", 7.0 * 4e-9 * static_cast<double>(n) / adamw({}), "GB/s", peak);
    report("adamw with bf16 weights", 30e-9 * static_cast<double>(n) / adamw(weights), "GB/s", peak);
    double total = 0;
    report("sum_squares", 4e-9 * static_cast<double>(n) / seconds([&](auto& b, auto& s) { b.sum_squares(s, &total, p.as<float>(), n); }),
           "GB/s", peak);
    const std::vector<std::int32_t> targets(512, 7);
    std::vector<float> loss(512);
    report("cross_entropy with gradient in place", 2e-9 * static_cast<double>(logits.bytes()) / seconds([&](auto& b, auto& s) {
                                                       b.cross_entropy(s, loss.data(), logits, logits, targets.data(), 1.0f);
                                                   }),
           "GB/s", peak);
}

}  // namespace

int main(int argc, char** argv) {
    try {
        std::vector<int> threads;
        for (int i = 1; i < argc; ++i) threads.push_back(std::atoi(argv[i]));
        if (threads.empty()) threads = {1, 2};
        for (const int n : threads) {
            if (n < 1 || n > 1024) {
                fmt::print(stderr, "usage: bench_kernels [THREADS...]\n");
                return 2;
            }
            fmt::print("{}\n", make_cpu_backend(n)->description());
            Bench(n).products();
            Bench(n).attention();
            Bench(n).bandwidths();
        }
        return 0;
    } catch (const std::exception& error) {
        fmt::print(stderr, "bench_kernels: {}\n", error.what());
        return 5;
    }
}
