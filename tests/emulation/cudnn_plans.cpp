/// What the real cuDNN says of the program's graphs, for GPUs that need not be there: a graph that was told the properties of a device is
/// checked and planned without one.
///
///     cudnn_plans CAPABILITY PROPERTIES < GRAPHS
///
/// PROPERTIES: JSON as cuDNN writes it. GRAPHS: a line each,
/// `forward|backward bf16|fp16 heads kv_heads head_dim window documents longest rows`. For each a line: `workspace BYTES`, or `refused
/// WHY`.
#include "backend/cuda/cudnn/graph.hpp"

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>

int main(int count, char** arguments) {
    if (count != 3) return 2;
    const std::string json = arguments[2];
    for (std::string line; std::getline(std::cin, line);) {
        std::istringstream words(line);
        std::string pass, type;
        sherd::cuda::AttentionGraph of{};
        words >> pass >> type >> of.heads >> of.kv_heads >> of.head_dim >> of.window >> of.documents >> of.longest >> of.rows;
        if (!words) return 2;
        of.backward = pass == "backward";
        of.type = type == "bf16" ? sherd::DType::bf16 : sherd::DType::f16;
        of.scale = 0.125f;
        const auto properties = std::make_shared<cudnn_frontend::DeviceProperties>();
        if (auto error = properties->deserialize({json.begin(), json.end()}); error.is_bad()) {
            std::fprintf(stderr, "%s\n", error.get_message().c_str());
            return 1;
        }
        const auto graph = std::make_shared<cudnn_frontend::graph::Graph>();
        graph->set_device_properties(properties).set_sm_version(std::atoi(arguments[1]));
        sherd::cuda::describe_attention(*graph, of);
        const sherd::cuda::CudnnPlan plan = sherd::cuda::build_plan(graph, nullptr);
        if (plan.refusal.empty())
            std::printf("workspace %llu\n", static_cast<unsigned long long>(plan.workspace));
        else
            std::printf("refused %s\n", plan.refusal.c_str());
    }
    return 0;
}
