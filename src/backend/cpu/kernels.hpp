#pragma once
/// The operations of the CPU as plain functions: backend.hpp says what each does. They run in the calling thread's OpenMP team.
#include "sherd/backend/backend.hpp"

namespace sherd::cpu {

/// How bf16 is multiplied: by the CPU's own instructions, or converted to fp32 first.
enum class Bf16Products { native, converted };

// elementwise.cpp
void cast(Tensor to, Tensor from);
void add(Tensor y, Tensor x, bool accumulate);
void rope(Tensor x, std::int64_t heads, const float* cosine, const float* sine, const std::int32_t* positions, bool inverse);
void swiglu_forward(Tensor out, Tensor gate, Tensor up);
void swiglu_backward(Tensor gate, Tensor up, Tensor dout);

// optimizer.cpp
void adamw(const AdamWStep& step, float* master, float* exp_avg, float* exp_avg_sq, const float* gradient, Tensor weights, std::int64_t n);

// reduce.cpp
double sum(const float* x, std::int64_t n);
double sum_squares(const float* x, std::int64_t n);

// linear.cpp
void linear_forward(Tensor y, Tensor x, Tensor w, Tensor bias, Bf16Products products);
void linear_backward_input(Tensor dx, Tensor dy, Tensor w, bool accumulate, Bf16Products products);
void linear_backward_weight(Tensor dw, Tensor dy, Tensor x, bool accumulate, Bf16Products products);

// bias.cpp
void bias_backward(float* dbias, Tensor dy);

// embedding.cpp
void embedding_forward(Tensor y, Tensor table, const std::int32_t* ids);
void embedding_backward(Tensor dtable, Tensor dy, const std::int32_t* ids);

// norm.cpp
void rms_norm_forward(Tensor y, float* rstd, Tensor sum, Tensor x, Tensor delta, Tensor w, float epsilon);
void rms_norm_again(Tensor y, Tensor x, const float* rstd, Tensor w);
void rms_norm_backward(Tensor dx, float* dw, Tensor dy, Tensor x, const float* rstd, Tensor w, float* scratch, bool accumulate);
std::int64_t rms_norm_scratch(std::int64_t rows, std::int64_t columns);

// attention_forward.cpp, attention_backward.cpp
void attention_forward(Tensor out, float* lse, Tensor q, Tensor k, Tensor v, const Documents& documents, const AttentionShape& shape);
void attention_backward(Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out, const float* lse, Tensor q, Tensor k, Tensor v,
                        const Documents& documents, const AttentionShape& shape, float* scratch);
std::int64_t attention_scratch(std::int64_t rows, const AttentionShape& shape);

// loss.cpp
void cross_entropy(float* loss, Tensor gradient, Tensor logits, const std::int32_t* targets, float scale);

}  // namespace sherd::cpu
