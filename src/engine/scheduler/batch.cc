// Which rows go next, who waits, what a failed step leads to.
#include "engine/scheduler/batch.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/clock.h"
#include "engine/scheduler/generation.h"
#include "engine/sequence/sequence.h"

namespace vlcache {
namespace {

// While others decode, a step's prompt rows may cost about this share of a whole chunk at the beginning of a prompt:
// what a decoding request waits for its next token then is bounded, wherever in its prompt a newcomer is.
constexpr double kShareBesideDecoding = 0.25;
constexpr int32_t kFewestRows = 8;  // fewer would read the weights for next to nothing

// With nothing to compute, tiers are waited for; so long, then whoever drives the batch may add or cancel.
constexpr std::chrono::milliseconds kTierWait{10};

}  // namespace

Batch::Batch(Engine& engine, const BatchOptions& options)
    : engine_(engine), options_(options), budget_(options.max_step_ms) {}
Batch::~Batch() = default;

RequestId Batch::add(Request request) {
  const CheckScope own(CheckScope::Failure::kThrow);
  const int32_t priority = request.priority;
  requests_.push_back({.id = next_id_,
                       .generation = std::make_unique<Generation>(engine_, std::move(request)),
                       .priority = priority,
                       .came_at = n_started_});
  return next_id_++;
}

Batch::Entry& Batch::find(RequestId id) {
  const auto it = std::ranges::find(requests_, id, &Entry::id);
  CHECK(it != requests_.end());
  return *it;
}

void Batch::end(Entry& entry) {
  CHECK(entry.generation->done());
  entry.waiting = false;
  full_ = false;
  if (entry.serves == 0) return;
  const auto served = std::ranges::find(requests_, entry.serves, &Entry::id);
  if (served != requests_.end()) served->generation->origin_done(entry.generation->result());
}

size_t Batch::size() const { return static_cast<size_t>(std::ranges::count(requests_, 0, &Entry::serves)); }

void Batch::cancel(RequestId id) {
  Entry& entry = find(id);
  if (entry.generation->done()) return;
  entry.generation->finish("cancelled");
  end(entry);
}

bool Batch::done(RequestId id) const {
  const auto it = std::ranges::find(requests_, id, &Entry::id);
  CHECK(it != requests_.end());
  return it->generation->done();
}

GenerateResult Batch::remove(RequestId id) {
  cancel(id);
  GenerateResult result = find(id).generation->take_result();
  std::erase_if(requests_, [id](const Entry& entry) { return entry.id == id; });
  return result;
}

void Batch::for_each_sequence(FunctionRef<void(const Sequence& sequence)> visit) const {
  for (const Entry& entry : requests_) {
    const Sequence* const sequence = entry.generation->sequence();
    if (sequence != nullptr) visit(*sequence);
  }
}

void Batch::check_cancelled() {
  for (Entry& entry : requests_) {
    if (!entry.generation->done() && entry.generation->cancelled()) cancel(entry.id);
  }
}

// The request ends with what `work` throws.
void Batch::attempt(Entry& entry, FunctionRef<void()> work) {
  try {
    const CheckScope own(CheckScope::Failure::kThrow);
    work();
  } catch (...) {
    entry.generation->fail(caught_error());
  }
  if (entry.generation->done()) end(entry);
}

// What has been loaded for requests that run.
void Batch::take_loaded() {
  for (Entry& entry : requests_) {
    if (entry.waiting || entry.generation->done()) continue;
    attempt(entry, [&] { entry.generation->take_embeddings(); });
  }
}

void Batch::wait_for_tiers() {
  for (Entry& entry : requests_) {
    if (entry.generation->done()) continue;
    const auto awaits = [&](Deadline until) {
      return entry.waiting ? entry.generation->awaits_search(until)
                           : entry.generation->awaits_load(/*may_stall=*/true, until);
    };
    if (!awaits(Deadline::min())) continue;
    awaits(Clock::now() + kTierWait);
    return;
  }
}

double Batch::row_flops(const Sequence& sequence) const {
  return sequence.next_share_of_layers() * engine_.model().config().text.layers_flops(sequence.n_done());
}

int32_t Batch::prompt_rows(const Sequence& sequence) const {
  const int32_t chunk = engine_.options().prefill_chunk;
  if (!decodes_) return chunk;
  const double unknown = kShareBesideDecoding * chunk * engine_.model().config().text.layers_flops(0);
  const double allowed = budget_.prompt_flops(n_prompts_).value_or(unknown);
  const auto rows = static_cast<int32_t>(std::min<double>(chunk, (allowed - prompt_flops_) / row_flops(sequence)));
  return std::clamp(rows, std::min(kFewestRows, chunk), chunk);
}

// Rows of the next step: the one pending token of every decoding request, then pieces of prompts, first come first
// served, together at most a chunk; beside requests that decode, pictures and prompts have steps in turn. Without a KV
// cache (policy `none`) every step is a prompt. Whose images are still coming in is left out; where that is everybody,
// the first computes beside it, and nobody else has to wait if it stalls.
void Batch::plan() {
  items_.clear();
  owners_.clear();
  const auto add = [&](Entry& entry, int32_t rows) {
    items_.push_back(entry.generation->next_item(rows));
    owners_.push_back(&entry);
  };
  const auto can_run = [](const Entry& e, bool may_stall) {
    return e.runs() && !e.generation->awaits_load(may_stall, Deadline::min());
  };
  const auto runs = [&](const Entry& e) { return can_run(e, /*may_stall=*/false); };
  for (Entry& entry : requests_) {
    if (runs(entry) && entry.generation->sequence()->n_pending() == 1) add(entry, 1);
  }
  decodes_ = !items_.empty();
  prompt_flops_ = 0;
  const auto has_prompt = [&](const Entry& e) { return runs(e) && e.generation->sequence()->n_pending() != 1; };
  n_prompts_ =
      static_cast<int>(std::ranges::count_if(requests_, [&](const Entry& e) { return e.encodes() || has_prompt(e); }));
  const bool leaves_to_prompts = std::exchange(has_encoded_, false) && std::ranges::any_of(requests_, has_prompt);
  if (!leaves_to_prompts && encode() && decodes_) {
    has_encoded_ = true;
    return;
  }
  int32_t room = engine_.options().prefill_chunk - static_cast<int32_t>(items_.size());
  for (Entry& entry : requests_) {
    if (!runs(entry) || entry.generation->sequence()->n_pending() == 1) continue;
    if (decodes_ && (budget_.decodes_alone() || room <= 0)) break;
    Sequence& sequence = *entry.generation->sequence();
    const double per_row = row_flops(sequence);
    const int32_t rows = std::min(room, prompt_rows(sequence));
    if (rows <= 0) break;
    add(entry, rows);
    for (const TokenRun& run : items_.back().runs) {
      room -= run.end - run.begin;
      prompt_flops_ += per_row * (run.end - run.begin);
    }
    if (decodes_ && rows <= kFewestRows) break;
  }
  if (!items_.empty()) return;
  const auto first = std::ranges::find_if(requests_, [&](const Entry& e) { return can_run(e, /*may_stall=*/true); });
  if (first != requests_.end()) add(*first, engine_.options().prefill_chunk);
}

// Pictures, first come first served: one, or as much of it as a step has time for beside requests that decode. False:
// there is none, or it is not known yet what decoding takes.
bool Batch::encode() {
  const auto first = std::ranges::find_if(requests_, &Entry::encodes);
  if (first == requests_.end() || (decodes_ && budget_.decodes_alone())) return false;
  Deadline until = kNoDeadline;
  if (decodes_) until = Clock::now() + std::chrono::microseconds(std::llround(1000 * *budget_.prompt_ms(n_prompts_)));
  attempt(*first, [&] { first->generation->encode(until); });
  return true;
}

bool Batch::step() {
  const SavePace::Computing computing(engine_.tiers() != nullptr ? &engine_.tiers()->pace() : nullptr);
  check_cancelled();
  exchange_servants();
  admit();
  take_loaded();
  plan();
  if (items_.empty()) {
    if (std::ranges::none_of(requests_, &Entry::encodes)) wait_for_tiers();
    return std::ranges::any_of(requests_, [](const Entry& e) { return !e.generation->done(); });
  }
  const auto begin = Clock::now();
  try {
    const std::span<const Tensor> logits = engine_.stepper().step(items_);
    const double ms = ms_since(begin);
    budget_.took(decodes_, prompt_flops_, ms);
    for (size_t i = 0; i < items_.size(); ++i) act(*owners_[i], items_[i], logits[i], ms);
  } catch (const StepFailed& failure) {
    recover(failure);
  }
  return true;
}

// Policy first, then the next token: what it evicts, the token does not see.
void Batch::act(Entry& entry, const StepItem& item, const Tensor& logits, double ms) {
  attempt(entry, [&] {
    entry.generation->after_step(item, logits, ms);
    if (entry.generation->rehearse(logits)) return;
    const auto begin = Clock::now();
    const bool compressed = item.sequence->apply_policy();
    if (compressed) engine_.pools().trim();
    entry.generation->after_policy(compressed, ms_since(begin));
    if (compressed) entry.generation->make_room();  // compaction has shrunk the tables
    entry.generation->choose(logits);
  });
}

void Batch::recover(const StepFailed& failure) {
  if (failure.code() == ErrorCode::kMemory) {
    give_way(failure);
    return;
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

// Out of pages: the last comer of those that run waits; a request alone has come as far as it can.
void Batch::give_way(const StepFailed& failure) {
  Entry* const last = last_running();
  if (n_running() > 1) {
    suspend(*last);
    full_ = true;
    return;
  }
  if (last->generation->has_tokens()) {
    last->generation->finish("length");
  } else {
    last->generation->fail(failure);
  }
  end(*last);
}

std::vector<GenerateResult> generate(Engine& engine, std::vector<Request> requests) {
  Batch batch(engine);
  std::vector<RequestId> ids;
  for (Request& request : requests) ids.push_back(batch.add(std::move(request)));
  while (batch.step()) {
  }
  std::vector<GenerateResult> results;
  for (const RequestId id : ids) results.push_back(batch.remove(id));
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
