// Sequence holds the tokens of one conversation and the KV they have so far. Which request it serves, and what its
// logits are used for, is up to the scheduler (scheduler.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/function_ref.h"
#include "cache/kv_cache.h"
#include "engine/hooks/cache_slots.h"
#include "engine/hooks/policy_hooks.h"
#include "engine/prompt/prompt.h"
#include "engine/sequence/acting_parts.h"
#include "engine/sequence/layered_prompt.h"
#include "engine/sequence/sequence_images.h"
#include "engine/sequence/sequence_tokens.h"
#include "engine/sequence/supplied_tokens.h"

namespace vlcache {

// What a policy has done after a step.
enum class Acted : uint8_t {
  kNot,         // or no more than its rule does after every step
  kCompressed,  // the KV: the pool may have much to free (PagePools::trim)
  kUnfinished,  // it was given too little time, and continues at the next call
};

inline constexpr int32_t kPlaceDistance = 1024;

// size: seen from three sides: the scheduler asks what is next, the stepper for its KV, reuse what need not be
// computed.
class Sequence {
 public:
  Sequence(const Prompt& prompt, KvCache cache, PolicyPtr policy, const HiddenShape& hidden);
  Sequence(const Sequence&) = delete;  // hooks know its cache by address

  const Policy& policy() const { return *policy_; }
  KvCache& cache() { return cache_; }
  const KvCache& cache() const { return cache_; }
  KvCodec codec() const { return cache_.shape().full_codec(); }  // that its KV is computed under
  const PolicySlots& slots() const { return slots_; }

  // Prompt and generated; lookahead tokens, too, while they last.
  std::span<const TokenInfo> tokens() const { return tokens_.all(); }
  int32_t n_tokens() const { return tokens_.size(); }
  const PromptShape& prompt_shape() const { return prompt_; }
  TokenState state(int32_t token) const { return tokens_.state(token); }
  const SequenceImages& images() const { return images_; }
  void set_image_content(size_t image, const Sha256Digest& content) { images_.set_content(image, content); }
  // Tokens before the first pending one; those outside a window among them.
  int32_t n_done() const { return tokens_.n_done(); }
  int32_t n_pending() const { return tokens_.n_pending(); }
  bool in_prompt() const { return n_done() < prompt_.n_tokens; }
  // One more than the largest component of a position so far: what the context limit counts.
  int32_t next_position() const { return tokens_.next_position(); }
  // Slots per head that later tokens see: not hidden, and within the layer's window.
  int32_t n_visible(int32_t layer, int32_t head) const { return cache_.n_visible(layer, head); }

  // Reserves room for what is pending and n_more tokens: growing up to there allocates nothing but pages.
  void reserve(int32_t n_more);
  void add_token(int32_t id, TokenClass token_class = TokenClass::kOther);
  // Takes a new prompt and keeps the KV of the tokens that both begin with (same tokens, same images); the rest is
  // pending. Returns how many were kept. A cache that evicted something is kept only if the whole old sequence is a
  // prefix of the new one.
  int32_t continue_with(const Prompt& prompt);
  // Removes every token from index n on.
  void rewind(int32_t n);
  // Frees all KV; every token that is not loaded is pending again.
  void release();  // undoes the policy's actions, too: it acts again after the prompt
  // Whether release() loses nothing that computing the tokens again would not give: false where an earlier turn's KV
  // may have been evicted or supplied, and for a fork under a policy that evicts.
  bool recomputable() const { return recomputable_; }
  // The caller has filled the cache with K and V of the first n tokens itself; those of them from n_exact on were
  // computed after something that was supplied or evicted.
  void assume_computed(int32_t n, int32_t n_exact = INT32_MAX);
  // The same for tokens that the sequence does not have, n of them with the ones it has: their pages are there, and
  // `source` fills them before the first step that reads them: [1, n_codes) as codes (KvCache::append_coming). Throws
  // Error(kOutOfPages): nothing has changed.
  void assume_coming(int32_t n, int32_t n_codes, PageSource& source);
  // All of them are filled, or released.
  void forget_page_source() { page_source_ = nullptr; }
  // `source` supplies these pending tokens from now on. The last token cannot be among them: its logits are needed. The
  // source must outlive the sequence's use. Those of `entering` (ascending, among `tokens`) are computed in the first
  // layers nevertheless, until the step's hooks drop them.
  void supply(std::span<const TokenRun> tokens, SlotSource& source, std::span<const TokenRun> entering = {});
  // The source is no longer needed: to be called after a prompt that has been computed. Before the prompt's end,
  // everything from the first token that was to be supplied is pending again.
  void forget_source();
  // The same at any time: the rest of the prompt is computed again, or supplied by the next source.
  void take_back_supplied();
  // Whether the next token is computed as it would be in a prompt by itself: no token before it was evicted, or
  // supplied by a source.
  bool exact() const { return n_exact_ >= n_done() && complete(); }
  // Whether every computed token has its slot in every layer and head.
  bool complete() const { return cache_.complete(n_done()); }

