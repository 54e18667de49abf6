#pragma once
/// What the model asks of whoever holds its parameters. Model code never names a rank: `sharding` implements this.
#include "sherd/backend/backend.hpp"

namespace sherd {

/// Where a product puts a gradient.
struct GradientTarget {
    Tensor tensor;    ///< fp32
    bool accumulate;  ///< added to what is there; else written over it
};

/// Parameters and gradients by unit (parameters.hpp), in the order: gather, weight..., release; gradient..., accumulate.
/// Everything is ordered on the compute stream that the store was made with.
class UnitStore {
  public:
    virtual ~UnitStore() = default;

    /// Starts bringing the unit's weights together; free where they already are. At most two units are gathered at a time, besides an
    /// outer unit (parameters.hpp).
    virtual void gather(int unit) = 0;
    /// Makes the compute stream wait for the gathered weights; weight() is valid from here to release().
    virtual void get(int unit) = 0;
    virtual void release(int unit) = 0;
    /// A parameter of a unit that get() returned: compute type, [rows, columns]; vectors have one row.
    virtual Tensor weight(int unit, int parameter) = 0;

    /// The fp32 buffer that a parameter's gradient is added to. Holds the running sum of the optimizer step, or zeros.
    virtual Tensor gradient(int unit, int parameter) = 0;
    /// The same for who can also write: without `accumulate` the buffer holds nothing, and the next product is to write all of it. That
    /// saves zeroing it and reading the zeros.
    virtual GradientTarget gradient_target(int unit, int parameter) = 0;
    /// Every gradient of this unit of this micro-step is enqueued: it may be reduced while the next unit computes.
    virtual void accumulate(int unit) = 0;
};

}  // namespace sherd
