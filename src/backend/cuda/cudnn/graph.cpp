#include "backend/cuda/cudnn/graph.hpp"

namespace sherd::cuda {

namespace fe = cudnn_frontend;

namespace {

using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

/// The tensors of a graph. Dimensions are always (documents, heads, rows of a document, columns), strides those of packed rows; the stride
/// of the first dimension means nothing, because offsets take its place.
class Tensors {
  public:
    Tensors(fe::graph::Graph& graph, const AttentionGraph& of) : graph_(graph), of_(of) {
        query_offsets_ = integers("query offsets", Operand::query_offsets, of.documents + 1, fe::DataType_t::INT64);
        key_offsets_ = integers("key offsets", Operand::key_offsets, of.documents + 1, fe::DataType_t::INT64);
        statistics_offsets_ = integers("statistics offsets", Operand::statistics_offsets, of.documents + 1, fe::DataType_t::INT64);
        lengths = integers("lengths", Operand::lengths, of.documents, fe::DataType_t::INT32);
    }

    Tensor query(const char* name, Operand uid) { return input(name, uid, of_.heads, of_.head_dim, query_offsets_); }
    Tensor key(const char* name, Operand uid) { return input(name, uid, of_.kv_heads, of_.head_dim, key_offsets_); }
    Tensor statistics() {
        fe::graph::Tensor_attributes tensor;
        pack_statistics(tensor);
        return graph_.tensor(tensor);
    }

    void query_result(const Tensor& result, const char* name, Operand uid) {
        pack(result->set_output(true), name, uid, of_.heads, of_.head_dim, query_offsets_);
    }
    void key_result(const Tensor& result, const char* name, Operand uid) {
        pack(result->set_output(true), name, uid, of_.kv_heads, of_.head_dim, key_offsets_);
    }
    void statistics_result(const Tensor& result) { pack_statistics(result->set_output(true)); }

    Tensor lengths;

  private:
    Tensor integers(const char* name, Operand uid, std::int64_t n, fe::DataType_t type) {
        return graph_.tensor(fe::graph::Tensor_attributes()
                                 .set_name(name)
                                 .set_uid(static_cast<std::int64_t>(uid))
                                 .set_dim({n, 1, 1, 1})
                                 .set_stride({1, 1, 1, 1})
                                 .set_data_type(type));
    }
    void pack(fe::graph::Tensor_attributes& tensor, const char* name, Operand uid, std::int64_t heads, std::int64_t columns,
              const Tensor& offsets) const {
        tensor.set_name(name)
            .set_uid(static_cast<std::int64_t>(uid))
            .set_dim({of_.documents, heads, of_.longest, columns})
            .set_stride({of_.longest * heads * columns, columns, heads * columns, 1})
            .set_ragged_offset(offsets);
    }
    void pack_statistics(fe::graph::Tensor_attributes& tensor) const {
        pack(tensor, "statistics", Operand::statistics, of_.heads, 1, statistics_offsets_);
        tensor.set_data_type(fe::DataType_t::FLOAT);
    }
    Tensor input(const char* name, Operand uid, std::int64_t heads, std::int64_t columns, const Tensor& offsets) {
        fe::graph::Tensor_attributes tensor;
        pack(tensor, name, uid, heads, columns, offsets);
        return graph_.tensor(tensor);
    }

    fe::graph::Graph& graph_;
    const AttentionGraph& of_;
    Tensor query_offsets_, key_offsets_, statistics_offsets_;
};

/// What both passes are told alike. A row sees columns up to its own, and with a left bound of n itself and n - 1 before it.
template <class Attributes>
Attributes common(const AttentionGraph& of, const Tensors& tensors) {
    Attributes attributes;
    attributes.set_attn_scale(of.scale)
        .set_padding_mask(true)
        .set_seq_len_q(tensors.lengths)
        .set_seq_len_kv(tensors.lengths)
        .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
        .set_diagonal_band_right_bound(0);
    if (of.window > 0) attributes.set_diagonal_band_left_bound(static_cast<int>(of.window));
    return attributes;
}

void forward(fe::graph::Graph& graph, Tensors& tensors, const AttentionGraph& of) {
    const Tensor q = tensors.query("query", Operand::query), k = tensors.key("key", Operand::key), v = tensors.key("value", Operand::value);
    auto attributes = common<fe::graph::SDPA_attributes>(of, tensors);
    attributes.set_name("attention").set_generate_stats(true);
    const auto [out, statistics] = graph.sdpa(q, k, v, attributes);
    tensors.query_result(out, "out", Operand::out);
    tensors.statistics_result(statistics);
}

void backward(fe::graph::Graph& graph, Tensors& tensors, const AttentionGraph& of) {
    const Tensor q = tensors.query("query", Operand::query), k = tensors.key("key", Operand::key), v = tensors.key("value", Operand::value);
    const Tensor out = tensors.query("out", Operand::out), dout = tensors.query("gradient of out", Operand::out_gradient);
    auto attributes = common<fe::graph::SDPA_backward_attributes>(of, tensors);
    attributes.set_name("attention, backward")
        .set_deterministic_algorithm(true)
        .set_max_total_seq_len_q(of.rows)
        .set_max_total_seq_len_kv(of.rows);
    const auto [dq, dk, dv] = graph.sdpa_backward(q, k, v, out, dout, tensors.statistics(), attributes);
    tensors.query_result(dq, "gradient of query", Operand::query_gradient);
    tensors.key_result(dk, "gradient of key", Operand::key_gradient);
    tensors.key_result(dv, "gradient of value", Operand::value_gradient);
}

}  // namespace

void describe_attention(fe::graph::Graph& graph, const AttentionGraph& of) {
    graph.set_io_data_type(of.type == DType::bf16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    Tensors tensors(graph, of);
    if (of.backward)
        backward(graph, tensors, of);
    else
        forward(graph, tensors, of);
}

}  // namespace sherd::cuda
