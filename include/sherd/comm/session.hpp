#pragma once
/// The job this process belongs to: MPI where a launcher started several processes, else a single process without MPI.
#include "sherd/comm/communicator.hpp"

#include <memory>
#include <string>
#include <vector>

namespace sherd {

/// Where the ranks are.
struct Topology {
    int local_rank = 0, local_size = 1;  ///< on this node
    int node = 0, nodes = 1;             ///< numbered by their lowest rank
    std::vector<std::string> hosts;      ///< by rank
    std::vector<int> nodes_by_rank;
};

/// Starts and ends MPI. One object a process, made before anything else of comm and destroyed last.
class Session {
  public:
    /// MPI_Init where the environment shows a launcher (OpenMPI, PMIx, PMI); asks for MPI_THREAD_MULTIPLE, since the communication stream
    /// and the host talk at the same time. Throws EnvironmentError: too low a thread level, or several Slurm tasks without PMI.
    Session();
    /// Finalizes, but never while an exception unwinds: other ranks may be in a collective, and finalize would wait for them for ever.
    ~Session();
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    const Topology& topology() const noexcept { return topology_; }
    /// All ranks of the job, on memory of `backend`; nodes: by rank, for counting what crosses them. Collective.
    std::unique_ptr<Communicator> world(Backend& backend, const std::vector<int>& nodes, const WaitLimits& limits = {}) const;
    std::unique_ptr<Communicator> world(Backend& backend) const { return world(backend, topology_.nodes_by_rank); }
    /// All ranks, for host agreements alone; collective.
    std::unique_ptr<Communicator> host_world(const WaitLimits& limits = WaitLimits::none()) const;
    /// "Open MPI 4.1.4, MPI_THREAD_MULTIPLE" or "single process".
    std::string description() const;

  private:
    void find_topology();
    bool uses_mpi_ = false;
    int uncaught_at_start_ = 0;
    Topology topology_;
};

/// Ends all ranks of the job with this exit code, now. Without MPI: returns.
void abort_job(ExitCode code) noexcept;

}  // namespace sherd
