// Policy: how a sequence keeps its KV. One object per setting, shared by the sequences that use it; it holds no state
// of theirs: running sums live in planes of the cache. The engine calls it and acts on its answers; no other code
// branches on the policy.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/contracts/capture.h"
#include "base/contracts/kv.h"
#include "base/contracts/layer_hooks.h"
#include "base/contracts/token_info.h"
#include "ops/isa.h"

namespace vlcache {

// A prompt before it is computed.
struct PromptShape {
  int32_t n_tokens = 0;
  int32_t n_vision = 0;
  int32_t n_after_vision = 0;  // tokens after the last vision token; all of them if there is none
  int32_t n_template = 0;      // first tokens, which the chat template wrote before the conversation's own
};

// An image's tokens before the language model sees them, and the attention that the encoder's class token pays them.
struct ImageTokens {
  static constexpr int32_t kNewline = -1;
  int32_t n_tiles = 1;
  int32_t overview = -1;        // the tile that shows all of an image that was split
  std::vector<int32_t> tile;    // [n_tokens] tile that a token comes from; kNewline: ends the line of tokens before it
  std::vector<int32_t> larger;  // [n_tokens] for overview tokens: the tile that shows its middle larger; else -1
  std::vector<std::vector<float>> attention;  // [vision_layers()][n_tokens] summed over heads; 0 for newlines
  int32_t n_tokens() const { return static_cast<int32_t>(tile.size()); }
};

// The cached slots of a sequence, per (layer, kv head).
class PolicySlots {
 public:
  virtual ~PolicySlots() = default;
  virtual int32_t n_layers() const = 0;
  virtual int32_t n_kv_heads(int32_t layer) const = 0;  // 0: the layer has no KV of its own
  // [n_slots], ascending. A token is an index in the sequence, negative for a merged slot, whose place is the index of
  // its first source.
  virtual std::span<const int32_t> tokens(int32_t layer, int32_t head) const = 0;
  virtual std::span<const int32_t> places(int32_t layer, int32_t head) const = 0;
  // [n_slots], -inf for a hidden slot; empty: all 0.
  virtual std::span<const float> bias(int32_t layer, int32_t head) const = 0;
  // > 0: queries of the layer see tokens > their own - window only.
  virtual int32_t window(int32_t layer) const = 0;
  // Bytes of a page, which holds kPageSlots slots of one head.
  virtual int64_t page_bytes(int32_t layer) const = 0;
  // Bytes at most of the pages of n of a head's slots after the others were evicted. Less than page_bytes() says where
  // pages have become codes.
  virtual int64_t kept_bytes(int32_t layer, int32_t head, int32_t n) const {
    static_cast<void>(head);
    return int64_t{(n + kPageSlots - 1) / kPageSlots} * page_bytes(layer);
  }
  // K and V of a head's slots, its first n: k, v [n, head_dim] f32, rotated keys; either may be empty.
  virtual int32_t head_dim(int32_t layer) const = 0;
  virtual void read(int32_t layer, int32_t head, const Tensor& k, const Tensor& v) const = 0;
  // Number of slots that later queries see: not hidden, and within the layer's window. And the number of slots that
  // were not hidden when the prompt was complete (0 before): the answer's slots come on top, unless a rule evicts
  // others.
  virtual int32_t n_visible(int32_t layer, int32_t head) const = 0;
  virtual int32_t n_visible_at_prompt_end(int32_t layer, int32_t head) const = 0;
  // [n_slots] running sums, as many planes as the policy requested.
  virtual std::span<float> plane(int32_t layer, int32_t head, int32_t i) = 0;
  // Excludes the slot from attention for good; its memory is freed together with a page's worth of others.
  virtual void hide(int32_t layer, int32_t head, int32_t slot) = 0;
};

// The inputs of a plan, once the whole prompt is computed.
struct PlanInputs {
  const PolicySlots& slots;
  std::span<const TokenInfo> tokens;  // of the sequence
  PromptShape prompt;
  std::span<const Capture* const> captures;  // [needs().size()]
  int32_t first = 0;       // the first token that this request computes; earlier ones were left by an earlier prompt
  Isa isa = Isa::kScalar;  // of the backend
};

// A step that has been computed.
struct StepInfo {
  int32_t n_tokens = 0;                 // of the sequence, computed or loaded
  int32_t n_prompt = 0;                 // tokens of the sequence that belong to its prompt
  bool in_prompt = false;               // the prompt is not complete yet
  std::span<const TokenInfo> tokens{};  // of the sequence
};

// One decoded token's attention in one layer: exp(logits - lse).
struct StepScores {
  Tensor logits;            // [H, most slots of a head] f32, -inf where not seen; undefined beyond the slots of a head
  Tensor lse;               // [H] f32
  int32_t n_generated = 0;  // tokens of the answer so far, this one included
  std::vector<float>& scratch;  // lives from step to step, so that none allocates
};

// Drops tokens of a prompt between the layers. Such a prompt is computed layer by layer: all its rows pass a layer
// before any of them enters the next.
class RowDropper {
 public:
  virtual ~RowDropper() = default;
  // [n_layers] How many of the tokens from in.first on each layer computes: the first layer all of them, no layer more
  // than the one before, none less than one. Called before the first of them is computed. Throws Error(kInput) for a
  // budget that cannot be met.
  virtual std::vector<int32_t> rows_per_layer(const PlanInputs& in) const = 0;
  // Which n_rows of `rows`, the tokens that `layer` has computed, the next layer computes; both ascend, and the
  // prompt's last token is in both.
  virtual std::vector<int32_t> rows_after(const PlanInputs& in, int32_t layer, std::span<const int32_t> rows,
                                          int32_t n_rows) const = 0;
};

class Policy {
 public:
  virtual ~Policy() = default;
  // With its parts and resolved parameters: "full", "snapkv:w=16+uniform".
  virtual std::string name() const = 0;