  // Where KvShape::has_places(): keeps the pages that other prompts need to continue after this prompt, after its last
  // image, or after its other images (at least kPlaceDistance tokens apart, and eight windows); `regular`: and after
  // regular places (KvCache::keep_regular_places).
  void keep_places(bool regular);

  // Asks a policy that drops tokens between the layers how many tokens each layer is to compute. Throws Error(kInput)
  // if the policy's budget cannot be met. next_runs() does so, too.
  void start_prompt();
  // The next pending tokens, at most max_rows of them, as runs; never tokens on both sides of a position where a policy
  // acts, or of the prompt's end. Of a prompt that is computed layer by layer: the tokens that the returned layers
  // compute next, whose hidden states stay here.
  StepLayers next_runs(int32_t max_rows, std::vector<TokenRun>& runs);
  // The share of all layers that the next step computes.
  double next_share_of_layers() const { return layered_ == nullptr ? 1.0 : layered_->share_of_layers(); }
  // Of the prompt, for showing progress: tokens before the first pending one, or the equivalent number by layers done.
  int32_t n_prefilled() const;
  // Of the prompt, without lookahead tokens: tokens that are left to compute, mean over the layers.
  double n_prompt_left() const;

  // To be called after every step, before apply_policy(). True: lookahead tokens (lookahead.h) are pending after
  // the position where the policy acts; it needs their attention first, and the rest of the prompt waits. They are
  // computed like any others, and discarded when no more of them follow; then the result is false. `likeliest`: the
  // token that follows the last one in a draft, negative where that ends.
  bool look_ahead(FunctionRef<int32_t()> likeliest);
  bool looks_ahead() const { return lookahead_.active; }
  // Discards the current lookahead tokens, as if they had not begun.
  void discard_lookahead();
  // Whether the embeddings of all the prompt's images will be needed, also of those that have been computed.
  bool replays_prompt() const;

  // A sequence with the same tokens and KV, whose pages are shared, that keeps what `plan` states of them and continues
  // with `policy`, which counts as having acted. All tokens must have been computed; nothing is written through this
  // one.
  std::unique_ptr<Sequence> fork(PolicyPtr policy, const KeepPlan& plan) const;

  // Lets the policy act on what has been computed, once it has seen all lookahead tokens: its plan after the prompt (or
  // after the answer's first tokens, Policy::acts_after_tokens), its rule after every step. A plan is made in parts,
  // at least one and no more than are likely to end by `until`; nothing may be computed or added until it is finished.
  // Throws Error(kOutOfPages) if shared pages cannot be copied: what was decided is kept, and the next call goes on
  // with carrying it out.
  Acted apply_policy(Clock::time_point until = Clock::time_point::max());
  // The prompt is computed, and the policy acts once the answer has more tokens.
  bool acts_later() const { return !in_prompt() && !acting_.done() && policy_->acts_after_tokens() > 0; }
  // The answer has ended: a policy that acts_later() acts now, on as many of its tokens as are computed. Throws as
  // apply_policy() does.
  Acted end_answer();

