// The few functions of NVML that tell how a GPU fares, by their documented signatures (NVML API reference; the header is not needed).
#include "backend/cuda/nvml.hpp"

#include "sherd/backend/devices.hpp"

#include <array>
#include <cstdlib>
#include <dlfcn.h>

namespace sherd {

namespace {

using Device = void*;
constexpr int success = 0;

/// The library and its functions; absent ones stay nullptr.
struct Library {
    void* handle = nullptr;
    int (*init)() = nullptr;
    int (*driver_version)(char*, unsigned) = nullptr;
    int (*device_by_bus_id)(const char*, Device*) = nullptr;
    int (*temperature)(Device, unsigned sensor, unsigned* celsius) = nullptr;
    int (*power)(Device, unsigned* milliwatts) = nullptr;
    int (*throttle_reasons)(Device, unsigned long long*) = nullptr;
    int (*ecc_errors)(Device, unsigned type, unsigned counter, unsigned long long*) = nullptr;

    Library() {
        const char* path = std::getenv("SHERD_NVML");  // another place, or a stand-in for tests
        handle = ::dlopen(path != nullptr ? path : "libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
        if (handle == nullptr) return;
        load(init, "nvmlInit_v2");
        if (init == nullptr || init() != success) return;
        load(driver_version, "nvmlSystemGetDriverVersion");
        load(device_by_bus_id, "nvmlDeviceGetHandleByPciBusId_v2");
        load(temperature, "nvmlDeviceGetTemperature");
        load(power, "nvmlDeviceGetPowerUsage");
        load(throttle_reasons, "nvmlDeviceGetCurrentClocksEventReasons");
        if (throttle_reasons == nullptr) load(throttle_reasons, "nvmlDeviceGetCurrentClocksThrottleReasons");  // its name before 2023
        load(ecc_errors, "nvmlDeviceGetTotalEccErrors");
    }
    template <class Function>
    void load(Function& function, const char* name) {
        function = reinterpret_cast<Function>(::dlsym(handle, name));
    }
};

/// Loaded once; it stays, since NVML keeps threads of the driver.
const Library& library() {
    static const Library loaded;
    return loaded;
}

/// Reasons that cost speed; a GPU that idles or runs at clocks that somebody set is no news.
std::string throttling_text(unsigned long long reasons) {
    constexpr std::array<std::pair<unsigned long long, const char*>, 5> names{
        {{0x04, "power"}, {0x08, "hardware slowdown"}, {0x20, "thermal (software)"}, {0x40, "thermal (hardware)"}, {0x80, "power brake"}}};
    std::string text;
    for (const auto& [bit, name] : names)
        if ((reasons & bit) != 0) text += (text.empty() ? "" : ", ") + std::string(name);
    return text;
}

}  // namespace

std::string nvml_driver_version() {
    std::array<char, 96> text{};
    const auto function = library().driver_version;
    return function != nullptr && function(text.data(), static_cast<unsigned>(text.size())) == success ? text.data() : "";
}

struct GpuMonitor::Nvml {
    Device device = nullptr;
};

GpuMonitor::GpuMonitor(const std::string& bus_id) : nvml_(std::make_unique<Nvml>()) {
    const auto function = library().device_by_bus_id;
    if (function == nullptr || function(bus_id.c_str(), &nvml_->device) != success) nvml_->device = nullptr;
}

GpuMonitor::~GpuMonitor() = default;

GpuHealth GpuMonitor::read() const {
    GpuHealth health;
    const Device device = nvml_->device;
    if (device == nullptr) return health;
    const Library& nvml = library();
    unsigned value = 0;
    if (nvml.temperature != nullptr && nvml.temperature(device, 0, &value) == success) health.temperature_c = value;
    if (nvml.power != nullptr && nvml.power(device, &value) == success) health.power_w = value / 1000.0;
    unsigned long long wide = 0;
    if (nvml.throttle_reasons != nullptr && nvml.throttle_reasons(device, &wide) == success) health.throttling = throttling_text(wide);
    // uncorrected (1), since the driver was loaded (0); an error on GPUs without ECC
    if (nvml.ecc_errors != nullptr && nvml.ecc_errors(device, 1, 0, &wide) == success) health.ecc_errors = static_cast<std::int64_t>(wide);
    return health;
}

}  // namespace sherd
