#include "engine/scheduler/scheduler.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/clock.h"
#include "engine/scheduler/generation.h"
#include "engine/sequence/sequence.h"

namespace vlcache {
namespace {

// Beside decoding requests, a step's prompt rows may cost about this share of a whole chunk at the beginning of a
// prompt: it bounds the wait for a decoding request's next token, at any depth of a new prompt.
constexpr double kShareBesideDecoding = 0.25;

// With nothing to compute, step() blocks this long on tier loads, then returns so that the caller can add or cancel
// requests.
constexpr std::chrono::milliseconds kTierWait{10};

}  // namespace

Scheduler::Scheduler(Engine& engine, const SchedulerOptions& options)
    : engine_(engine), options_(options), budget_(options.max_step_ms) {}
Scheduler::~Scheduler() = default;

RequestId Scheduler::add(Request request) {
  const CheckScope own(CheckScope::Failure::kThrow);
  const int32_t priority = request.priority;
  requests_.push_back({.id = next_id_,
                       .generation = std::make_unique<Generation>(engine_, std::move(request)),
                       .priority = priority,
                       .came_at = n_started_});
  return next_id_++;
}

Scheduler::Entry& Scheduler::find(RequestId id) {
  const auto it = std::ranges::find(requests_, id, &Entry::id);
  CHECK(it != requests_.end());
  return *it;
}

void Scheduler::end(Entry& entry) {
  CHECK(entry.generation->done());
  full_ = false;
  if (entry.origin_for == 0) return;
  const auto served = std::ranges::find(requests_, entry.origin_for, &Entry::id);
  if (served != requests_.end()) served->generation->images().origin_done(entry.generation->result());
}

size_t Scheduler::size() const { return static_cast<size_t>(std::ranges::count(requests_, 0, &Entry::origin_for)); }

void Scheduler::cancel(RequestId id) {
  Entry& entry = find(id);
  if (entry.generation->done()) return;
  entry.generation->finish(FinishReason::kCancelled);
  end(entry);
}

bool Scheduler::done(RequestId id) const {
  const auto it = std::ranges::find(requests_, id, &Entry::id);
  CHECK(it != requests_.end());
  return it->generation->done();
}

GenerateResult Scheduler::remove(RequestId id) {
  cancel(id);
  GenerateResult result = find(id).generation->take_result();
  std::erase_if(requests_, [id](const Entry& entry) { return entry.id == id; });
  return result;
}

void Scheduler::for_each_sequence(FunctionRef<void(const Sequence& sequence)> visit) const {
  for (const Entry& entry : requests_) {
    const Sequence* const sequence = entry.generation->sequence();
    if (sequence != nullptr) visit(*sequence);
  }
}

void Scheduler::check_cancelled() {
  for (Entry& entry : requests_) {
    if (!entry.generation->done() && entry.generation->cancelled()) cancel(entry.id);
  }
}

// The request ends with the error that `work` throws.
void Scheduler::attempt(Entry& entry, FunctionRef<void()> work) {
  try {
    const CheckScope own(CheckScope::Failure::kThrow);
    work();
  } catch (...) {
    entry.generation->fail(caught_error());
  }
  if (entry.generation->done()) end(entry);
}

// Takes the embeddings that have been loaded for running requests.
void Scheduler::take_loaded() {
  for (Entry& entry : requests_) {
    if (entry.runs()) attempt(entry, [&] { entry.generation->images().take_loaded(); });
  }
}

void Scheduler::wait_for_tiers() {
  for (Entry& entry : requests_) {
    if (entry.generation->done()) continue;
    const auto awaits = [&](Deadline until) {
      return entry.waits() ? entry.generation->awaits_search(until) : entry.generation->awaits_load_to_stall(until);
    };
    if (!awaits(Deadline::min())) continue;
    awaits(Clock::now() + kTierWait);
    return;
  }
}

// The requests that run, as a plan sees them.
void Scheduler::look() {
  list_running();
  running_states_.clear();
  for (const Entry* const entry : running_) {
    Generation& generation = *entry->generation;
    RunningRequest& seen = running_states_.emplace_back();
    seen.state = generation.next_state();
    if (seen.state == RequestState::kLoading) {
      seen.may_stall = !generation.awaits_load_to_stall(Deadline::min());
      continue;
    }
    const Sequence& sequence = *generation.sequence();
    seen.n_pending = sequence.n_pending();
    if (seen.n_pending == 1) continue;
    seen.row_flops = sequence.next_share_of_layers() * engine_.model().config().text.layers_flops(sequence.n_done());
  }
}

// Makes the items of the next step; encodes what the plan wants encoded before it.
void Scheduler::plan() {
  items_.clear();
  owners_.clear();
  const int32_t chunk = options_.prefill_chunk > 0 ? options_.prefill_chunk : engine_.options().prefill_chunk;
  StepLimits limits{.chunk = chunk,
                    .unknown_flops = kShareBesideDecoding * chunk * engine_.model().config().text.layers_flops(0),
                    .encoded_last_step = std::exchange(has_encoded_, false)};
  look();
  plan_step(running_states_, budget_, limits, plan_);
  if (plan_.encode) {
    Entry& entry = *running_[*plan_.encode];
    Deadline until = kNoDeadline;
    if (plan_.encode_ms) until = Clock::now() + std::chrono::microseconds(std::llround(1000 * *plan_.encode_ms));
    attempt(entry, [&] { entry.generation->encode(until); });
    has_encoded_ = plan_.decodes;
    if (!plan_.decodes) {
      limits.encoded_now = true;
      look();
      plan_step(running_states_, budget_, limits, plan_);
    }
  }
  prompt_flops_ = 0;
  for (const StepPlan::Part& part : plan_.parts) {
    const RunningRequest& seen = running_states_[part.request];
    items_.push_back(running_[part.request]->generation->next_item(part.max_rows));
    owners_.push_back(running_[part.request]);
    for (const TokenRun& run : items_.back().runs) prompt_flops_ += seen.row_flops * (run.end - run.begin);
  }
}

bool Scheduler::step() {
  const SavePace::Computing computing(engine_.kv().tiers() != nullptr ? &engine_.kv().tiers()->pace() : nullptr);
  check_cancelled();
  exchange_origins();
  admit();
  take_loaded();
  const bool acted = go_on_acting();
  tell_waiting();
  plan();
  if (items_.empty()) {
    const auto encodes = [](const Entry& e) { return e.generation->state() == RequestState::kEncoding; };
    if (!acted && std::ranges::none_of(requests_, encodes)) wait_for_tiers();
    return std::ranges::any_of(requests_, [](const Entry& e) { return !e.generation->done(); });
  }
  const auto begin = Clock::now();
  try {
    const std::span<const Tensor> logits = compute();
    const double ms = ms_since(begin);
    budget_.took(plan_.decodes, prompt_flops_, ms);
    if (!plan_.decodes) {
      const double fewest = kFewRows * engine_.model().config().text.layers_flops(0);
      engine_.pace().took({.prompt = std::max(prompt_flops_, fewest)}, ms);
    }
    for (size_t i = 0; i < items_.size(); ++i) {
      if (!owners_[i]->runs()) continue;  // preempted for a request before it: its logits are void
      act(*owners_[i], items_[i], logits[i], ms);
    }
  } catch (const StepFailed& failure) {
    recover(failure);
  }
  return true;
}

std::span<const Tensor> Scheduler::compute() {
  const auto tell = [&](std::span<const int32_t> items, double share) {
    for (const int32_t item : items) owners_[static_cast<size_t>(item)]->generation->progress().layers_done(share);
  };
  const LayersDone layers_done(tell);
  const bool told = std::ranges::any_of(owners_, [](Entry* e) { return e->generation->progress().wanted(); });
  return engine_.stepper().step(items_, told ? &layers_done : nullptr);
}

void Scheduler::tell_waiting() {
  if (n_running() == 0) return;  // it waits for a tier's answer alone
  for (Entry& entry : requests_) {
    if (entry.waits()) attempt(entry, [&] { entry.generation->progress().wait(); });
  }
}

// Policies that have begun to act continue: while others compute, as long as a step that decodes takes, so that these
// wait for their next token twice as long at most. False: none is acting.
bool Scheduler::go_on_acting() {
  const auto acts = [](const Entry& e) { return e.generation->state() == RequestState::kActing; };
  const auto n_acting = std::ranges::count_if(requests_, acts);
  if (n_acting == 0) return false;
  auto until = Clock::time_point::max();
  if (static_cast<size_t>(n_acting) < n_running()) {
    until = Clock::now() + std::chrono::microseconds(std::llround(1000 * budget_.decode_ms().value_or(0)));
  }
  for (Entry& entry : requests_) {
    if (!acts(entry)) continue;
    bool finished = false;
    attempt(entry, [&] { with_pages(entry, [&] { finished = entry.generation->go_on_acting(until); }); });
    if (!finished || Clock::now() >= until) break;
  }
  return true;
}

// The policy acts before the next token is drawn, which does not attend to what is evicted.
void Scheduler::act(Entry& entry, const StepItem& item, const Tensor& logits, double ms) {
  attempt(entry, [&] {
    entry.generation->after_step(item, logits, ms);
    if (let_origins_go_first(entry)) return;
    if (entry.generation->look_ahead(logits)) return;
    bool acted = false;
    const bool runs = with_pages(entry, [&] {
      const Clock::time_point until = n_running() > 1 ? Clock::now() : Clock::time_point::max();
      acted = entry.generation->act(logits, until);
    });
    if (runs && acted) entry.generation->choose(logits);
  });
}

bool Scheduler::with_pages(Entry& entry, FunctionRef<void()> work) {
  for (;;) {
    try {
      work();
      return true;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kOutOfPages) throw;
      if (n_running() == 1) {
        if (!entry.generation->give_up_prefix()) throw;
      } else if (&preempt_last() == &entry) {
        return false;
      }
    }
  }
}

