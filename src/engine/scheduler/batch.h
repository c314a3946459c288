// Batch: the one driver of steps. Requests are added, cancelled and taken out while others run; every step computes one
// token of each that decodes and a piece of the prompts that wait.
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

struct BatchOptions {
  // Requests that run at once, 0: as many as memory holds. Of those that find no place the one goes next that finds
  // most of its prompt computed (request_order.h); meanwhile that is kept for it, and its images are loaded. One of a
  // higher priority takes the place of one that runs.
  int32_t max_running = 0;
  // Of a step in which requests decode and prompts are computed, or pictures encoded; 0: as StepBudget has it.
  double max_step_ms = 0;
};

class Batch {
 public:
  explicit Batch(Engine& engine, const BatchOptions& options = {});
  ~Batch();

  // Puts a request in line. Throws Error(kInput) for options out of range or a prompt that cannot be answered; nothing
  // else that goes wrong with a request is thrown, here or in step(): it ends with GenerateResult::error.
  RequestId add(Request request);
  // One step. False: nobody has anything left to do. A step that fails costs its time: every sequence goes on from
  // before it, but for the one to blame. When pages run out, the request that came last gives its KV back and waits
  // until another has ended; alone, it ends as "length", or with the error if it has no token yet.
  bool step();
  // Ends the request where it is, before the next step.
  void cancel(RequestId id);
  bool done(RequestId id) const;
  // Takes the request out, done or not ("cancelled"), with what has come of it.
  GenerateResult remove(RequestId id);
  size_t size() const;  // requests in it, done or not
  // Of those that are not done: those that have KV, and those that wait for a place.
  size_t n_running() const;
  size_t n_waiting() const;
  // Of those that have one.
  void for_each_sequence(FunctionRef<void(const Sequence& sequence)> visit) const;

 private:
  struct Entry {
    RequestId id;
    std::unique_ptr<Generation> generation;
    bool waiting = true;  // has no KV
    int32_t priority = 0;
    int64_t came_at = 0;   // when so many requests had started
    RequestId serves = 0;  // the request that waits until this one has ended; 0: somebody asked for it
    Sha256Digest image{};  // that it computes for others, then
    bool in_line() const;
    bool runs() const;
    bool encodes() const;  // before it can go on
  };
  Entry& find(RequestId id);
  void end(Entry& entry);
  void check_cancelled();
  void admit();
  void let_origins_go_first(Entry& entry);
  void exchange_servants();
  bool awaits_servant(Entry& entry);
  void attempt(Entry& entry, FunctionRef<void()> work);
  void take_loaded();
  void wait_for_tiers();
  bool fits(Entry& entry) const;
  void suspend(Entry& entry);
  void list_running();
  Entry& last_running();
  std::optional<size_t> take_next();
  bool awaits(Entry& entry);
  void consider(Entry& entry, WaitingRequest& waiting);
  bool admit(size_t next);
  void start(Entry& entry);
  void look();
  void plan();
  void act(Entry& entry, const StepItem& item, const Tensor& logits, double ms);
  void recover(const StepFailed& failure);
  void give_way(const StepFailed& failure);

  Engine& engine_;
  BatchOptions options_;
  StepBudget budget_;
  RequestId next_id_ = 1;
  std::deque<Entry> requests_;   // in the order they came
  std::vector<Entry> servants_;  // that join them before the next step
  // While requests are admitted: those that wait, and what admission knows of them.
  std::vector<Entry*> line_;
  std::vector<WaitingRequest> waiting_;
  // Those that run, in the order they came; their priorities; what a plan knows of them.
  std::vector<Entry*> running_;
  std::vector<int32_t> priorities_;
  std::vector<RunningRequest> running_states_;
  int64_t n_started_ = 0;
  bool full_ = false;  // pages ran out: nobody is admitted until a request ends
  std::vector<StepItem> items_;
  std::vector<Entry*> owners_;  // per item
  StepPlan plan_;
  double prompt_flops_ = 0;   // of prompts that are in the step
  bool has_encoded_ = false;  // in the step before, beside some that decode
};

// Runs all requests to their ends in one batch; results in order, errors inside.
std::vector<GenerateResult> generate(Engine& engine, std::vector<Request> requests);
// One request; throws what went wrong.
GenerateResult generate(Engine& engine, Request request);

}  // namespace vlcache
