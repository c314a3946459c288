// uniform: every layer and kv head keeps as many slots.
#include "policy/registry.h"

namespace vlcache {
namespace {

class Uniform final : public BudgetAllocator {
 public:
  std::string_view name() const override { return "uniform"; }
  SlotBudget allocate(const PlanInputs& in, int32_t n_slots) const override {
    SlotBudget budget;
    for (int32_t layer = 0; layer < in.slots.n_layers(); ++layer) {
      budget.emplace_back(static_cast<size_t>(in.slots.n_kv_heads(layer)), n_slots);
    }
    return budget;
  }
};

}  // namespace

std::unique_ptr<const BudgetAllocator> make_uniform(Parameters&) { return std::make_unique<Uniform>(); }

}  // namespace vlcache
