#pragma once
/// This rank's interval of every unit, one after another in one block of device memory.
#include "sherd/backend/backend.hpp"
#include "sherd/tensor/interval.hpp"

#include <string>
#include <vector>

namespace sherd {

class ShardBuffer {
  public:
    ShardBuffer() = default;
    /// held: this rank's interval of each unit, in elements of the unit. Memory is zeroed on `stream`. Throws DeviceError.
    ShardBuffer(Backend& backend, Stream& stream, std::vector<Interval> held, DType dtype, const std::string& purpose);
    static std::uint64_t bytes(const std::vector<Interval>& held, DType dtype) noexcept;

    bool exists() const noexcept { return memory_.data() != nullptr; }
    DType dtype() const noexcept { return dtype_; }
    std::uint64_t bytes() const noexcept { return memory_.bytes(); }
    void* data() const noexcept { return memory_.data(); }
    Interval held(int unit) const { return held_[static_cast<std::size_t>(unit)]; }
    /// Address of an element of a unit that lies in held(unit) (or is its end).
    void* at(int unit, std::int64_t element) const;
    float* floats(int unit, std::int64_t element) const { return static_cast<float*>(at(unit, element)); }
    float* floats(int unit) const { return floats(unit, held(unit).begin); }

  private:
    std::vector<Interval> held_;
    std::vector<std::int64_t> starts_;  ///< of each unit in the block, in elements
    DType dtype_ = DType::f32;
    DeviceMemory memory_;
};

/// Whether each inner interval lies within the outer one of the same unit.
bool nested(const std::vector<Interval>& inner, const std::vector<Interval>& outer) noexcept;

}  // namespace sherd
