#pragma once
/// What each rank computes on, and by which library it talks to the others.
#include "sherd/backend/backend.hpp"
#include "sherd/backend/devices.hpp"
#include "sherd/comm/session.hpp"
#include "sherd/train/settings.hpp"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace sherd {

struct ChosenDevice {
    std::unique_ptr<Backend> backend;
    std::optional<Gpu> gpu;           ///< nothing: the CPU
    std::vector<std::string> claims;  ///< by rank: "machine/bus id/uuid" of its GPU; empty on CPUs
    /// Ranks that share the device of `rank`, itself included.
    std::vector<int> sharing(int rank) const;
    /// Whether no lower rank computes on the card of `rank`. MIG makes several devices of one card, which have its bus id and its health.
    bool first_of_card(int rank) const;
};

/// Collective: all ranks compute on GPUs, or all on CPUs. Throws AgreedError: device.kind = cuda without a GPU, a GPU on some ranks only,
/// two ranks with one GPU unless communication.backend = mpi, what making a device throws.
ChosenDevice choose_device(const Settings& settings, const Session& session, Communicator& host);

/// Collective. By NCCL where it is asked for, or where ranks have GPUs of their own and the binary has it; else by MPI.
/// nodes: by rank. Throws AgreedError.
std::unique_ptr<Communicator> make_world(const Settings& settings, const Session& session, const ChosenDevice& device,
                                         const std::vector<int>& nodes);

}  // namespace sherd
