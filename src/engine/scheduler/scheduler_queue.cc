// The waiting queue of the scheduler: which request starts when, which is preempted, which waits for KV that another
// computes.
#include <algorithm>
#include <set>

#include "engine/engine_caches.h"
#include "engine/scheduler/generation.h"
#include "engine/scheduler/scheduler.h"
#include "engine/scheduler/waiting_prompt.h"

namespace vlcache {

bool Scheduler::Entry::waits() const { return is_waiting(generation->state()); }
bool Scheduler::Entry::runs() const { return is_running(generation->state()); }

size_t Scheduler::n_running() const { return static_cast<size_t>(std::ranges::count_if(requests_, &Entry::runs)); }
size_t Scheduler::n_waiting() const { return static_cast<size_t>(std::ranges::count_if(requests_, &Entry::waits)); }

// The index in queue_ of the request to consider next. A request whose cache lookup fails ends here.
std::optional<size_t> Scheduler::take_next() {
  const Places places{.max_running = options_.max_running, .full = full_};
  const auto pass_ended = [&] {
    for (size_t i = 0; i < queue_.size(); ++i) queue_states_[i].passed |= !queue_[i]->waits();
  };
  pass_ended();
  if (!all_find_places(queue_states_, n_running(), places)) {
    for (size_t i = 0; i < queue_.size(); ++i) {
      QueuedRequest& order = queue_states_[i].order;
      order.n_turns = n_started_ - queue_[i]->came_at;
      order.n_matched = 0;
      if (queue_states_[i].passed) continue;
      attempt(*queue_[i], [&] { order.n_matched = queue_[i]->generation->waiting_prompt().n_matched(); });
    }
    pass_ended();
  }
  return next_waiting(queue_states_, n_running(), places);
}

// Whether a running request is computing what this one could use. For prefixes a request waits only for those that
// arrived before it, each of which ends, so no request waits forever.
bool Scheduler::awaits(Entry& entry) {
  if (entry.generation->waiting_prompt().awaits_image()) return true;
  return std::ranges::any_of(requests_, [&](const Entry& other) {
    if (other.id >= entry.id || !other.runs() || other.generation->codec() != entry.generation->codec()) return false;
    const std::span<const Element> promised = other.generation->promised();
    if (promised.empty()) return false;
    const int32_t n_common = entry.generation->waiting_prompt().n_common(promised);
    const KvCache& cache = other.generation->sequence()->cache();
    const int32_t n = cache.place_to_come(n_common, static_cast<int32_t>(promised.size()));
    return entry.generation->waiting_prompt().awaits(n);
  });
}

// What decides whether a request can start now.
void Scheduler::consider(Entry& entry, WaitingRequest& waiting) {
  attempt(entry, [&] {
    waiting.awaits =
        awaits_origin(entry) || entry.generation->awaits_search(Deadline::min()) || (n_running() > 0 && awaits(entry));
    waiting.fits = waiting.awaits || fits(entry);
  });
}

// Starts the request, or leaves it queued. False: no other request is admitted before it.
bool Scheduler::admit(size_t next) {
  Entry& entry = *queue_[next];
  WaitingRequest& waiting = queue_states_[next];
  waiting.passed = true;
  consider(entry, waiting);
  while (entry.waits()) {
    list_running();
    const Places places{.max_running = options_.max_running, .full = full_};
    const Admission admission = vlcache::admit(queue_states_, next, priorities_, places);
    if (admission.action == Admission::Action::kNone) return false;
    if (admission.action == Admission::Action::kPass) return true;
    if (admission.action == Admission::Action::kStart) {
      start(entry);
      return true;
    }
    Entry& victim = *running_[admission.victim];
    attempt(victim, [&] { victim.generation->preempt(); });
    full_ = false;
    attempt(entry, [&] { waiting.fits = fits(entry); });
  }
  return true;
}

// Admits queued requests while there are free slots and pages: each gets its sequence and its images' embeddings.
void Scheduler::admit() {
  engine_.caches().take_in_prefetched();
  queue_.clear();
  queue_states_.clear();
  for (Entry& entry : requests_) {
    if (!entry.waits()) continue;
    queue_.push_back(&entry);
    queue_states_.emplace_back().order.priority = entry.priority;
  }
  if (queue_.empty()) return;
  const bool for_all = all_find_places(queue_states_, n_running(), {.max_running = options_.max_running});
  for (Entry* entry : queue_) {
    // What the queued requests would hit is held before any of them makes room.
    if (full_ || !for_all) attempt(*entry, [&] { entry->generation->waiting_prompt().hold(); });
  }
  while (const std::optional<size_t> next = take_next()) {
    if (!admit(*next)) break;
  }
  const auto each_waiting = [&](void (WaitingPrompt::*act)()) {
    for (Entry& entry : requests_) {
      if (entry.waits()) attempt(entry, [&] { (entry.generation->waiting_prompt().*act)(); });
    }
  };
  each_waiting(&WaitingPrompt::hold);
  each_waiting(&WaitingPrompt::prefetch);
}

void Scheduler::list_running() {
  running_.clear();
  priorities_.clear();
  for (Entry& entry : requests_) {
    if (!entry.runs()) continue;
    running_.push_back(&entry);
    priorities_.push_back(entry.priority);
  }
}

// The request that is preempted first.
Scheduler::Entry& Scheduler::last_running() {
  list_running();
  return *running_[preempted_first(priorities_)];
}

// Whether there are pages for its prompt beside those that the running requests' prompts still need. How much its
// answer needs is not known, nor what a policy will free: when pages run out, requests are preempted.
bool Scheduler::fits(Entry& entry) const {
  if (n_running() == 0 || !entry.generation->waiting_prompt().needs_whole_prompt()) return true;
  const auto more = [&](Generation& generation, int64_t n_has, int64_t n) {
    const KvShape& shape = engine_.caches().of(generation.codec()).shape();
    return engine_.kv_bytes(n_has + n, shape) - engine_.kv_bytes(n_has, shape);
  };
  const int64_t n_matched = entry.generation->waiting_prompt().n_matched();
  int64_t needed = more(*entry.generation, n_matched, entry.generation->result().n_prompt - n_matched);
  for (const Entry& other : requests_) {
    if (!other.runs()) continue;
    const Sequence& sequence = *other.generation->sequence();
    needed += more(*other.generation, sequence.n_done(), sequence.n_pending());
  }
  const int64_t n_given_up = engine_.caches().prefix_bytes();  // by the prefix caches, except for pages in use
  const int64_t free = engine_.pools().max_bytes() - engine_.pools().used_bytes() + n_given_up;
  return needed <= free;
}

void Scheduler::start(Entry& entry) {
  const bool alone = n_running() == 0;
  try {
    const CheckScope own(CheckScope::Failure::kThrow);
    entry.generation->start();
    ++n_started_;
    let_origins_go_first(entry);
  } catch (...) {
    const Error error = caught_error();
    if (error.code() == ErrorCode::kOutOfPages && !alone) {
      full_ = true;
      return;
    }
    entry.generation->fail(error);
    end(entry);
  }
}

// Images without an origin are first computed by themselves, in requests of their own.
bool Scheduler::let_origins_go_first(Entry& entry) {
  size_t n_origins = 0;
  for (Request& origin : entry.generation->take_origins()) {
    const Sha256Digest image = image_keys(origin.prompt).at(0);
    if (entry.generation->progress().wanted()) {
      origin.callbacks.on_progress = [this, id = entry.id, i = n_origins++](const PromptProgress& progress) {
        const auto served = std::ranges::find(requests_, id, &Entry::id);
        if (served == requests_.end() || served->generation->done()) return;
        served->generation->progress().origin_computes(i, progress.share);
      };
    }
    new_origins_.push_back({.id = next_id_++,
                            .generation = std::make_unique<Generation>(engine_, std::move(origin)),
                            .priority = entry.priority,
                            .came_at = n_started_,
                            .origin_for = entry.id,
                            .image = image});
  }
  return entry.waits();
}

// Adds new origin requests; removes those that have ended or that no request waits for.
void Scheduler::exchange_origins() {
  std::ranges::move(new_origins_, std::back_inserter(requests_));
  new_origins_.clear();
  std::set<RequestId> waiting;
  for (const Entry& e : requests_) {
    if (!e.generation->done()) waiting.insert(e.id);
  }
  std::erase_if(requests_, [&](const Entry& e) {
    return e.origin_for != 0 && (e.generation->done() || !waiting.contains(e.origin_for));
  });
}

// Whether an image that this request could reuse is being computed by itself, for it or for another request.
bool Scheduler::awaits_origin(Entry& entry) {
  if (entry.origin_for != 0) return false;
  const auto awaited = [&](const Entry& e) {
    return e.origin_for != 0 && !e.generation->done() &&
           (e.origin_for == entry.id ||
            (e.generation->codec() == entry.generation->codec() && entry.generation->waiting_prompt().wants(e.image)));
  };
  return std::ranges::any_of(requests_, awaited) || std::ranges::any_of(new_origins_, awaited);
}

}  // namespace vlcache
