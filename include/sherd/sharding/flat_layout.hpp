#pragma once
/// A model's parameters as flat units: each unit is one buffer in which every parameter starts at a multiple of 256 bytes in any type.
#include "sherd/model/parameters.hpp"
#include "sherd/tensor/interval.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace sherd {

/// Elements; 256 bytes of a 16-bit type.
inline constexpr std::int64_t flat_alignment = 128;

struct FlatParameter {
    ParameterSpec spec;
    std::int64_t begin;     ///< first element, within the unit
    std::int64_t elements;  ///< without padding
    Interval interval() const noexcept { return {begin, begin + elements}; }
};

struct FlatUnit {
    std::string name;
    std::int64_t begin;     ///< first element, within the whole model
    std::int64_t elements;  ///< with padding: a multiple of flat_alignment
    std::vector<FlatParameter> parameters;
    bool outer;  ///< around the blocks (parameters.hpp)
};

/// Where a parameter is: indices into units and parameters.
struct ParameterPlace {
    int unit, parameter;
};

class FlatLayout {
  public:
    explicit FlatLayout(const std::vector<UnitSpec>& units);
    const std::vector<FlatUnit>& units() const noexcept { return units_; }
    const FlatUnit& unit(int i) const { return units_[static_cast<std::size_t>(i)]; }
    int unit_count() const noexcept { return static_cast<int>(units_.size()); }
    /// Elements of the whole model, padding included, and without.
    std::int64_t elements() const noexcept { return elements_; }
    std::int64_t parameter_count() const noexcept { return parameters_; }
    /// Every parameter once, in unit order.
    std::vector<ParameterPlace> places() const;
    const FlatParameter& at(ParameterPlace p) const { return unit(p.unit).parameters[static_cast<std::size_t>(p.parameter)]; }

  private:
    std::vector<FlatUnit> units_;
    std::int64_t elements_ = 0, parameters_ = 0;
};

}  // namespace sherd
