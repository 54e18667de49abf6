#include "injection.hpp"

#include "execution.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace emu {
namespace {

const char* own_rank() {
    const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
    return rank != nullptr ? rank : "0";
}

struct Calls {
    std::mutex mutex;
    std::map<std::string, long> counts;
    std::string failing;
    long left = 0;  ///< calls of that name until it fails, that one included; 0: none

    Calls() {
        const char* asked = std::getenv("EMU_FAIL");
        if (asked == nullptr) return;
        std::string text = asked;
        if (const auto at = text.find('@'); at != std::string::npos) {
            if (text.substr(at + 1) != own_rank()) return;
            text.resize(at);
        }
        const auto colon = text.rfind(':');
        failing = text.substr(0, colon);
        left = colon == std::string::npos ? 1 : std::strtol(text.c_str() + colon + 1, nullptr, 10);
    }
    ~Calls() {
        const char* path = std::getenv("EMU_CALLS");
        if (path == nullptr) return;
        std::FILE* file = std::fopen((std::string(path) + "." + own_rank()).c_str(), "w");
        if (file == nullptr) return;
        for (const auto& [name, count] : counts) std::fprintf(file, "%s %ld\n", name.c_str(), count);
        std::fclose(file);
    }
    Calls(const Calls&) = delete;
};

Calls& all() {
    static Calls c;
    return c;
}

thread_local int host_functions = 0;

}  // namespace

const char* of_own_rank(const char* variable) {
    const char* entry = std::getenv(variable);
    for (long left = std::strtol(own_rank(), nullptr, 10); entry != nullptr && left > 0; --left) {
        const char* const comma = std::strchr(entry, ',');
        if (comma == nullptr) break;
        entry = comma + 1;
    }
    return entry;
}

bool call_fails(const char* name) {
    if (host_functions > 0) throw Fault(std::string(name) + " is called from a host function of a stream, which CUDA forbids");
    Calls& c = all();
    const std::lock_guard lock(c.mutex);
    ++c.counts[name];
    return c.left > 0 && c.failing == name && --c.left == 0;
}

void fail_call(const std::string& name, int n) {
    const std::lock_guard lock(all().mutex);
    all().failing = name;
    all().left = n;
}

std::map<std::string, long> calls() {
    const std::lock_guard lock(all().mutex);
    return all().counts;
}

void forget_calls() {
    const std::lock_guard lock(all().mutex);
    all().counts.clear();
}

InHostFunction::InHostFunction() {
    ++host_functions;
}
InHostFunction::~InHostFunction() {
    --host_functions;
}

}  // namespace emu
