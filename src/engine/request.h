// A request: what is asked of a prompt, and what has come of it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/token_constraint.h"
#include "engine/prompt/prompt.h"
#include "engine/sampling/sampler.h"
#include "engine/sequence/kept_image_tokens.h"
#include "reuse/image_kv_form.h"
#include "reuse/reuse_chooser.h"

namespace vlcache {

class Sequence;
struct GeneratedToken;

struct GenerateOptions {
  SamplingParams sampling;
  int32_t max_tokens = 256;  // 0: the prompt is computed, nothing is generated
  int32_t min_tokens = 0;    // neither an end token nor a stop text ends the generation before; max_tokens does
  bool ignore_eos = false;
  std::vector<std::string> stop;      // the text ends before the first of these
  std::vector<int32_t> stop_tokens;   // end the generation besides the model's own
  std::vector<int32_t> shown_tokens;  // special tokens that are part of the text, though others are left out
};

// All optional. Called from the thread that drives the batch.
struct GenerateCallbacks {
  std::function<void(std::string_view text)> on_text;               // complete UTF-8, in order
  std::function<void(const GeneratedToken& token)> on_token;        // before the text that it completes
  std::function<void(int32_t n_done, int32_t n_total)> on_prefill;  // prompt tokens
  std::function<bool()> cancelled;                                  // asked before every step
  // Chooses the next token instead of the sampler: a text that is given, random ones for timing. logits [vocab] may be
  // changed.
  std::function<int32_t(std::span<float> logits)> choose;
  // Logits of every prompt row as it is computed: [n, vocab] f32, of tokens first, first + 1, ...
  std::function<void(int32_t first, const Tensor& logits)> on_logits;
};

// From which prompt the KV of an image is that others reuse.
enum class ReuseOrigin : uint8_t {
  kFirst,    // the first that computes it exactly; for an image that never was, from its second use on, kNeutral
  kNeutral,  // always one of its own: the start token, then the image. Answers do not depend on what was asked before
};

// Whether what has been computed before is computed again.
struct ReuseOptions {
  bool encoder = true;          // images' embeddings are taken from the cache
  bool prefix = false;          // so is the KV of what the prompt begins with
  bool keep_exact = false;      // a prompt's KV is kept for others as it was before a policy compressed it, too
  ReuseChooserPtr chooser;      // what is computed of an image whose KV is known; null: all of it
  bool required = false;        // an error where the chooser cannot be followed
  bool one_image_only = false;  // it was measured for prompts with one image, and is for no others
  ReuseOrigin origin = ReuseOrigin::kFirst;
  // Of an image that is repeated by itself (RepeatedImage): the tokens that it will keep; empty until that is known.
  // Shared by the policy that chooses and the recording that waits for it.
  std::shared_ptr<KeptTokens> kept_tokens;
};

struct Request {
  Prompt prompt;
  // The caller's, who holds on to it and may go on with it; it has taken the prompt already (continue_with). Null: the
  // batch makes one, of `policy`, and drops it when the request ends.
  Sequence* sequence = nullptr;
  PolicyPtr policy;
  ReuseOptions reuse;
  std::optional<Clock::time_point> asked_at;  // by whoever waits for it; else: when the batch takes it
  int32_t priority = 0;                       // higher ones go first, and take the places of lower ones
  GenerateOptions options;
  bool report_kept = false;  // KvReport::images
  GenerateCallbacks callbacks;
  // What the answer must keep to; null: nothing. Not where callbacks.choose chooses.
  std::unique_ptr<TokenConstraint> constraint;
};

struct Timings {
  double load_ms = 0;
  double vision_ms = 0;   // encoder and projector
  double prefill_ms = 0;  // prompt tokens through the decoder
  double queue_ms = 0;    // from Request::asked_at to when the batch took it
  double ttft_ms = 0;     // from the request to its first token: queue, vision, waiting and prefill
  // What the policy took: statistics (part of prefill_ms), what it had rehearsed, scores, compaction and giving memory
  // back.
  double compress_ms = 0;
  double decode_ms = 0;  // from the first token to the last
};

struct KvReport {
  std::string mode;
  int64_t bytes = 0;         // pages held at the end
  int64_t prompt_bytes = 0;  // pages and tables behind the prompt, once the policy has acted
  int64_t peak_bytes = 0;
  std::vector<std::vector<int32_t>> slots;  // [layer][kv head]
  std::vector<KeptImage> images;            // where it was asked for: what is left of them at the end
};

// Where a prompt's KV has come from.
struct CacheReport {
  struct Image {
    enum class Source : uint8_t { kComputed, kPrefix, kRam, kTier };
    enum class Encoder : uint8_t { kSkipped, kHit, kComputed };
    Sha256Digest key{};
    int32_t n_tokens = 0;
    Source source = Source::kComputed;  // of its KV, or of most of it
    double n_recomputed = 0;            // tokens, mean over the layers; those of a prompt of its own among them
    Encoder encoder = Encoder::kSkipped;
    std::string reason;  // why its KV was computed, or is not kept
    std::string tier;    // of kTier: "disk"
    std::string form;    // where it is loaded: ImageKvForm::name
    int32_t n_kept = 0;  // likewise: its tokens that are there in every layer, those that are computed anew apart

    bool loaded() const { return source == Source::kRam || source == Source::kTier; }
  };
  int32_t n_prefix_tokens = 0;  // whose KV was there
  std::string prefix_reason;    // why not more of it was
  std::vector<Image> images;

  // Tokens that were not computed, mean over the layers.
  double n_loaded() const;
};

struct GeneratedToken {
  int32_t id = 0;
  float logprob = 0;
  std::vector<TokenLogprob> top;
};

struct GenerateResult {
  std::string text;                    // special tokens left out
  std::vector<GeneratedToken> tokens;  // the stop token included
  bool has_logprobs = false;           // asked for
  std::string finish_reason;           // "stop", "length", "cancelled" or "error"
  std::string stopped_by;              // the string of options.stop that ended it; empty: none
  std::optional<Error> error;          // what went wrong; everything else is as far as it came
  int32_t n_prompt = 0;
  int32_t n_vision = 0;
  Timings timings;
  KvReport kv;
  CacheReport cache;
};

}  // namespace vlcache