Scheduler::Entry& Scheduler::preempt_last() {
  Entry& last = last_running();
  attempt(last, [&] { last.generation->preempt(); });
  if (last.waits()) full_ = true;
  return last;
}

void Scheduler::recover(const StepFailed& failure) {
  if (failure.code() == ErrorCode::kOutOfPages) return handle_out_of_pages(failure);
  if (failure.code() == ErrorCode::kMemory &&
      failure.item() < 0) {  // the step's own memory: with one row less there may be
    Entry& last = last_running();
    return attempt(last, [&] { last.generation->fail(failure); });
  }
  for (size_t i = 0; i < owners_.size(); ++i) {
    if (failure.item() >= 0 && failure.item() != static_cast<int32_t>(i)) continue;
    Generation& generation = *owners_[i]->generation;
    attempt(*owners_[i], [&] {
      if (!generation.go_on_without_load()) return generation.fail(failure);
      let_origins_go_first(*owners_[i]);
    });
  }
}

// Out of pages: the newest running request is preempted. One that runs alone gives up its hold on a cached prefix, and
// ends if that does not help.
void Scheduler::handle_out_of_pages(const StepFailed& failure) {
  if (n_running() > 1) {
    preempt_last();
    return;
  }
  Entry& last = last_running();
  if (last.generation->give_up_prefix()) return;
  attempt(last, [&] {
    if (last.generation->has_tokens()) {
      last.generation->finish(FinishReason::kLength);
    } else {
      last.generation->fail(failure);
    }
  });
}

std::vector<GenerateResult> generate(Engine& engine, std::vector<Request> requests, const SchedulerOptions& options) {
  Scheduler scheduler(engine, options);
  std::vector<RequestId> ids;
  for (Request& request : requests) ids.push_back(scheduler.add(std::move(request)));
  while (scheduler.step()) {
  }
  std::vector<GenerateResult> results;
  for (const RequestId id : ids) results.push_back(scheduler.remove(id));
  return results;
}

GenerateResult generate(Engine& engine, Request request) {
  std::vector<Request> requests;
  requests.push_back(std::move(request));
  GenerateResult result = std::move(generate(engine, std::move(requests))[0]);
  if (result.error) throw *result.error;
  return result;
}

}  // namespace vlcache
