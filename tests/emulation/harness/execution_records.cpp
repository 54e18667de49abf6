/// What the execution remembers or is told about a whole process: known memory, barriers that were reached, one to leave out.
#include "execution.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>

namespace emu {

namespace {

std::map<const char*, std::size_t>& buffers() {
    static std::map<const char*, std::size_t> all;
    return all;
}

struct LeftOut {
    std::string file;
    unsigned line = 0;
    LeftOut() {
        const char* place = std::getenv("EMU_DELETE");
        const char* colon = place != nullptr ? std::strrchr(place, ':') : nullptr;
        if (colon == nullptr) return;
        file.assign(place, colon);
        line = static_cast<unsigned>(std::strtoul(colon + 1, nullptr, 10));
    }
};

std::map<const void*, std::size_t>& shared_limits() {
    static std::map<const void*, std::size_t> all;
    return all;
}

}  // namespace

void allow_shared(const void* kernel, std::size_t bytes) {
    shared_limits()[kernel] = bytes;
}
std::size_t allowed_shared(const void* kernel) {
    const auto found = shared_limits().find(kernel);
    return std::max<std::size_t>(48 << 10, found == shared_limits().end() ? 0 : found->second);
}

void add_buffer(const void* address, std::size_t bytes) {
    buffers()[static_cast<const char*>(address)] = bytes;
}
void remove_buffer(const void* address) {
    buffers().erase(static_cast<const char*>(address));
}

bool outside_buffers(const void* address, std::size_t bytes) {
    const char* p = static_cast<const char*>(address);
    if (buffers().empty()) return false;
    auto at = buffers().upper_bound(p);
    if (at == buffers().begin()) return true;
    --at;
    return p + bytes > at->first + at->second;
}

std::set<std::string>& places() {
    static std::set<std::string> all;
    return all;
}

bool left_out(const Where& where) {
    static const LeftOut place;
    static const bool recorded = std::getenv("EMU_PLACES") != nullptr;
    if (recorded) places().insert(file(where) + (":" + std::to_string(where.line)));
    return place.line == where.line && place.line != 0 && place.file == file(where);
}

}  // namespace emu
