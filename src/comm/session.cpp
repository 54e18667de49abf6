#include "sherd/comm/session.hpp"

#include "comm/mpi_check.hpp"
#include "comm/mpi_communicator.hpp"

#include <algorithm>
#include <cstdlib>
#include <exception>

namespace sherd {

namespace {

bool launched_by_mpi() {
    for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE"})
        if (std::getenv(variable) != nullptr) return true;
    return false;
}

/// srun without a PMI plugin starts N processes that know nothing of one another: each would train alone into the same directory.
void refuse_unconnected_tasks() {
    const char* tasks = std::getenv("SLURM_NTASKS");
    const char* step = std::getenv("SLURM_STEP_ID");  // absent in the batch script itself
    const char* launched = std::getenv("SLURM_STEP_NUM_TASKS");
    if (tasks != nullptr && step != nullptr && launched != nullptr && std::atoi(launched) > 1)
        throw EnvironmentError("srun started {} tasks without PMI, so that they cannot find one another; use srun --mpi=pmix or mpirun",
                               launched);
}

}  // namespace

Session::Session() : uncaught_at_start_(std::uncaught_exceptions()) {
    uses_mpi_ = launched_by_mpi();
    if (!uses_mpi_) {
        refuse_unconnected_tasks();
        topology_.hosts = {host_name()};
        topology_.nodes_by_rank = {0};
        return;
    }
    int level = 0;
    SHERD_MPI(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level));
    SHERD_MPI(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    int rank = 0;
    SHERD_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    set_process_rank(rank);
    if (level < MPI_THREAD_MULTIPLE)
        throw EnvironmentError("this MPI gives thread level {} where MPI_THREAD_MULTIPLE is needed; use a build of MPI with threads",
                               level);
    find_topology();
}

void Session::find_topology() {
    MPI_Comm shared = MPI_COMM_NULL;
    SHERD_MPI(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, process_rank(), MPI_INFO_NULL, &shared));
    SHERD_MPI(MPI_Comm_rank(shared, &topology_.local_rank));
    SHERD_MPI(MPI_Comm_size(shared, &topology_.local_size));
    int lowest = process_rank();
    SHERD_MPI(MPI_Bcast(&lowest, 1, MPI_INT, 0, shared));
    SHERD_MPI(MPI_Comm_free(&shared));
    const auto world = host_world();
    std::vector<int> leaders;
    for (const std::string& bytes : world->exchange(std::to_string(lowest))) leaders.push_back(std::stoi(bytes));
    std::vector<int> unique = leaders;
    std::sort(unique.begin(), unique.end());
    unique.erase(std::unique(unique.begin(), unique.end()), unique.end());
    for (const int leader : leaders)
        topology_.nodes_by_rank.push_back(static_cast<int>(std::lower_bound(unique.begin(), unique.end(), leader) - unique.begin()));
    topology_.nodes = static_cast<int>(unique.size());
    topology_.node = topology_.nodes_by_rank[static_cast<std::size_t>(process_rank())];
    topology_.hosts = world->exchange(host_name());
}

Session::~Session() {
    if (uses_mpi_ && std::uncaught_exceptions() <= uncaught_at_start_) MPI_Finalize();
}

std::unique_ptr<Communicator> Session::world(Backend& backend, const std::vector<int>& nodes, const WaitLimits& limits) const {
    return uses_mpi_ ? detail::make_mpi_communicator(MPI_COMM_WORLD, &backend, nodes, limits) : make_single_communicator(&backend);
}

std::unique_ptr<Communicator> Session::host_world(const WaitLimits& limits) const {
    return uses_mpi_ ? detail::make_mpi_communicator(MPI_COMM_WORLD, nullptr, {}, limits) : make_single_communicator(nullptr);
}

std::string Session::description() const {
    if (!uses_mpi_) return "single process";
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
    int length = 0;
    MPI_Get_library_version(text, &length);
    const std::string whole(text);
    return whole.substr(0, whole.find(','));
}

void abort_job(ExitCode code) noexcept {
    int started = 0, finished = 0;
    MPI_Initialized(&started);
    MPI_Finalized(&finished);
    if (started != 0 && finished == 0) MPI_Abort(MPI_COMM_WORLD, static_cast<int>(code));
}

}  // namespace sherd
