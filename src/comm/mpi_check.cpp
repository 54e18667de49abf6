#include "comm/mpi_check.hpp"

#include "sherd/runtime/error.hpp"

#include <string>
#include <string_view>

namespace sherd::detail {

void check_mpi(int code, const char* call, const char* file, int line) {
    if (code == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING] = {};
    int length = 0;
    MPI_Error_string(code, text, &length);
    const std::string_view whole(call);
    throw DeviceError(call_failure(std::string(whole.substr(0, whole.find('('))).c_str(), file, line, text));
}

MpiComm::MpiComm(MPI_Comm parent) {
    SHERD_MPI(MPI_Comm_dup(parent, &comm_));
    SHERD_MPI(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN));
}

MpiComm::MpiComm(MPI_Comm parent, int color, int key) {
    SHERD_MPI(MPI_Comm_split(parent, color, key, &comm_));
    SHERD_MPI(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN));
}

MpiComm::~MpiComm() {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (comm_ != MPI_COMM_NULL && finalized == 0 && std::uncaught_exceptions() == 0) MPI_Comm_free(&comm_);
}

}  // namespace sherd::detail
