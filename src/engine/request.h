// Request states what is computed of a prompt, and how; GenerateResult is what has come of it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/contracts/token_constraint.h"
#include "base/error.h"
#include "base/kv_codec_name.h"
#include "engine/prompt/prompt.h"
#include "engine/sampling/sampler.h"
#include "engine/sampling/token_filter.h"
#include "engine/sequence/kept_image_tokens.h"
#include "reuse/choose/reuse_chooser.h"
#include "reuse/image/image_kv_form.h"

namespace vlcache {

class Engine;
class Sequence;
struct AnsweredPrompt;
struct GeneratedToken;

struct GenerateOptions {
  SamplingParams sampling;
  TokenRules rules;          // tokens that are never drawn
  int32_t max_tokens = 256;  // beside Request::given. 0: the prompt is computed, nothing is generated
  int32_t min_tokens = 0;    // no end token or stop text ends the generation before this many; max_tokens does
  bool ignore_eos = false;
  std::vector<std::string> stop;        // the text ends before the first of these
  std::vector<int32_t> stop_tokens;     // end the generation besides the model's own
  std::vector<int32_t> allowed_tokens;  // the answer consists of these alone; empty: of any
  // The text. Special tokens that end the model's turns are never a part of it.
  bool skip_special_tokens = true;     // special tokens are left out, except ...
  std::vector<int32_t> shown_tokens;   // ... these
  bool spaces_between_special = true;  // as StreamDecoder has it
  bool include_stop = false;           // the stop text or the request's stop token that ends the answer belongs to it
};

// How far a request is on the way to its first token.
struct PromptProgress {
  // Of all that is computed before: the encoder's layers, the prompt's, the policy's draft. 0 to 1; never falls; 1 at
  // the first token alone. KV and images found in caches are no work.
  double share = 0;
  std::optional<double> seconds_left;  // none: not known yet
  bool waiting = false;                // in the queue: other requests are computed first
  int32_t n_done = 0, n_total = 0;     // prompt tokens, n_cached of them found in a cache; n_done never falls
  int32_t n_cached = 0;
  double ms = 0;  // since it began to compute, without waiting
};

// All optional. Called from the thread that drives the scheduler.
struct GenerateCallbacks {
  std::function<void(std::string_view text)> on_text;               // complete UTF-8, in order
  std::function<void(const GeneratedToken& token)> on_token;        // before the text that it completes
  std::function<void(int32_t n_done, int32_t n_total)> on_prefill;  // prompt tokens
  // Until the first token: after every layer of the encoder and of a step, and before every step while it waits. An
  // error that it throws ends the request.
  std::function<void(const PromptProgress& progress)> on_progress;
  std::function<bool()> cancelled;  // asked before every step
  // Chooses the next token instead of the sampler: of a given text, or random ones for timing. logits [vocab] may be
  // changed.
  std::function<int32_t(std::span<float> logits)> choose;
  // Logits of every prompt row as it is computed: [n, vocab] f32, of tokens first, first + 1, ...
  std::function<void(int32_t first, const Tensor& logits)> on_logits;
  // Logits [1, vocab] f32 from which token i of Request::given would have been drawn.
  std::function<void(size_t i, const Tensor& logits)> on_given;
  // With ReuseOptions::compared, of a complete answer to a prompt with an image that was, or could have been, reused.
  std::function<void(AnsweredPrompt answered)> on_answered;
};

// The prompt that computes the KV of an image that other prompts reuse.
enum class ReuseOrigin : uint8_t {
  kFirst,    // the first that computes it exactly; for an image that never was, from its second use on, kNeutral
  kNeutral,  // always one of its own: the start token, then the image. Answers do not depend on earlier prompts
};

// A request that repeats an answered one to compare ways of computing it (reuse_shadows.h): no cache and no count shows
// that it ran. It takes what is in memory alone.
struct Shadow {
  std::vector<size_t> images;  // of the prompt: those that may be reused
};

// An image whose KV a request had reused before it was preempted.
struct ReusedBefore {
  size_t image = 0;                     // of the prompt
  std::optional<Sha256Digest> similar;  // the image whose KV it was, if it was another one
};

// What is taken from caches instead of being computed again.
struct ReuseOptions {
  bool encoder = true;              // images' embeddings are taken from the cache
  bool prefix = false;              // so is the KV of the longest cached prefix
  int32_t prefix_most = INT32_MAX;  // of which no more tokens than this are taken
  bool keep_exact = false;          // a prompt's KV is also cached as it was before a policy compressed it
  ReuseChooserPtr chooser;          // selects what is recomputed of an image whose KV is cached; null: all of it
  std::string why_exact;            // for reports: why there is no chooser; "": none was measured or requested
  bool required = false;            // an error if the chooser cannot be used
  bool one_image_only = false;      // the chooser was measured for prompts with one image, and is used for no others
  ReuseOrigin origin = ReuseOrigin::kFirst;
  // With `chooser`: an image of which no KV is cached takes that of a similar one (SimilarImageIndex), once.
  bool similar = false;
  // Of an image that is repeated by itself (RepeatedImage): the tokens to keep; empty until they are chosen. Shared by
  // the policy that chooses and the recording that waits for it.
  std::shared_ptr<KeptTokens> kept_tokens;
  // Without `chooser`: the one that is being measured. Images are computed, and recorded in memory as if it was used.
  ReuseChooserPtr measured;
  bool compared = false;  // callbacks.on_answered is to get the answer
  std::optional<Shadow> shadow;
  // Set when the request is preempted: what was reused of its images. They are reused again, if their KV is still
  // there; the others are computed again, although their KV may be known by now.
  std::optional<std::vector<ReusedBefore>> resumed;
};

// What the request had reused of an image before it was preempted; null: nothing, or it was not preempted.
const ReusedBefore* reused_before(const ReuseOptions& options, size_t image);

struct Request {
  Prompt prompt;
  // The caller's, which keeps it and may continue it; it has taken the prompt already (continue_with). Null: the
  // scheduler creates one, with `policy`, and destroys it when the request ends.
  Sequence* sequence = nullptr;
  PolicyPtr policy;
  std::optional<KvCodec> kv_codec;  // without `sequence`; none: default_codec()
  ReuseOptions reuse;
  std::optional<Clock::time_point> asked_at;  // when its client began to wait; none: when the scheduler takes it
  int32_t priority = 0;                       // higher ones are admitted first, and preempt lower ones
  // Tokens with which the answer begins, whatever their logits: of a text that is scored as an answer. They are
  // computed like an answer's, one by one, after the policy has acted; the result counts them as the prompt's.
  std::vector<int32_t> given;
  GenerateOptions options;
  bool report_kept = false;  // KvReport::images
  GenerateCallbacks callbacks;
  // Restricts the tokens of the answer; null: not. Not with callbacks.choose.
  std::unique_ptr<TokenConstraint> constraint;
};

// What it takes to compute an answered request again.
struct AnsweredPrompt {
  Prompt prompt;
  PolicyPtr policy;
  KvCodec kv_codec = KvCodec::kBF16;
  ReuseOptions reuse;  // `shadow` is set; `chooser` is the one to compare with full computation
  std::vector<int32_t> answer;
};

struct Timings {
  double load_ms = 0;
  double vision_ms = 0;   // encoder and projector
  double prefill_ms = 0;  // prompt tokens through the decoder
  double queue_ms = 0;    // from Request::asked_at to when the scheduler took it
  double read_ms = 0;     // of queue_ms: until the server had read the request and decoded its images
  double ttft_ms = 0;     // from the request to its first token: queue, vision, waiting and prefill
  // Time of the policy: statistics (part of prefill_ms), lookahead, scores, compaction and freeing memory.
  double compress_ms = 0;
  double decode_ms = 0;  // from the first token to the last
  // Between the two tokens of the answer between which the policy acted; 0: it acted before the first, or not.
  double gap_ms = 0;
};

// How often a request was preempted, and what became of its answer so far when it was resumed: its tokens are computed
// again in the way in which they were generated, and are neither drawn nor sent again.
struct Preemptions {
  int32_t n_times = 0;
  int32_t n_replayed = 0;  // tokens, all times together
  // Of the tokens that were drawn at temperature 0 from logits that nothing changes, and replayed one by one: those
  // that are not the likeliest any more. 0 in f32; in bf16 sums are rounded otherwise where steps have other rows.
  int32_t n_different = 0;
};

struct KvReport {
  std::string mode;
  KvCodec codec = KvCodec::kBF16;             // that full pages have in the end
  int64_t bytes = 0;                          // pages held at the end
  std::map<KvCodec, int64_t> bytes_by_codec;  // these pages, by their form
  int64_t coded_bytes_read = 0;               // by attention (KvCache::coded_bytes_read)
  KvReads reads;                              // likewise, of all pages, and what sharing saved (Sequence::kv_reads)
  int64_t prompt_bytes = 0;                   // pages and tables after the prompt, once the policy has acted
  // Tokens of the answer that were computed before the policy acted; -1: the answer ended before that. 0 also for
  // policies that never act.
  int32_t n_before_acting = 0;
  int32_t acts_after_tokens = 0;  // Policy::acts_after_tokens
  int64_t peak_bytes = 0;
  std::vector<std::vector<int32_t>> slots;  // [layer][kv head]
  std::vector<KeptImage> images;            // if requested: what is left of them at the end
};

// The source of a prompt's KV.
struct CacheReport {
  struct Image {
    enum class Source : uint8_t { kComputed, kPrefix, kRam, kTier };
    enum class Encoder : uint8_t { kSkipped, kHit, kComputed };
    Sha256Digest key{};
    int32_t n_tokens = 0;
    // Time, rows and columns of its patches, where the model takes images of any size; else zeros.
    std::array<int64_t, 3> grid{};
    int32_t n_frames = 1;               // above 1: it is a unit of a video, of so many frames
    int32_t video = -1;                 // of which video of the prompt
    int64_t n_dropped = 0;              // tokens of it that its setting leaves out before the encoder
    Source source = Source::kComputed;  // of its KV, or of most of it
    double n_recomputed = 0;            // tokens, mean over the layers; those of an origin request among them
    Encoder encoder = Encoder::kSkipped;
    std::string reason;                   // why its KV was computed, or is not cached
    bool reusable = false;                // it was computed only because ReuseOptions::measured is not permitted yet
    std::string tier;                     // of kTier: "disk"
    std::string form;                     // if it is loaded: ImageKvForm::name
    int32_t n_kept = 0;                   // likewise: its tokens that every layer has, except recomputed ones
    std::optional<Sha256Digest> similar;  // the image whose KV is loaded, if it is another one
    int32_t n_changed = 0;                // then: tokens that differ from it or lie around such, all of them recomputed

