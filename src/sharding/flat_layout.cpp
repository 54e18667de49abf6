#include "sherd/sharding/flat_layout.hpp"

namespace sherd {

FlatLayout::FlatLayout(const std::vector<UnitSpec>& units) {
    for (const UnitSpec& spec : units) {
        FlatUnit unit{spec.name, elements_, 0, {}, spec.outer};
        for (const ParameterSpec& p : spec.parameters) {
            unit.parameters.push_back({p, unit.elements, p.elements()});
            unit.elements += (p.elements() + flat_alignment - 1) / flat_alignment * flat_alignment;
            parameters_ += p.elements();
        }
        elements_ += unit.elements;
        units_.push_back(std::move(unit));
    }
}

std::vector<ParameterPlace> FlatLayout::places() const {
    std::vector<ParameterPlace> all;
    for (int u = 0; u < unit_count(); ++u)
        for (int p = 0; p < static_cast<int>(unit(u).parameters.size()); ++p) all.push_back({u, p});
    return all;
}

}  // namespace sherd
