#pragma once
/// Checked MPI calls: SHERD_MPI(MPI_Send(...)) throws DeviceError naming call, file, line, rank and MPI's own words.
#include <mpi.h>

namespace sherd::detail {

void check_mpi(int code, const char* call, const char* file, int line);

/// An MPI communicator duplicated from another, errors returned, freed at the end.
class MpiComm {
  public:
    explicit MpiComm(MPI_Comm parent);
    /// The part of `parent` that gave the same color, in the order of `key`.
    MpiComm(MPI_Comm parent, int color, int key);
    ~MpiComm();
    MpiComm(const MpiComm&) = delete;
    MpiComm& operator=(const MpiComm&) = delete;
    MPI_Comm get() const noexcept { return comm_; }

  private:
    MPI_Comm comm_ = MPI_COMM_NULL;
};

}  // namespace sherd::detail

#define SHERD_MPI(call) ::sherd::detail::check_mpi((call), #call, __FILE__, __LINE__)