    bool loaded() const { return source == Source::kRam || source == Source::kTier; }
  };
  int32_t n_prefix_tokens = 0;                    // whose KV was cached
  std::string prefix_reason;                      // why they were not more
  std::map<std::string, int32_t> prefix_sources;  // of them, those that came from each tier; memory had the rest
  double saved_ms = 0;                            // what computing them would have taken; 0: not known
  std::vector<Image> images;

  // Tokens that were not computed, mean over the layers.
  double n_loaded() const;
  // Images, units of videos among them, that passed through the encoder: equal ones do once.
  int64_t n_encoded() const;
};

struct GeneratedToken {
  int32_t id = 0;
  float logprob = 0;
  std::vector<TokenLogprob> top;
};

enum class FinishReason : uint8_t { kStop, kLength, kCancelled, kError };
std::string name(FinishReason reason);  // "stop", "length", "cancelled", "error"

struct GenerateResult {
  std::string text;                    // with the special tokens that the options show
  std::vector<GeneratedToken> tokens;  // the stop token included
  bool has_logprobs = false;           // they were requested
  FinishReason finish_reason = FinishReason::kStop;
  std::string stopped_by;      // the string of options.stop that ended it; empty: none
  std::optional<Error> error;  // what went wrong; all else is as far as the request came
  int32_t n_prompt = 0;
  int32_t n_vision = 0;
  Timings timings;
  Preemptions preemptions;
  KvReport kv;
  CacheReport cache;
};

// A prompt of n_tokens where max_tokens fit.
class PromptTooLong : public Error {
 public:
  PromptTooLong(const std::string& message, int64_t n_tokens, int64_t max_tokens)
      : Error(ErrorCode::kInput, message), n_tokens_(n_tokens), max_tokens_(max_tokens) {}
  int64_t n_tokens() const { return n_tokens_; }
  int64_t max_tokens() const { return max_tokens_; }

 private:
  int64_t n_tokens_, max_tokens_;
};

// Throws PromptTooLong unless the prompt, which takes n_positions, leaves room for one token (for none with max_tokens
// 0) in the model's context and in the policy's capacity.
void check_prompt_fits(const Engine& engine, const Policy& policy, const PromptExtent& prompt, int32_t max_tokens);

}  // namespace vlcache
