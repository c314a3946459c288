// window_recompute (sliding window with re-computation): every new token sees the last W tokens and nothing else,
// encoded from scratch and numbered from 0. O(T W^2); the quality reference of the streaming papers, such as
// arXiv:2309.17453. A token is computed in all layers or in none, so there is one window for the whole model. With a
// budget of the whole prompt no token leaves the window.
#include <algorithm>

#include "policy/registry.h"

namespace vlcache {
namespace {

class WindowRecompute final : public Policy {
 public:
  WindowRecompute(std::string name, int32_t window, const KvBudget& budget)
      : name_(std::move(name)), window_(window), budget_(budget) {}
  std::string name() const override { return name_; }
  bool keeps_kv() const override { return false; }
  bool renumbers() const override { return true; }

  int32_t recompute_window(const PromptShape& prompt) const override {
    if (window_ > 0) return window_;
    if (budget_.kind == KvBudget::Kind::kSlots) return static_cast<int32_t>(std::min<double>(budget_.value, INT32_MAX));
    return budget_.value < 1 ? tokens_of(budget_, prompt.n_tokens) : 0;
  }
  int32_t n_seen(const PromptShape& prompt) const override {
    const int32_t window = recompute_window(prompt);
    return window > 0 ? std::min(window, prompt.n_tokens) : prompt.n_tokens;
  }

 private:
  std::string name_;
  int32_t window_;  // 0: set by the budget
  KvBudget budget_;
};

}  // namespace

PolicyPtr make_window_recompute(Parameters& p, MethodParts parts) {
  const auto window = static_cast<int32_t>(p.integer("window", 0, 1));
  return std::make_shared<WindowRecompute>(p.resolved(), window, parts.budget.value_or(KvBudget()));
}

}  // namespace vlcache
