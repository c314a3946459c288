// The line in front of a batch: who starts when, who gives way, who waits for what others compute.
#include <algorithm>
#include <set>

#include "engine/scheduler/batch.h"
#include "engine/scheduler/generation.h"
#include "engine/scheduler/request_order.h"
#include "engine/scheduler/waiting_prompt.h"

namespace vlcache {

bool Batch::Entry::in_line() const { return waiting && !generation->done(); }
bool Batch::Entry::runs() const { return !waiting && !generation->done(); }
bool Batch::Entry::encodes() const { return runs() && generation->encodes(); }

size_t Batch::n_running() const { return static_cast<size_t>(std::ranges::count_if(requests_, &Entry::runs)); }
size_t Batch::n_waiting() const { return static_cast<size_t>(std::ranges::count_if(requests_, &Entry::in_line)); }

bool Batch::has_place() const {
  const size_t n = n_running();
  return n == 0 || (!full_ && (options_.max_running == 0 || n < static_cast<size_t>(options_.max_running)));
}

bool Batch::places_for_all() const {
  const bool equals = std::ranges::all_of(line_, [&](const Entry* e) { return e->priority == line_[0]->priority; });
  return equals &&
         (options_.max_running == 0 || line_.size() + n_running() <= static_cast<size_t>(options_.max_running));
}

// In the order of arrival where there are places for all; null: none is left. A request that fails while its caches are
// looked up ends here.
Batch::Entry* Batch::take_next() {
  std::erase_if(line_, [](const Entry* entry) { return !entry->in_line(); });
  if (line_.empty()) return nullptr;
  size_t next = 0;
  if (!places_for_all()) {
    std::vector<InLine> line;
    for (Entry* entry : line_) {
      int32_t n_matched = 0;
      attempt(*entry, [&] { n_matched = entry->generation->in_line().n_matched(); });
      line.push_back({.n_matched = n_matched, .n_turns = n_started_ - entry->came_at, .priority = entry->priority});
    }
    next = next_in_line(line);
  }
  Entry* const entry = line_[next];
  line_.erase(line_.begin() + static_cast<ptrdiff_t>(next));
  return entry;
}

// Whether somebody who runs is computing what this one could use. Of prefixes it waits for those that came before it
// only, each of which ends: so nobody waits forever, whatever becomes of them.
bool Batch::awaits(Entry& entry) {
  if (!engine_.images_in_work().empty() && entry.generation->in_line().awaits_image()) return true;
  return std::ranges::any_of(requests_, [&](const Entry& other) {
    if (other.id >= entry.id || !other.runs()) return false;
    const std::span<const Element> promised = other.generation->promised();
    return !promised.empty() && entry.generation->in_line().awaits(promised);
  });
}

// Whoever waits gets its sequence and its pictures' embeddings, as far as there are places.
void Batch::admit() {
  if (engine_.image_prefetch() != nullptr) engine_.image_prefetch()->take_in();
  line_.clear();
  for (Entry& entry : requests_) {
    if (entry.in_line()) line_.push_back(&entry);
  }
  if (line_.empty()) return;
  const bool for_all = places_for_all();
  for (Entry* entry : line_) {
    if (full_ || !for_all) attempt(*entry, [&] { entry->generation->in_line().hold(); });  // before others make room
  }
  while (Entry* const entry = take_next()) {
    bool goes_on = false, fits_now = false;
    attempt(*entry, [&] {
      if (awaits_servant(*entry) || entry->generation->awaits_search(Deadline::min())) return;
      if (n_running() > 0 && awaits(*entry)) return;
      fits_now = fits(*entry);
      goes_on = true;
    });
    if (!goes_on) continue;
    bool has_room = true;
    while (has_room && (!has_place() || !fits_now)) {
      has_room = make_place(*entry);
      attempt(*entry, [&] { fits_now = fits(*entry); });
      if (entry->generation->done()) break;
    }
    if (!has_room) break;  // nobody passes it: it would wait for as long as smaller ones come
    if (entry->in_line()) start(*entry);
  }
  const auto each_in_line = [&](void (WaitingPrompt::*act)()) {
    for (Entry& entry : requests_) {
      if (entry.in_line()) attempt(entry, [&] { (entry.generation->in_line().*act)(); });
    }
  };
  each_in_line(&WaitingPrompt::hold);
  each_in_line(&WaitingPrompt::prefetch);
}

// The one that gives way first: of those that run with the lowest priority the last comer.
Batch::Entry* Batch::last_running() {
  Entry* last = nullptr;
  for (Entry& entry : requests_) {
    if (entry.runs() && (last == nullptr || entry.priority <= last->priority)) last = &entry;
  }
  return last;
}

void Batch::suspend(Entry& entry) {
  entry.generation->suspend();
  entry.waiting = true;
}

// By one that runs with a lower priority, if there is one.
bool Batch::make_place(const Entry& entry) {
  Entry* const last = last_running();
  if (last == nullptr || last->priority >= entry.priority) return false;
  suspend(*last);
  full_ = false;
  return true;
}

// Whether there are pages for its prompt beside those that the prompts before it still need. What its answer needs is
// not known, nor what a policy will free: those that have come too far give way.
bool Batch::fits(Entry& entry) const {
  if (n_running() == 0 || !entry.generation->needs_whole_prompt()) return true;
  int64_t n_needed = entry.generation->result().n_prompt - entry.generation->in_line().n_matched();
  for (const Entry& other : requests_) {
    if (other.runs()) n_needed += other.generation->sequence()->n_pending();
  }
  const int64_t n_given_up = engine_.prefixes().bytes();  // by the prefix cache, but for what is in use
  const int64_t free = engine_.pools().max_bytes() - engine_.pools().used_bytes() + n_given_up;
  return n_needed * engine_.token_bytes() <= free;
}

void Batch::start(Entry& entry) {
  const bool alone = n_running() == 0;
  try {
    const CheckScope own(CheckScope::Failure::kThrow);
    entry.generation->start();
    entry.waiting = false;
    ++n_started_;
    let_origins_go_first(entry);
  } catch (...) {
    const Error error = caught_error();
    if (error.code() == ErrorCode::kMemory && !alone) {
      full_ = true;
      return;
    }
    entry.generation->fail(error);
    end(entry);
  }
}

// Images without an origin are computed by themselves first, like requests of others.
void Batch::let_origins_go_first(Entry& entry) {
  for (Request& origin : entry.generation->take_origins()) {
    const Sha256Digest image = image_keys(origin.prompt).at(0);
    servants_.push_back({.id = next_id_++,
                         .generation = std::make_unique<Generation>(engine_, std::move(origin)),
                         .priority = entry.priority,
                         .came_at = n_started_,
                         .serves = entry.id,
                         .image = image});
    entry.waiting = true;
  }
}

// Those that somebody still waits for come, others go.
void Batch::exchange_servants() {
  std::ranges::move(servants_, std::back_inserter(requests_));
  servants_.clear();
  std::set<RequestId> waiting;
  for (const Entry& e : requests_) {
    if (!e.generation->done()) waiting.insert(e.id);
  }
  std::erase_if(requests_,
                [&](const Entry& e) { return e.serves != 0 && (e.generation->done() || !waiting.contains(e.serves)); });
}

// Whether an image that this one could reuse is computed by itself, for it or for another one.
bool Batch::awaits_servant(Entry& entry) {
  if (entry.serves != 0) return false;
  const auto awaited = [&](const Entry& e) {
    return e.serves != 0 && !e.generation->done() &&
           (e.serves == entry.id || entry.generation->in_line().wants(e.image));
  };
  return std::ranges::any_of(requests_, awaited) || std::ranges::any_of(servants_, awaited);
}

}  // namespace vlcache
