#pragma once
/// The GPUs of this machine: what there is, which one a rank takes, and how it fares.
#include "sherd/backend/backend.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace sherd {

/// "CUDA 13.0 for sm_75, sm_80, sm_90; cuBLASLt 13.0.2; cuDNN 9.19.0 (frontend 1.32.0)", or "none (...)" saying how to build with it: a
/// line of `sherd --version`.
std::string cuda_build();
/// Whether this binary has the CUDA backend.
bool built_with_cuda() noexcept;

/// A GPU that this process may use.
struct Gpu {
    int index = 0;             ///< CUDA's, among the visible ones
    std::string name;          ///< "NVIDIA H200"
    std::string bus_id;        ///< "0000:65:00.0", unique on a machine, but for devices that MIG makes of one card
    std::string uuid;          ///< 32 hexadecimal digits
    int major = 0, minor = 0;  ///< compute capability
    std::uint64_t memory_bytes = 0;
    int clock_mhz = 0, memory_clock_mhz = 0;  ///< highest
    bool ecc = false;
    std::string driver;  ///< "CUDA 13.0 (580.65.06)": what the driver serves, and its version where NVML tells it
    /// "cuda: NVIDIA H200, sm_90, 139.8 GiB, 1980 MHz, memory 3201 MHz, ECC on, driver CUDA 13.0 (580.65.06)"
    std::string description() const;
};

/// All visible GPUs, and a reason where there is none. Throws nothing that a machine without a driver would cause.
struct Gpus {
    std::vector<Gpu> list;
    std::string why_none;
};
Gpus find_gpus();

/// Which of `visible` GPUs a rank takes: the only one (a launcher that shows each rank its own), else the one of its local rank; counted
/// round where there are more ranks than GPUs.
int choose_gpu(int visible, int local_rank) noexcept;

/// Identity of this machine whatever its containers are called: the kernel's boot id, or the host name.
std::string machine_id();

/// The lowest two ranks whose claims ("machine/bus id/uuid", empty: no GPU) are equal; nothing where all differ.
std::optional<std::pair<int, int>> first_duplicate(const std::vector<std::string>& claims_by_rank);

/// Which of these architectures ("75 80 90"; "90a" is for that one alone) a GPU of that compute capability runs code of: machine code of
/// the same major version and an equal or earlier minor one, the latest of them, else PTX of the last architecture on anything later. 0:
/// none.
int code_for(const std::string& architectures, int major, int minor);
/// Whether there is any.
bool code_runs_on(const std::string& architectures, int major, int minor);

/// Who computes attention: cuDNN where the binary has it and it serves the shape, and own kernels elsewhere; own kernels alone; cuDNN, or
/// an error where it does not serve the model. Single micro-batches that it does not serve (docs/gpu.md) are always own kernels'.
enum class AttentionBy { any, own, cudnn };

struct CudaOptions {
    int index = 0;                   ///< of Gpu
    std::uint64_t memory_limit = 0;  ///< bytes that this rank may allocate; 0: no limit
    bool tf32 = false;               ///< products of fp32 in TF32: 10 bits of mantissa, several times as fast
    AttentionBy attention = AttentionBy::any;
};

/// A GPU as a device. Throws DeviceError: no such GPU, a GPU older than what was compiled, a call that fails; in a binary without CUDA,
/// how to build one.
std::unique_ptr<Backend> make_cuda_backend(const CudaOptions& options);

/// How a GPU fares, as NVML tells; fields that it does not tell are -1 or empty.
struct GpuHealth {
    double temperature_c = -1;
    double power_w = -1;
    std::optional<std::string> throttling;  ///< reasons that hold clocks down now: "thermal, power"; empty: none
    std::int64_t ecc_errors = -1;           ///< uncorrected, since the driver was loaded
};

/// Reads the health of one GPU. Loads NVML at run time; without it nothing is known and nothing fails.
class GpuMonitor {
  public:
    /// bus_id: of Gpu.
    explicit GpuMonitor(const std::string& bus_id);
    ~GpuMonitor();
    GpuMonitor(const GpuMonitor&) = delete;
    GpuMonitor& operator=(const GpuMonitor&) = delete;
    GpuHealth read() const;

  private:
    struct Nvml;
    std::unique_ptr<Nvml> nvml_;
};

}  // namespace sherd
