// Generation is one request of the scheduler while it runs: its images, sampler, stop rules, timings.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "base/clock.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "engine/reuse/image_reuse.h"
#include "reuse/prefix_tree.h"

namespace vlcache {

class PrefixReuse;
class TokenStream;
class WaitingPrompt;

// size: to be split into request state, token stream and images (docs/roadmap.md, item 0).
class Generation {
 public:
  // Throws Error(kInput) for options out of range, and for a prompt that cannot be answered (check_prompt_fits).
  Generation(Engine& engine, Request request);
  ~Generation();

  Sequence* sequence() { return sequence_; }  // null before start() of a request without one
  bool done() const { return !result_.finish_reason.empty(); }
  bool has_tokens() const { return !result_.tokens.empty(); }
  // Whether the whole prompt is in the KV cache before its policy evicts anything.
  bool needs_whole_prompt() const;
  // Of a request that has not started: its view of the caches while it is queued.
  WaitingPrompt& waiting_prompt();
  // The prefix that will be cached for other requests once it is computed; empty: none, or it has been cached.
  std::span<const Element> promised();
  // Whether the tiers are still being searched for its images, at `until` at the latest; start() comes after that.
  bool awaits_search(Deadline until);
  // Creates the sequence if there is none; images that are still needed are to be encoded, or loaded. Throws Error.
  void start();
  // Requests that must be computed before this one continues, after start() and go_on_without_load(): usually none.
  // Otherwise this one waits until start() is called again.
  std::vector<Request> take_origins();
  // One of these requests has ended.
  void origin_done(const GenerateResult& origin);
  // Takes the embeddings that have been loaded; images whose load failed are to be encoded.
  void take_embeddings();
  // Whether it has images to encode, without which there is no next step.
  bool encodes() const { return !to_encode_.empty(); }
  // Continues with the first of them, for at least one step of the encoder, until it is encoded or `until`. Throws
  // Error.
  void encode(Deadline until);
  // Whether a load is under way, at `until` at the latest, without which there is no next step. A step that may stall
  // computes while images load, unless one has stalled before.
  bool awaits_load(bool may_stall, Deadline until);
  // Reserves room in the tables for the answer, so that decoding allocates nothing but pages.
  void make_room();
  // After a failed step: whether it failed for an image that could not be loaded. The request then continues without it
  // from what is computed already, or the same step is repeated once the image is loaded. Throws Error.
  bool go_on_without_load();
  // Frees all KV, except what the prefix cache keeps: the request waits until start(). Generated tokens stay.
  void preempt();
  bool cancelled() const { return request_.callbacks.cancelled && request_.callbacks.cancelled(); }

  // What the next step is to compute: at most max_rows of its pending tokens. Valid until the next call.
  StepItem next_item(int32_t max_rows);
  // To be called after a step, in this order. The step took `ms` and has computed the item; `logits` of its rows, if
  // any were requested.
  void after_step(const StepItem& item, const Tensor& logits, double ms);
  // True: the step was one of a preview, or lookahead tokens are pending, whose attention the policy needs before it
  // acts.
  bool look_ahead(const Tensor& logits);
  // The policy has acted on what the step computed, which took `ms`; `compressed`: on the prompt.
  void after_policy(bool compressed, double ms);
  // The next token, where the prompt is complete.
  void choose(const Tensor& logits);
  // Ends the request here: "cancelled", or "length" where memory runs out.
  void finish(std::string_view reason);
  void fail(const Error& error);
  const GenerateResult& result() const { return result_; }
  GenerateResult take_result() { return std::move(result_); }

 private:
  void take_images();
  void place_images();
  void place_rest();
  void charge_origins();
  void note_computed_images();
  void charge_computed_images();
  void release();
  void find_prefix();
  void keep_prefix(bool whole_pages);
  bool takes_prefix() const;
  void note_origins();
  void list_images();
  bool take_known(size_t image);
  void take_encoded(size_t image, double ms);
  void forget_encoding();
  void take_image(size_t image, std::shared_ptr<const VisionOutput> output, CacheReport::Image::Encoder encoder);
  void hand_out(std::span<const TokenRun> runs, const Tensor& logits) const;
  void choose_token(const Tensor& logits);
  void take(int32_t token);
  void emit(const std::string& text);
  void report();

  Engine& engine_;
  Request request_;
  std::unique_ptr<Sequence> own_sequence_;
  Sequence* sequence_;
  ImagesInTiers stored_;
  std::unique_ptr<WaitingPrompt> waiting_prompt_;  // null: not needed yet
  std::optional<std::vector<Element>> promised_;   // none: not needed yet
  std::vector<VisionOutput> images_;               // embeddings by image of the prompt, as far as they are needed
  std::vector<std::shared_ptr<const VisionOutput>> shared_images_;       // that lie in the cache, too
  std::vector<std::pair<size_t, KvServices::LoadedEmbeddings>> coming_;  // by image of the prompt
  std::deque<size_t> to_encode_;                                         // images of the prompt
  std::unique_ptr<Model::Encoding> encoding_;                            // of the first of them; null: not begun
  double encoding_ms_ = 0;                                               // of it, so far
  int32_t n_found_ = INT32_MAX;                                          // tokens that the prefix cache had
  bool has_stalled_ = false;             // a step waited in vain for KV that was to come
  std::unique_ptr<PrefixReuse> prefix_;  // from start() to the end
  std::vector<Request> origins_;         // to be computed before
  std::set<Sha256Digest> origins_asked_;
  std::map<Sha256Digest, CacheReport::Image> origins_done_;  // for this request
  std::map<size_t, CacheReport::Image> computed_images_;     // of the prompt, before preemption
  std::unique_ptr<ImageReuse> reuse_;                        // from start() to the prompt's end
  std::unique_ptr<TokenStream> stream_;                      // from logits to text
  std::vector<TokenRun> runs_;
  std::vector<float> prompt_logits_;  // of the prompt's last token, while lookahead tokens are computed
  double select_ms_ = 0, lookahead_ms_ = 0, policy_ms_ = 0;
  Clock::time_point begin_, first_token_;
  GenerateResult result_;
};

// Throws Error(kInput) unless the prompt, which takes n_positions, leaves room for one token (for none with max_tokens
// 0) in the model's context and in the policy's capacity.
void check_prompt_fits(const Engine& engine, const Policy& policy, int32_t n_positions, int32_t max_tokens);

}  // namespace vlcache
