#include "backend/cuda/cudnn/plans.hpp"

#include "backend/cuda/cudnn/graph.hpp"
#include "backend/cuda/fused_attention.hpp"

#include "sherd/runtime/error.hpp"

#include <algorithm>
#include <string_view>
#include <unordered_map>

namespace sherd::cuda {

namespace fe = cudnn_frontend;

namespace {

constexpr const char* advice = "; device.attention = own does without cuDNN";

void check_cudnn(cudnnStatus_t status, const char* call, const char* file, int line) {
    if (status == CUDNN_STATUS_SUCCESS) return;
    const std::string_view whole(call);
    const std::string function(whole.substr(0, whole.find('(')));
    throw DeviceError(call_failure(function.c_str(), file, line,
                                   fmt::format("{}, status {}{}", cudnnGetErrorString(status), static_cast<int>(status), advice)));
}
#define SHERD_CUDNN(call) check_cudnn((call), #call, __FILE__, __LINE__)

/// The frontend's messages list what the library said, line by line.
std::string in_one_line(std::string text) {
    constexpr std::size_t most = 400;
    std::ranges::replace(text, '\n', ' ');
    if (text.size() > most) text = text.substr(0, most) + " ...";
    return text;
}

std::string version_text(std::int64_t version) {
    return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace

std::int64_t cudnn_version() noexcept {
    return static_cast<std::int64_t>(cudnnGetVersion());
}

std::string cudnn_build() {
    return fmt::format("cuDNN {} (frontend {}.{}.{})", version_text(cudnn_version()), CUDNN_FRONTEND_MAJOR_VERSION,
                       CUDNN_FRONTEND_MINOR_VERSION, CUDNN_FRONTEND_PATCH_VERSION);
}

CudnnPlans::CudnnPlans() {
    SHERD_CUDNN(cudnnCreate(&handle_));
}

CudnnPlans::~CudnnPlans() {
    plans_.clear();
    (void)cudnnDestroy(handle_);
}

CudnnPlan build_plan(const std::shared_ptr<fe::graph::Graph>& graph, cudnnContext* handle) {
    CudnnPlan plan;
    const auto failed = [&plan](fe::error_t error, const char* call) {
        if (error.is_good()) return false;
        plan.refusal = fmt::format("{}: {}", call, in_one_line(error.get_message()));
        return true;
    };
    std::int64_t bytes = 0;
    if (failed(graph->validate(), "validate") || failed(graph->build_operation_graph(handle), "build_operation_graph") ||
        failed(graph->create_execution_plans({fe::HeurMode_t::A}), "create_execution_plans") ||
        failed(graph->check_support(), "check_support") || failed(graph->build_plans(), "build_plans") ||
        failed(graph->get_workspace_size(bytes), "get_workspace_size"))
        return plan;
    plan.graph = graph;
    plan.workspace = static_cast<std::uint64_t>(bytes);
    return plan;
}

const CudnnPlan& CudnnPlans::find(const AttentionGraph& of) {
    const auto found = plans_.find(of);
    if (found != plans_.end()) return found->second;
    const auto graph = std::make_shared<fe::graph::Graph>();
    describe_attention(*graph, of);
    return plans_.emplace(of, build_plan(graph, handle_)).first->second;
}

void CudnnPlans::run(CudaStream& stream, const CudnnPlan& plan, const std::vector<std::pair<Operand, const void*>>& operands,
                     void* workspace) {
    SHERD_CUDNN(cudnnSetStream(handle_, stream.get()));
    std::unordered_map<std::int64_t, void*> places;
    for (const auto& [operand, address] : operands) places[static_cast<std::int64_t>(operand)] = const_cast<void*>(address);
    auto error = plan.graph->execute(handle_, places, workspace);
    if (error.is_bad())
        throw DeviceError(call_failure("cudnn_frontend::graph::Graph::execute", __FILE__, __LINE__,
                                       fmt::format("{}: {}{}", stream.last_operation(), in_one_line(error.get_message()), advice)));
}

}  // namespace sherd::cuda
