// PolicyHooks captures what a policy requests of a sequence's steps: attention of its prompt, scores of decoded tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/hooks/cache_slots.h"
#include "engine/hooks/capture_hooks.h"

namespace vlcache {

class PolicyHooks final : public LayerHooks {
 public:
  // All must outlive the hooks.
  PolicyHooks(Backend& backend, const Policy& policy, const PromptShape& prompt, CacheSlots& slots);

  bool wants_scores(int layer, int32_t seq) const override;
  bool after_attention(int layer, const Observed& observed, std::vector<int32_t>& keep) override;

  // False: there is nothing to capture. The prompt's attention is captured until end_prompt(), scores from then on.
  bool active() const { return in_prompt_ ? !capture_hooks_.empty() : policy_.wants_scores(); }
  bool needs_all_rows() const;
  bool needs_whole_prompt() const;
  // The lookahead to compute after n_prompt tokens; begin() starts one part of it.
  std::vector<Lookahead> list_lookaheads(int32_t n_prompt, const ReplayText& text) {
    return vlcache::list_lookaheads(captures_, n_prompt, text);
  }
  void begin(const Lookahead& lookahead);
  std::span<const Capture* const> captures() const { return capture_pointers_; }
  double watch_ms() const { return watch_ms_; }  // of the prompt; that of lookahead tokens is part of their time
  void end_prompt();

 private:
  // Running sums of a layer after a token was added to them. When its step fails and is repeated, they are not added a
  // second time, and the token's own slot gets its earlier values back.
  struct Scored {
    int32_t token = -1;
    std::vector<float> own;  // [n_kv_heads, n_planes]
  };
  void add_scores(int layer, const Observed& observed);

  const Policy& policy_;
  CacheSlots& slots_;
  int32_t n_prompt_;
  std::vector<Capture> captures_;  // one for each of the policy's needs
  std::vector<const Capture*> capture_pointers_;
  std::vector<CaptureHooks> capture_hooks_;
  bool in_prompt_ = true, looking_ahead_ = false;
  double watch_ms_ = 0;
  std::vector<Scored> scored_;  // [n_layers]
  std::vector<float> scratch_;
};

}  // namespace vlcache
