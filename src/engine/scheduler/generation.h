// Generation is one request from its arrival to its end: its state, sequence, images, answer and timings.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "engine/reuse/prefix_load.h"
#include "engine/scheduler/image_jobs.h"
#include "engine/scheduler/request_progress.h"
#include "engine/scheduler/request_state.h"
#include "reuse/prefix/prefix_tree.h"

namespace vlcache {

class KvCaches;
class PrefixReuse;
class TokenStream;
class WaitingPrompt;

// size: one object a request, asked by every part of the scheduler; its parts are classes of their own.
class Generation {
 public:
  // Throws Error(kInput) for options out of range, and for a prompt that cannot be answered (check_prompt_fits).
  Generation(Engine& engine, Request request);
  ~Generation();

  RequestState state() const { return state_; }
  bool done() const { return state_ == RequestState::kFinished; }
  Sequence* sequence() { return sequence_; }  // null before start() of a request without one
  ImageJobs& images() { return images_; }
  RequestProgress& progress() { return progress_; }
  KvCodec codec() const;  // that its KV is computed under
  bool has_tokens() const { return !result_.tokens.empty(); }
  bool cancelled() const { return request_.callbacks.cancelled && request_.callbacks.cancelled(); }

  // ---- while it waits ---------------------------------------------------------------------------------------------
  // Its view of the caches.
  WaitingPrompt& waiting_prompt();
  // Whether the tiers are still being searched for its images, at `until` at the latest; start() comes after that.
  bool awaits_search(Deadline until);
  // Creates the sequence if there is none; images that are still needed are to be encoded, or loaded. Throws Error: the
  // request waits as before.
  void start();

  // ---- while it runs ----------------------------------------------------------------------------------------------
  // The prefix that will be cached for other requests once it is computed; empty: none, or it has been cached.
  std::span<const Element> promised();
  // Requests that must be computed before this one continues, to be called after whatever starts it or places its
  // images again: usually none. Otherwise this one is queued.
  std::vector<Request> take_origins();
  // Whether a load is under way, at `until` at the latest, for which the next step must wait. A step may run beside a
  // load of KV, and stall, unless one has stalled before.
  bool awaits_load_to_stall(Deadline until) {
    return prefix_load_.loading_after_stall(until) || images_.awaits_load_to_stall(until);
  }
  // The state before the next step, for which loads are looked at.
  RequestState next_state();
  // After a failed step: whether it failed for an image that could not be loaded. The request then continues without it
  // from what is computed already, or the same step is repeated once the image is loaded. Throws Error.
  bool go_on_without_load();
  // Frees all KV, except what the prefix cache keeps: the request waits until start(). Then its prompt is computed as
  // the first time, and the tokens that it has generated follow as they did, without being drawn or emitted. Throws
  // Error(kOutOfPages) for a caller's sequence that cannot be computed again (Sequence::recomputable): the request is
  // to end.
  void preempt();
  // Gives up its hold on the cached prefix that it began with, so that the cache may evict it and the pages are the
  // sequence's own. False: it had none.
  bool give_up_prefix();

  // Continues with the first image to encode (ImageJobs::encode).
  void encode(Deadline until);
  // What the next step is to compute: at most max_rows of its pending tokens. Valid until the next call.
  StepItem next_item(int32_t max_rows);
  // To be called after a step, in this order. The step took `ms` and has computed the item; `logits` of its rows, if
  // any were requested.
  void after_step(const StepItem& item, const Tensor& logits, double ms);
  // True: the step was one of a preview, or lookahead tokens are pending, whose attention the policy needs before it
  // acts.
  bool look_ahead(const Tensor& logits);
  // Lets the policy act on what the step computed, until `until` at the latest. False: it has not finished; the
  // request computes nothing until go_on_acting() has returned true.
  bool act(const Tensor& logits, Clock::time_point until);
  // Continues what act() has begun. True: the policy has acted, and the next token is chosen.
  bool go_on_acting(Clock::time_point until);
  // The next token, where the prompt is complete.
  void choose(const Tensor& logits);

  // ---- its end ----------------------------------------------------------------------------------------------------
  void finish(FinishReason reason);
  void fail(const Error& error);
  const GenerateResult& result() const { return result_; }
  GenerateResult take_result() { return std::move(result_); }

 private:
  void enter(RequestState state);
  RequestState computing() const;
  // Whether a load is under way, at `until` at the latest, without which there is no next step.
  bool awaits_load(Deadline until) { return prefix_load_.loading(until) || images_.awaits_load(until); }
  // Reserves room in the tables for the answer, so that decoding allocates nothing but pages.
  void make_room();
  void place_rest();
  void release();
  void find_stored_prefix(const Policy& policy);
  void find_prefix();
  void note_prefix();
  void keep_prefix(bool whole_pages);
  bool takes_prefix() const;
  void hand_out(std::span<const TokenRun> runs, const Tensor& logits) const;
  bool act_until(Clock::time_point until);
  void after_policy(bool compressed);
  void end_answer();
  void pass_on();
  bool before_answer() const { return n_entered_ == 0; }
  // Whether the sequence does not have all tokens of the answer yet, because the request was preempted.
  bool replays() const { return n_entered_ < result_.tokens.size(); }
  void choose_token(const Tensor& logits);
  void replay(std::span<const float> logits);
  void enter_token(int32_t token);
  void take(int32_t token, bool given);
  void emit(const std::string& text);
  void report();

  Engine& engine_;
  Request request_;
  GenerateResult result_;
  KvCaches& kv_;
  RequestState state_ = RequestState::kQueued;
  bool noted_prefix_ = false;  // the prefix saver knows of this use of the prompt
  std::unique_ptr<Sequence> own_sequence_;
  Sequence* sequence_;
  ImageJobs images_;
  RequestProgress progress_;
  std::unique_ptr<WaitingPrompt> waiting_prompt_;  // null: not needed yet
  std::optional<std::vector<Element>> promised_;   // none: not needed yet
  int32_t n_found_ = INT32_MAX;                    // tokens that the prefix cache had
  PrefixLoad prefix_load_;                         // from tiers, while it is queued
  std::unique_ptr<PrefixReuse> prefix_;            // from start() to the end
  std::unique_ptr<TokenStream> stream_;            // from logits to text
  size_t n_entered_ = 0;                           // tokens of the answer that the sequence has
  std::vector<TokenRun> runs_;
  // Of the last token, while lookahead tokens are computed or the policy acts; of the prompt's last token.
  std::vector<float> kept_logits_;
  double select_ms_ = 0, lookahead_ms_ = 0, policy_ms_ = 0;
  Clock::time_point begin_;
  // When the first and the latest token were chosen, and whether the policy has acted since.
  struct {
    Clock::time_point first, last;
    bool policy_acted = false;
  } answer_;
};

}  // namespace vlcache
