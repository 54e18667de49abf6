#pragma once
/// Stand-in for cuDNN's frontend: of its classes, what the program calls, under the same names. A graph is one attention, forward or
/// backward, over packed documents; fake_cudnn.cpp says what it checks and computes.
#include "cudnn.h"

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#define CUDNN_FRONTEND_MAJOR_VERSION 1
#define CUDNN_FRONTEND_MINOR_VERSION 0
#define CUDNN_FRONTEND_PATCH_VERSION 0

namespace cudnn_frontend {

enum class DataType_t { NOT_SET, FLOAT, HALF, BFLOAT16, INT32, INT64 };
enum class HeurMode_t { A, B, FALLBACK };
enum class DiagonalAlignment_t { TOP_LEFT, BOTTOM_RIGHT };
enum class error_code_t { OK, ATTRIBUTE_NOT_SET, INVALID_VARIANT_PACK, GRAPH_NOT_SUPPORTED, CUDNN_BACKEND_API_FAILED };

struct [[nodiscard]] error_object {
    error_code_t code = error_code_t::OK;
    std::string err_msg;
    error_code_t get_code() { return code; }
    std::string get_message() { return err_msg; }
    bool is_good() const { return code == error_code_t::OK; }
    bool is_bad() const { return !is_good(); }
};
using error_t = error_object;

namespace graph {

class Tensor_attributes {
  public:
    Tensor_attributes& set_name(std::string const& value) { return name = value, *this; }
    Tensor_attributes& set_uid(std::int64_t value) { return uid = value, *this; }
    Tensor_attributes& set_dim(std::vector<std::int64_t> const& value) { return dim = value, *this; }
    Tensor_attributes& set_stride(std::vector<std::int64_t> const& value) { return stride = value, *this; }
    Tensor_attributes& set_data_type(DataType_t value) { return type = value, *this; }
    Tensor_attributes& set_output(bool value) { return output = value, *this; }
    Tensor_attributes& set_ragged_offset(std::shared_ptr<Tensor_attributes> const& value) { return offsets = value, *this; }

    // the stand-in's own, as all data members below
    std::string name;
    std::int64_t uid = 0;
    std::vector<std::int64_t> dim, stride;
    DataType_t type = DataType_t::NOT_SET;
    bool output = false;
    std::shared_ptr<Tensor_attributes> offsets;
};
using Tensor = std::shared_ptr<Tensor_attributes>;

/// What both passes may be told.
template <class Self>
class Attention_attributes {
  public:
    Self& set_name(std::string const&) { return self(); }
    Self& set_attn_scale(float value) { return scale = value, self(); }
    Self& set_padding_mask(bool value) { return padding = value, self(); }
    Self& set_seq_len_q(Tensor value) { return query_lengths = std::move(value), self(); }
    Self& set_seq_len_kv(Tensor value) { return key_lengths = std::move(value), self(); }
    Self& set_diagonal_alignment(DiagonalAlignment_t value) { return alignment = value, self(); }
    Self& set_diagonal_band_left_bound(int value) { return left = value, self(); }
    Self& set_diagonal_band_right_bound(int value) { return right = value, self(); }

    float scale = 1;
    bool padding = false;
    Tensor query_lengths, key_lengths;
    DiagonalAlignment_t alignment = DiagonalAlignment_t::TOP_LEFT;
    std::optional<std::int64_t> left, right;

  private:
    Self& self() { return static_cast<Self&>(*this); }
};

class SDPA_attributes : public Attention_attributes<SDPA_attributes> {
  public:
    SDPA_attributes& set_generate_stats(bool value) { return statistics = value, *this; }
    bool statistics = false;
};

class SDPA_backward_attributes : public Attention_attributes<SDPA_backward_attributes> {
  public:
    SDPA_backward_attributes& set_deterministic_algorithm(bool value) { return deterministic = value, *this; }
    SDPA_backward_attributes& set_max_total_seq_len_q(std::int64_t value) { return most_query_rows = value, *this; }
    SDPA_backward_attributes& set_max_total_seq_len_kv(std::int64_t value) { return most_key_rows = value, *this; }
    bool deterministic = false;
    std::optional<std::int64_t> most_query_rows, most_key_rows;
};

class Graph {
  public:
    Graph& set_io_data_type(DataType_t value) { return io_type_ = value, *this; }
    Graph& set_intermediate_data_type(DataType_t value) { return intermediate_type_ = value, *this; }
    Graph& set_compute_data_type(DataType_t value) { return compute_type_ = value, *this; }

    Tensor tensor(Tensor_attributes const& attributes);
    std::array<Tensor, 2> sdpa(Tensor q, Tensor k, Tensor v, SDPA_attributes attributes);
    std::array<Tensor, 3> sdpa_backward(Tensor q, Tensor k, Tensor v, Tensor o, Tensor dO, Tensor stats,
                                        SDPA_backward_attributes attributes);

    error_t validate();
    error_t build_operation_graph(cudnnHandle_t handle);
    error_t create_execution_plans(std::vector<HeurMode_t> const& mode);
    error_t check_support();
    error_t build_plans();
    error_t get_workspace_size(std::int64_t& bytes) const;
    error_t execute(cudnnHandle_t handle, std::unordered_map<std::int64_t, void*>& pointers, void* workspace) const;

    /// Tensors by their part in the attention; those of the backward pass alone are null in the forward one.
    struct Attention {
        Tensor q, k, v, o, statistics, query_lengths, key_lengths, d_o, d_q, d_k, d_v;
        float scale;
        bool padding, backward, deterministic, bounded;
        std::int64_t window;  ///< 0: none
        std::int64_t most_rows;
    };

  private:
    template <class Attributes>
    void take(const Attributes& attributes);
    std::vector<Tensor> packed() const;
    std::vector<Tensor> lists() const;
    void reach(int stage, const char* call) const;
    std::int64_t workspace() const;

    DataType_t io_type_ = DataType_t::NOT_SET, intermediate_type_ = DataType_t::NOT_SET, compute_type_ = DataType_t::NOT_SET;
    std::vector<Tensor> inputs_;
    std::optional<Attention> attention_;
    int stage_ = 0;
};

}  // namespace graph
}  // namespace cudnn_frontend
