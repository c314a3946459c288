// uniform: the same number of slots in every layer and kv head.
#include "policy/registry.h"

namespace vlcache {
namespace {

class Uniform final : public BudgetAllocator {
 public:
  SlotCounts allocate(const AllocateInputs& in) const override {
    return deal_to_layers(in, std::vector<double>(in.most.size(), 1.0));
  }
};

}  // namespace

std::unique_ptr<const BudgetAllocator> make_uniform(Parameters&) { return std::make_unique<Uniform>(); }

}  // namespace vlcache
