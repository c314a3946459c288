// Scheduler plans and runs the steps of all requests. Requests are added, cancelled and removed while others run; every
// step computes one token of each decoding request and a piece of the prompts.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "base/function_ref.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "engine/scheduler/admission.h"
#include "engine/scheduler/step_budget.h"
#include "engine/scheduler/step_plan.h"

namespace vlcache {

class Generation;
using RequestId = int64_t;

struct SchedulerOptions {
  // Requests that run at once; 0: as many as memory holds. When all slots are taken, the queued request with the most
  // of its prompt cached is admitted next (request_order.h); meanwhile its cache entries are held, and its images are
  // loaded. A request of higher priority preempts a running one.
  int32_t max_running = 0;
  // Time of a step in which requests decode while prompts are computed or images encoded; 0: as StepBudget sets it.
  double max_step_ms = 0;
  int32_t prefill_chunk = 0;  // rows of a step at most; 0: EngineOptions::prefill_chunk
};

class Scheduler {
 public:
  explicit Scheduler(Engine& engine, const SchedulerOptions& options = {});
  ~Scheduler();

  // Queues a request. Throws Error(kInput) for options out of range or a prompt that cannot be answered; no other error
  // of a request is thrown, here or in step(): the request ends with GenerateResult::error.
  RequestId add(Request request);
  // One step. False: no request has anything left to do. A failed step costs its time only: every sequence continues
  // from its state before the step, except the one at fault. When pages run out, in a step or where a policy compresses
  // KV, the newest running request of the lowest priority frees its KV and is queued until another has ended; alone, a
  // request ends as "length", or with the error if it has no token yet.
  bool step();
  // Ends the request where it is, before the next step.
  void cancel(RequestId id);
  bool done(RequestId id) const;
  // Removes the request, done or not ("cancelled"), and returns what it has generated.
  GenerateResult remove(RequestId id);
  size_t size() const;  // requests in it, done or not
  // Of the requests that are not done: those that have KV, and those that are queued.
  size_t n_running() const;
  size_t n_waiting() const;
  // The sequences of the requests that have one.
  void for_each_sequence(FunctionRef<void(const Sequence& sequence)> visit) const;

 private:
  struct Entry {
    RequestId id;
    std::unique_ptr<Generation> generation;
    int32_t priority = 0;
    int64_t came_at = 0;       // n_started_ at its arrival
    RequestId origin_for = 0;  // the request that waits until this one has ended; 0: a caller added this one
    Sha256Digest image{};      // the image that it computes for that request
    bool waits() const;
    bool runs() const;
  };
  Entry& find(RequestId id);
  void end(Entry& entry);
  void check_cancelled();
  void admit();
  // True: the request waits for origin requests now.
  bool let_origins_go_first(Entry& entry);
  void exchange_origins();
  bool awaits_origin(Entry& entry);
  void attempt(Entry& entry, FunctionRef<void()> work);
  // `work` of a running request, which may lack pages: others are preempted, and it is tried again. False: the request
  // itself was preempted.
  bool with_pages(Entry& entry, FunctionRef<void()> work);
  void take_loaded();
  void wait_for_tiers();
  bool fits(Entry& entry) const;
  void list_running();
  Entry& last_running();
  std::optional<size_t> take_next();
  bool awaits(Entry& entry);
  void consider(Entry& entry, WaitingRequest& waiting);
  bool admit(size_t next);
  void start(Entry& entry);
  void look();
  void plan();
  std::span<const Tensor> compute();
  void tell_waiting();
  void act(Entry& entry, const StepItem& item, const Tensor& logits, double ms);
  bool go_on_acting();
  void recover(const StepFailed& failure);
  void handle_out_of_pages(const StepFailed& failure);
  // Of those that run, the newest one of the lowest priority.
  Entry& preempt_last();

  Engine& engine_;
  SchedulerOptions options_;
  StepBudget budget_;
  RequestId next_id_ = 1;
  std::deque<Entry> requests_;      // in the order they came
  std::vector<Entry> new_origins_;  // that join them before the next step
  // While requests are admitted: those that wait, and what admission knows of them.
  std::vector<Entry*> queue_;
  std::vector<WaitingRequest> queue_states_;
  // Those that run, in the order they came; their priorities; what a plan knows of them.
  std::vector<Entry*> running_;
  std::vector<int32_t> priorities_;
  std::vector<RunningRequest> running_states_;
  int64_t n_started_ = 0;
  bool full_ = false;  // pages ran out: no request is admitted until one ends
  std::vector<StepItem> items_;
  std::vector<Entry*> owners_;  // per item
  StepPlan plan_;
  double prompt_flops_ = 0;   // of prompts that are in the step
  bool has_encoded_ = false;  // in the step before, beside some that decode
};

// Runs all requests to their ends in one batch; results in order, errors inside.
std::vector<GenerateResult> generate(Engine& engine, std::vector<Request> requests,
                                     const SchedulerOptions& options = {});
// One request; throws what went wrong.
GenerateResult generate(Engine& engine, Request request);

}  // namespace vlcache
