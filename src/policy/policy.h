// Policy: how a sequence keeps its KV. One value per way of keeping it, shared by the sequences that use it; it holds
// no state of theirs: running sums live in planes of the cache. The engine asks it and acts; nothing else branches on
// it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/capture.h"
#include "base/kv.h"
#include "base/layer_hooks.h"
#include "base/token_info.h"

namespace vlcache {

// A prompt before it is computed.
struct PromptShape {
  int32_t n_tokens = 0;
  int32_t n_vision = 0;
  int32_t n_after_vision = 0;  // tokens behind the last vision token; all of them if there is none
};

// A picture's tokens before the language model sees them, and what the encoder's class token attends to.
struct ImageTokens {
  static constexpr int32_t kNewline = -1;
  int32_t n_tiles = 1;
  int32_t overview = -1;      // the tile that shows all of a picture that was split
  std::vector<int32_t> tile;  // [n_tokens] that a token was computed from; kNewline: ends the line of tokens before it
  std::vector<int32_t>
      larger;  // [n_tokens] of the overview's: the tile that shows its middle larger; else, or none: -1
  std::vector<std::vector<float>> attention;  // [vision_layers()][n_tokens] added up over heads; 0 of newlines
  int32_t n_tokens() const { return static_cast<int32_t>(tile.size()); }
};

// The slots of a sequence as its cache holds them, per (layer, kv head).
class PolicySlots {
 public:
  virtual ~PolicySlots() = default;
  virtual int32_t n_layers() const = 0;
  virtual int32_t n_kv_heads(int32_t layer) const = 0;  // 0: the layer has no KV of its own
  // [n_slots], ascending positions. A token is an index in the sequence, negative for a merged slot.
  virtual std::span<const int32_t> tokens(int32_t layer, int32_t head) const = 0;
  virtual std::span<const int32_t> positions(int32_t layer, int32_t head) const = 0;
  // [n_slots], -inf for a hidden slot; empty: all 0.
  virtual std::span<const float> bias(int32_t layer, int32_t head) const = 0;
  // > 0: queries of the layer see positions > their own - window only.
  virtual int32_t window(int32_t layer) const = 0;
  // Of a page, which holds kPageSlots slots of one head.
  virtual int64_t page_bytes(int32_t layer) const = 0;
  // K and V of all slots of a head: k, v [n_slots, head_dim] f32, rotated keys; either may be empty.
  virtual int32_t head_dim(int32_t layer) const = 0;
  virtual void read(int32_t layer, int32_t head, const Tensor& k, const Tensor& v) const = 0;
  // Slots that are not hidden; and how many there were when the prompt was complete (0 before): what the answer adds
  // comes on top, unless a rule takes others away.
  virtual int32_t n_visible(int32_t layer, int32_t head) const = 0;
  virtual int32_t n_behind_prompt(int32_t layer, int32_t head) const = 0;
  // [n_slots] running sums, as many planes as the policy asked for.
  virtual std::span<float> plane(int32_t layer, int32_t head, int32_t i) = 0;
  // Nobody attends to the slot any more; its memory is given back with a page's worth of others.
  virtual void hide(int32_t layer, int32_t head, int32_t slot) = 0;
};

// What a plan is made from, once the whole prompt is computed.
struct PlanInputs {
  const PolicySlots& slots;
  std::span<const TokenInfo> tokens;  // of the sequence
  PromptShape prompt;
  std::span<const Capture* const> captures;  // [needs().size()]
  int32_t first = 0;  // the first token that this request computes; those before it an earlier prompt has left
};

// A step that has been computed.
struct StepInfo {
  int32_t n_tokens = 0;                 // of the sequence that have been computed or loaded
  int32_t last_position = 0;            // the largest among them
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

// Drops tokens of a prompt between the layers. Such a prompt goes layer by layer: all its rows through a layer before
// any of them goes further.
class RowDropper {
 public:
  virtual ~RowDropper() = default;
  // [n_layers] How many of the tokens from in.first on each layer computes: the first layer all of them, none more than
  // the one before, none less than one. Asked before the first of them is computed. Throws Error(kInput) for a budget
  // that cannot be met.
  virtual std::vector<int32_t> rows_per_layer(const PlanInputs& in) const = 0;
  // Which n_rows of `rows`, the tokens that `layer` has computed, go on to the next; both ascend, and the prompt's last
  // token is in both.
  virtual std::vector<int32_t> rows_behind(const PlanInputs& in, int32_t layer, std::span<const int32_t> rows,
                                           int32_t n_rows) const = 0;
};

class Policy {
 public:
  virtual ~Policy() = default;
  // As resolved, with its parts: "full", "snapkv:w=16+uniform".
  virtual std::string name() const = 0;

  // False: nothing is kept between steps, each computes the whole sequence anew, or only its last recompute_window()
  // tokens (> 0), numbered from 0 as if there had been no others.
  virtual bool keeps_kv() const { return true; }
  virtual int32_t recompute_window(const PromptShape& prompt) const {
    static_cast<void>(prompt);
    return 0;
  }
  // How many tokens of a prompt the language model is to see; may be all.
  virtual int32_t n_seen(const PromptShape& prompt) const { return prompt.n_tokens; }
  // Layers of the vision encoder whose class token says which image tokens the language model sees (negative: from the
  // last that is computed); empty: it sees all.
  virtual std::vector<int32_t> vision_layers() const { return {}; }
  // The tokens of each image that stay, ascending. `prompt` is the whole prompt, of whose image tokens `images` are
  // those to choose from; of the others n_earlier stay, chosen in an earlier turn. Throws Error(kInput) where the
  // budget is too small.
  virtual std::vector<std::vector<int32_t>> select(std::span<const ImageTokens> images, const PromptShape& prompt,
                                                   int32_t n_earlier) const {
    static_cast<void>(images), static_cast<void>(prompt), static_cast<void>(n_earlier);
    return {};
  }
  // Whether a prompt is computed as it would be without a policy: every token of it, through all layers, seeing all
  // before it. What the policy evicts, it evicts behind that.
  bool computes_as_full() const {
    return keeps_kv() && vision_layers().empty() && row_dropper() == nullptr && pattern() == AttentionPattern{};
  }
  // Slots per head, reserved when a sequence starts; 0: it grows; -1: as many as the model's context.
  virtual int64_t capacity() const { return 0; }
  virtual AttentionPattern pattern() const { return {}; }
  // Whether it may take KV away again, behind the prompt or later.
  virtual bool evicts() const { return true; }
  // Throws Error(kInput) where it was made for a model of another shape. `slots` may be empty.
  virtual void check_fits(const PolicySlots& slots) const { static_cast<void>(slots); }
  // What `plan` wants to know of the prompt's attention: a pass over it for each.
  virtual std::vector<CaptureRequest> needs(const PromptShape& prompt) const {
    static_cast<void>(prompt);
    return {};
  }
  // Behind the last prompt token: fills `plan` (empty when called) and returns true when something is to go.
  virtual bool plan(const PlanInputs& in, KeepPlan& plan) const {
    static_cast<void>(in), static_cast<void>(plan);
    return false;
  }

  // Not null: tokens of the prompt leave the model between its layers.
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
  // Behind on_step, for rules that join slots to one: as `plan`.
  virtual bool plan_step(const StepInfo& step, const PolicySlots& slots, KeepPlan& plan) const {
    static_cast<void>(step), static_cast<void>(slots), static_cast<void>(plan);
    return false;
  }
};

using PolicyPtr = std::shared_ptr<const Policy>;  // shared by all sequences that keep their KV so

}  // namespace vlcache