  // ---- for the stepper --------------------------------------------------------------------------------------------
  // The policy's hooks for the next step; null: none. Throws Error(kInput) if what they need is not available:
  // attention of prompt tokens that this sequence does not compute.
  LayerHooks* policy_hooks(Backend& backend);
  void begin_step() noexcept;
  void rollback_step() noexcept;
  // Keeps views of a layer valid while n_rows rows, in several runs, are appended to it.
  void make_room(int32_t n_rows);
  // These tokens have gone through their step; last_layer: and so through all layers.
  void finish_step(std::span<const TokenRun> runs, bool last_layer);
  // Room in `layer` for the K and V of a run of tokens after the slots of loaded tokens before it, which are supplied
  // here. `lengths` [n_kv_heads] becomes the view's.
  KvView append(int32_t layer, std::span<const int32_t> run, int32_t* lengths);
  bool supplies(int32_t after, int32_t before) const;

  int64_t peak_kv_bytes() const { return peak_kv_bytes_; }
  int64_t coded_bytes_read() const { return cache_.coded_bytes_read() - coded_bytes_read_before_; }  // for this prompt
  // By attention for this prompt, in all layers and steps.
  const KvReads& kv_reads() const { return kv_reads_; }
  void add_kv_reads(const KvReads& reads) { kv_reads_ += reads; }
  // Time spent on capturing this prompt's attention for the policy.
  double watch_ms() const { return watch_ms_; }

 private:
  // Tokens computed for the policy before it acts, and the rest of the prompt meanwhile.
  struct LookaheadState {
    std::vector<Lookahead> all;  // needed at this position
    size_t n_done = 0;           // of them
    bool active = false;         // the next of them is under way
    SequenceTokens::Tail tail;   // after the position where the policy acts
    ReplayText text;
  };

  Sequence(const Sequence& other, PolicyPtr policy);
  // A plan that is made in parts.
  struct PlanState {
    KeepPlan plan;
    int32_t n_parts_done = 0;
    bool complete = false;  // what is left is to compact the cache by it
  };
  // What the rule has decided after a step, until it is carried out.
  struct RuleState {
    std::optional<KeepPlan> plan;  // none: hidden slots are swept
    Acted before;                  // what the plan after the prompt has done in the same step
  };

  PlanInputs plan_inputs(int32_t first, const PolicySlots& slots) const;
  int32_t acts_at() const;
  void drop_rows();
  Acted act_after_prompt(Clock::time_point until);
  bool make_plan(PlanState& state, Clock::time_point until, bool& evicts);
  Acted carry_out_rule();
  void slide_window();
  void reset_hooks();
  void list_lookaheads();
  void forget_kv_after(int32_t n);
  void begin_lookahead();
  void repeat(int32_t begin, int32_t end);

  KvCache cache_;
  PolicyPtr policy_;
  CacheSlots slots_;
  PromptShape prompt_;
  SequenceTokens tokens_;
  SequenceImages images_;
  ActingParts acting_;
  LookaheadState lookahead_;
  std::optional<PlanState> plan_;      // the policy is acting
  std::optional<RuleState> rule_;      // decided, not carried out
  PageSource* page_source_ = nullptr;  // of pages that are not filled yet; null: all are
  SuppliedTokens supplied_;
  int32_t n_exact_ = INT32_MAX;  // tokens before the first that was ever supplied
  std::unique_ptr<PolicyHooks> hooks_;
  HiddenShape hidden_;
  int32_t first_ = -1;                      // the first token that this prompt computes; -1: not known yet
  std::unique_ptr<LayeredPrompt> layered_;  // null: every token goes through all layers at once
  std::vector<int32_t> next_token_;         // [n_layers] one past the last token with slots in the layer
  std::vector<int32_t> next_token_before_;  // this step
  std::vector<float> biases_;               // of an append
  bool recomputable_ = true;
  int64_t peak_kv_bytes_ = 0, coded_bytes_read_before_ = 0;
  KvReads kv_reads_;
  double watch_ms_ = 0;
};

}  // namespace vlcache