  // False: no KV is kept between steps; each step recomputes the whole sequence, or only its last recompute_window()
  // tokens (> 0), numbered from 0 as if they were the whole sequence.
  virtual bool keeps_kv() const { return true; }
  virtual int32_t recompute_window(const PromptShape& prompt) const {
    static_cast<void>(prompt);
    return 0;
  }
  // How many tokens of a prompt the language model sees; may be all.
  virtual int32_t n_seen(const PromptShape& prompt) const { return prompt.n_tokens; }
  // Layers of the vision encoder whose class token decides which image tokens the language model sees (negative:
  // counted from the last computed layer); empty: it sees all.
  virtual std::vector<int32_t> vision_layers() const { return {}; }
  // The tokens of each image that stay, ascending. `prompt` is the whole prompt; `images` are those of its images to
  // choose from; of the others n_earlier tokens stay, chosen in an earlier turn. Throws Error(kInput) if the budget is
  // too small.
  virtual std::vector<std::vector<int32_t>> select(std::span<const ImageTokens> images, const PromptShape& prompt,
                                                   int32_t n_earlier) const {
    static_cast<void>(images), static_cast<void>(prompt), static_cast<void>(n_earlier);
    return {};
  }
  // Whether a prompt is computed as it would be without a policy: every token, through all layers, seeing all tokens
  // before it. Eviction happens only after that.
  bool computes_as_full() const {
    return keeps_kv() && vision_layers().empty() && row_dropper() == nullptr && pattern() == AttentionPattern{};
  }
  // Slots per head, reserved when a sequence starts; 0: grows as needed; -1: as many as the model's context.
  virtual int64_t capacity() const { return 0; }
  virtual AttentionPattern pattern() const { return {}; }
  // Whether tokens are seen at other positions than their own: what a model with learned positions cannot do.
  virtual bool renumbers() const { return pattern() != AttentionPattern{}; }
  // Whether the policy may evict KV, after the prompt or later.
  virtual bool evicts() const { return true; }
  // Throws Error(kInput) if the policy was made for another model, or has too little for any prompt of this one.
  virtual void check_fits(const PolicySlots& slots) const { static_cast<void>(slots); }
  // The statistics of the prompt's attention that `plan` needs: each request costs a pass over it.
  virtual std::vector<CaptureRequest> needs(const PromptShape& prompt) const {
    static_cast<void>(prompt);
    return {};
  }
  // Tokens of the answer that are computed with the full cache before the policy acts: they are the draft that its
  // needs() name, and stay. 0: it acts before the first token, and a draft is computed for it and discarded.
  virtual int32_t acts_after_tokens() const { return 0; }
  // Called after the last prompt token: fills `plan` (empty when called) and returns true if slots are to be evicted.
  virtual bool plan(const PlanInputs& in, KeepPlan& plan) const {
    static_cast<void>(in), static_cast<void>(plan);
    return false;
  }
  // The same in parts, between which other sequences may compute: parts 0 to n_plan_parts() - 1, in order, with the
  // same inputs. The first returns whether slots are to be evicted; if not, no other is called.
  virtual int32_t n_plan_parts(const PolicySlots& slots) const {
    static_cast<void>(slots);
    return 1;
  }
  virtual bool plan_part(const PlanInputs& in, int32_t part, KeepPlan& plan) const {
    static_cast<void>(part);
    return this->plan(in, plan);
  }

  // Not null: drops tokens of the prompt between the model's layers.
  virtual const RowDropper* row_dropper() const { return nullptr; }

  // Decode rules. Planes of running sums per slot; whether on_scores is called for every layer of a decoded token, and
  // on_step after every step.
  virtual int32_t n_planes() const { return 0; }
  virtual bool wants_scores() const { return false; }
  virtual bool has_rule() const { return false; }
  virtual void on_scores(int32_t layer, const StepScores& scores, PolicySlots& slots) const {
    static_cast<void>(layer), static_cast<void>(scores), static_cast<void>(slots);
  }
  virtual void on_step(const StepInfo& step, PolicySlots& slots) const {
    static_cast<void>(step), static_cast<void>(slots);
  }
  // Called after on_step, for rules that join slots into one: like `plan`.
  virtual bool plan_step(const StepInfo& step, const PolicySlots& slots, KeepPlan& plan) const {
    static_cast<void>(step), static_cast<void>(slots), static_cast<void>(plan);
    return false;
  }
};

using PolicyPtr = std::shared_ptr<const Policy>;  // shared by all sequences with the same setting

}  // namespace vlcache
