#include "train/agreement.hpp"

#include "sherd/runtime/error.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <sys/stat.h>

namespace sherd {

namespace {

constexpr std::int64_t block_bytes = 4 << 20;

Digest file_digest(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::vector<char> block(static_cast<std::size_t>(block_bytes));
    Digest digest;
    for (std::uint64_t i = 0; file.read(block.data(), block_bytes) || file.gcount() > 0; ++i)
        digest = digest + block_digest(std::as_bytes(std::span(block.data(), static_cast<std::size_t>(file.gcount()))), "file", i);
    return digest;
}

/// Part `part` of `parts` of the digest of all parameters: blocks of 4 MiB, whatever file they lie in.
Digest weights_digest(const WeightSource& source, std::int64_t part, std::int64_t parts) {
    Digest digest;
    std::vector<std::byte> block;
    std::int64_t counter = 0;
    for (const TensorInfo& tensor : source.tensors()) {
        const auto element = static_cast<std::int64_t>(size_of(tensor.dtype));
        const std::int64_t step = block_bytes / element;
        const std::string stream = tensor.name + ":" + std::string(name_of(tensor.dtype));
        for (std::int64_t at = 0, i = 0; at < tensor.elements(); at += step, ++i) {
            if (counter++ % parts != part) continue;
            const std::int64_t n = std::min(step, tensor.elements() - at);
            block.resize(static_cast<std::size_t>(n * element));
            source.read(tensor, at, n, block.data());
            digest = digest + block_digest(block, stream, static_cast<std::uint64_t>(i));
        }
    }
    return digest;
}

/// Which ranks read the same files: node, device, inode, size and time of both inputs.
std::string file_key(const std::string& path) {
    struct stat s {};
    if (::stat(path.c_str(), &s) != 0) return "absent";
    return fmt::format("{}:{}:{}:{}.{}", s.st_dev, s.st_ino, s.st_size, s.st_mtim.tv_sec, s.st_mtim.tv_nsec);
}

using Digests = std::array<Digest, 3>;

Digests unpack(const std::string& bytes) {
    Digests d;
    std::memcpy(d.data(), bytes.data(), sizeof d);
    return d;
}

/// Names the first rank whose value differs from rank 0's.
template <class T>
void require_equal(const std::vector<T>& by_rank, ExitCode code, const std::string& what, const std::vector<std::string>& hosts) {
    for (std::size_t r = 1; r < by_rank.size(); ++r)
        if (!(by_rank[r] == by_rank[0]))
            throw AgreedError(code, fmt::format("{} differs between rank 0 (host {}) and rank {} (host {}); all ranks must see the same",
                                                what, hosts[0], r, hosts[r]));
}

}  // namespace

void compare_programs(const Settings& settings, Communicator& world) {
    if (world.size() == 1) return;
    const auto hosts = world.exchange(host_name());
    require_equal(world.exchange(to_string(file_digest("/proc/self/exe"))), ExitCode::environment, "the binary of sherd", hosts);
    // line by line, so that the key that differs is named
    const auto decks = world.exchange(settings.text);
    for (std::size_t r = 1; r < decks.size(); ++r) {
        if (decks[r] == decks[0]) continue;
        const auto [mine, theirs] = std::mismatch(decks[0].begin(), decks[0].end(), decks[r].begin(), decks[r].end());
        const auto begin = decks[0].rfind('\n', static_cast<std::size_t>(mine - decks[0].begin()));
        const auto start = begin == std::string::npos ? 0 : begin + 1;
        throw AgreedError(ExitCode::environment,
                          fmt::format("the deck differs between rank 0 (host {}: '{}') and rank {} (host {}: '{}')", hosts[0],
                                      decks[0].substr(start, decks[0].find('\n', start) - start), r, hosts[r],
                                      decks[r].substr(std::min(start, decks[r].size()), decks[r].find('\n', start) - start)));
    }
}

InputDigests compare_inputs(const Settings& settings, const Inputs& in, const Topology& topology, Communicator& world, bool training) {
    const auto keys =
        world.exchange(fmt::format("{}/{}/{}", topology.node, file_key(settings.model.weights), file_key(settings.data.tokens)));
    const std::string& mine = keys[static_cast<std::size_t>(world.rank())];
    const auto parts = std::count(keys.begin(), keys.end(), mine);
    const auto part = std::count(keys.begin(), keys.begin() + world.rank(), mine);
    Digests digests;
    collectively(world, [&] {
        digests[0] = weights_digest(*in.weights, part, parts);
        if (training) digests[1] = in.tokens->train().digest(part, parts);
        if (const TokenGroup* validation = in.tokens->validation()) digests[2] = validation->digest(part, parts);
    });
    const auto pieces = world.exchange({reinterpret_cast<const char*>(digests.data()), sizeof digests});
    std::vector<Digests> whole(pieces.size());
    for (std::size_t r = 0; r < pieces.size(); ++r)
        for (std::size_t other = 0; other < pieces.size(); ++other)
            if (keys[other] == keys[r])
                for (std::size_t i = 0; i < digests.size(); ++i) whole[r][i] = whole[r][i] + unpack(pieces[other])[i];
    std::vector<Digest> weights, tokens;
    for (const Digests& d : whole) {
        weights.push_back(d[0]);
        tokens.push_back(d[1] + d[2]);
    }
    require_equal(weights, ExitCode::input, fmt::format("the content of model.weights ({})", settings.model.weights), topology.hosts);
    require_equal(tokens, ExitCode::input, fmt::format("the content of data.tokens ({})", settings.data.tokens), topology.hosts);
    return {whole[0][0], whole[0][1], whole[0][2]};
}

}  // namespace sherd
