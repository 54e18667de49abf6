#pragma once
/// Attention as a graph of cuDNN's frontend. Documents are packed: a graph is of a number of sequences and of the longest one, and is told
/// at run time, in device memory, where each sequence starts in every tensor and how long it is ("ragged" tensors with a padding mask).
#include "backend/cuda/cudnn/plans.hpp"

// its only use is to write graphs to files, and it would want another library
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

namespace sherd::cuda {

/// Makes an empty graph one of attention, not yet checked or built. All numbers of the backward pass come out equal in every run.
void describe_attention(cudnn_frontend::graph::Graph& graph, const AttentionGraph& of);

}  // namespace sherd::cuda
