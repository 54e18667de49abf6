/// Stand-in for libnvidia-ml.so.1: a shared library that a test lets the program open in its place. Fixed values, so that a test can tell
/// them apart, and the temperature tells which GPU was asked; EMU_NVML_FAIL=FUNCTION makes that one fail, EMU_NVML_THROTTLE=N gives the
/// bits of the reasons for low clocks.
#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" {

using nvmlReturn_t = int;
using nvmlDevice_t = struct nvmlDevice_st*;
struct nvmlMemory_t {
    unsigned long long total, free, used;
};
struct nvmlUtilization_t {
    unsigned gpu, memory;
};

#define EMU_NVML_CALL()                                                                                       \
    if (const char* name = std::getenv("EMU_NVML_FAIL"); name != nullptr && std::strcmp(name, __func__) == 0) \
    return 999  // NVML_ERROR_UNKNOWN

/// What nvmlDevice_t points to, of each GPU of the machine.
static char gpus[8];
static int index_of(nvmlDevice_t d) {
    for (int i = 0; i < 8; ++i)
        if (reinterpret_cast<char*>(d) == gpus + i) return i;
    return -1;
}
static nvmlReturn_t handle_of(unsigned long index, nvmlDevice_t* d) {
    if (index >= 8) return 6;  // NVML_ERROR_NOT_FOUND
    *d = reinterpret_cast<nvmlDevice_t>(gpus + index);
    return 0;
}
static nvmlReturn_t known(nvmlDevice_t d) {
    return index_of(d) >= 0 ? 0 : 2;  // NVML_ERROR_INVALID_ARGUMENT
}

nvmlReturn_t nvmlInit_v2() {
    EMU_NVML_CALL();
    return 0;
}
nvmlReturn_t nvmlShutdown() {
    EMU_NVML_CALL();
    return 0;
}
const char* nvmlErrorString(nvmlReturn_t r) {
    return r == 0 ? "Success" : r == 999 ? "Unknown Error" : "Invalid Argument";
}
nvmlReturn_t nvmlSystemGetDriverVersion(char* text, unsigned length) {
    EMU_NVML_CALL();
    std::snprintf(text, length, "580.65.06");
    return 0;
}
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned* n) {
    EMU_NVML_CALL();
    *n = 8;
    return 0;
}
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char* id, nvmlDevice_t* d) {  // "0000:10:00.0" is the first
    EMU_NVML_CALL();
    const char* const bus = std::strchr(id, ':');
    return bus != nullptr ? handle_of(std::strtoul(bus + 1, nullptr, 16) / 16 - 1, d) : 2;
}
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t* d) {
    EMU_NVML_CALL();
    return handle_of(index, d);
}
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t d, char* text, unsigned length) {
    EMU_NVML_CALL();
    std::snprintf(text, length, "Emulated GPU");
    return known(d);
}
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t d, int, unsigned* celsius) {
    EMU_NVML_CALL();
    *celsius = static_cast<unsigned>(60 + index_of(d));
    return known(d);
}
nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t d, unsigned* milliwatts) {
    EMU_NVML_CALL();
    *milliwatts = 512300;
    return known(d);
}
nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t d, unsigned* milliwatts) {
    EMU_NVML_CALL();
    *milliwatts = 700000;
    return known(d);
}
nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t d, unsigned* milliwatts) {
    EMU_NVML_CALL();
    *milliwatts = 700000;
    return known(d);
}
static nvmlReturn_t throttle(nvmlDevice_t d, unsigned long long* bits) {
    const char* text = std::getenv("EMU_NVML_THROTTLE");
    *bits = text != nullptr ? std::strtoull(text, nullptr, 0) : 0;
    return known(d);
}
nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t d, unsigned long long* bits) {
    EMU_NVML_CALL();
    return throttle(d, bits);
}
nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t d, unsigned long long* bits) {
    EMU_NVML_CALL();
    return throttle(d, bits);
}
nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t d, int* current, int* pending) {
    EMU_NVML_CALL();
    *current = *pending = 1;
    return known(d);
}
nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t d, int kind, int, unsigned long long* count) {
    EMU_NVML_CALL();
    *count = kind == 0 ? 3 : 1;  // corrected, uncorrected
    return known(d);
}
nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t d, int kind, unsigned* mhz) {
    EMU_NVML_CALL();
    *mhz = kind == 2 ? 3201 : 1755;  // memory, else graphics or multiprocessor
    return known(d);
}
nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t d, int kind, unsigned* mhz) {
    EMU_NVML_CALL();
    *mhz = kind == 2 ? 3201 : 1980;
    return known(d);
}
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t d, nvmlMemory_t* m) {
    EMU_NVML_CALL();
    *m = {1ULL << 32, 3ULL << 30, 1ULL << 30};
    return known(d);
}
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t d, nvmlUtilization_t* u) {
    EMU_NVML_CALL();
    *u = {97, 42};
    return known(d);
}
}
