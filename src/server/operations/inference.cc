#include "server/operations/inference.h"

#include <utility>

#include "base/error.h"
#include "base/os/signals.h"
#include "base/os/threads.h"

namespace vlcache {
namespace {

// A client that sends its next request when it has read an answer finds the machine idle.
constexpr std::chrono::milliseconds kIdleBeforeShadows{200};
// The same before prompts are stored at their first use; and between two of their records, each of which the inference
// thread copies.
constexpr std::chrono::milliseconds kIdleBeforeSaving{100}, kBetweenSaves{5}, kWhileQueued{25};
// Other processes may keep this share of the CPUs busy that this one uses. Where they always take more, shadows run
// for half a second after four.
constexpr double kQuietShare = 0.25;
constexpr std::chrono::milliseconds kLongestPause{4000}, kInSpite{500};

}  // namespace

Inference::Inference(Engine& engine, const Limits& limits, ReuseCountsByCodec* counts)
    : engine_(engine),
      limits_(limits),
      counts_(counts),
      tiers_(engine.kv().tiers()),
      scheduler_(engine, {.max_running = limits.n_running, .max_step_ms = limits.step_ms}) {
  if (counts != nullptr) shadows_ = std::make_unique<ReuseShadows>(engine, *counts);
  state_.caches = engine_.kv().totals();
  state_.kv_max_bytes = engine_.pools().max_bytes();
  for (const KvCodec codec : engine_.pools().codecs()) state_.kv_bytes_by_codec[codec] = 0;
  page_bytes_ = engine_.pools().of(engine_.kv_shape().layers[0].head_dim, engine_.kv_shape().codec).page_bytes();
  state_.kv_max_pages = state_.kv_max_bytes / page_bytes_;
  thread_ = std::thread([this] { run(); });
}

void Inference::end() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

// Free slots count: with a waiting queue of 0, as many requests are accepted as can run.
bool Inference::submit(std::vector<Request> requests, std::shared_ptr<Wanted> wanted, std::vector<Done> done,
                       const std::function<void()>& accepted) {
  CHECK(requests.size() == done.size());
  {
    const std::lock_guard lock(mutex_);
    const size_t n = static_cast<size_t>(state_.n_running + state_.n_waiting) + coming_.size() + requests.size();
    if (ending_ || n > static_cast<size_t>(limits_.n_running + limits_.n_waiting)) return false;
    accepted();
    for (size_t i = 0; i < requests.size(); ++i) {
      requests[i].callbacks.cancelled = [wanted] { return wanted->cancelled(); };
      if (counts_ != nullptr) {
        requests[i].callbacks.on_answered = [this](AnsweredPrompt answered) { shadows_->add(std::move(answered)); };
      }
      coming_.push_back({std::move(requests[i]), std::move(done[i])});
    }
  }
  changed_.notify_all();
  return true;
}

void Inference::between_steps(std::function<void(Engine&)> work) {
  {
    const std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
  }
  changed_.notify_all();
}

Inference::State Inference::state() const {
  State state;
  {
    const std::lock_guard lock(mutex_);
    state = state_;
    state.n_waiting += static_cast<int>(coming_.size());
  }
  state.kv_codec = engine_.kv_codec();
  if (tiers_ != nullptr) state.caches.tiers = tiers_->stats();
  if (counts_ != nullptr) state.reuse = counts_->states();
  return state;
}

void Inference::run() {
  ensure_signal_stack();
  while (take()) {
    if (!requests_.empty()) {
      step();
      const auto now = Clock::now();
      next_shadow_ = now + kIdleBeforeShadows;
      next_save_ = now + kIdleBeforeSaving;
    } else if (engine_.kv().has_first_uses()) {  // before shadows, beside which little is stored
      if (Clock::now() >= next_save_) save_first_use();
    } else if (shadows_ != nullptr && Clock::now() >= next_shadow_) {
      shadow();
    }
  }
  shadows_.reset();
}

void Inference::save_first_use() {
  engine_.kv().save_first_use();
  CacheTotals totals = engine_.kv().totals();
  const std::lock_guard lock(mutex_);
  const bool queued = totals.first_use.queued > state_.caches.first_use.queued;
  next_save_ = Clock::now() + (queued ? kBetweenSaves : kWhileQueued);
  state_.caches = std::move(totals);
}

// One step of a shadow, or none while other processes compute.
void Inference::shadow() {
  const auto now = Clock::now();
  if (other_load_.cpus() <= kQuietShare * n_threads()) {
    paused_since_.reset();
  } else if (paused_since_ && now - *paused_since_ >= kLongestPause) {
    paused_since_.reset();
    in_spite_until_ = now + kInSpite;
  } else if (now >= in_spite_until_) {
    if (!paused_since_) paused_since_ = now;
    next_shadow_ = now + kIdleBeforeShadows;
    return;
  }
  shadows_->step();
}

// Until there is something to do.
void Inference::wait(std::unique_lock<std::mutex>& lock) {
  const auto busy = [this] { return ending_ || !coming_.empty() || !requests_.empty() || !work_.empty(); };
  const bool saves = engine_.kv().has_first_uses(), compares = shadows_ != nullptr && !shadows_->idle();
  if (!saves && !compares) {
    changed_.wait(lock, busy);
  } else if (changed_.wait_until(lock, saves ? next_save_ : next_shadow_, busy) && !coming_.empty() && compares) {
    shadows_->abandon();
  }
}

// Passes new requests to the scheduler; waits if there is nothing else to do. Returns false at the end.
bool Inference::take() {
  std::unique_lock lock(mutex_);
  wait(lock);
  if (ending_) {
    coming_.clear();
    for (const auto& [id, done] : requests_) scheduler_.remove(id);
    requests_.clear();
    work_.clear();
    return false;
  }
  do_work(lock);
  while (!coming_.empty()) {
    Coming next = std::move(coming_.front());
    coming_.pop_front();
    ++state_.n_waiting;
    lock.unlock();
    try {
      const RequestId id = scheduler_.add(std::move(next.request));
      requests_.emplace(id, std::move(next.done));
    } catch (const Error& e) {
      GenerateResult refused;
      refused.error = e;
      refused.finish_reason = FinishReason::kError;
      next.done(std::move(refused));
    }
    lock.lock();
  }
  return true;
}

void Inference::do_work(std::unique_lock<std::mutex>& lock) {
  if (work_.empty()) return;
  while (!work_.empty()) {
    const std::function<void(Engine&)> work = std::move(work_.front());
    work_.pop_front();
    lock.unlock();
    work(engine_);
    lock.lock();
  }
  state_.caches = engine_.kv().totals();
  note_state();
}

void Inference::step() {
  scheduler_.step();
  std::vector<std::pair<Done, GenerateResult>> ended;
  for (auto it = requests_.begin(); it != requests_.end();) {
    if (!scheduler_.done(it->first)) {
      ++it;
      continue;
    }
    ended.emplace_back(std::move(it->second), scheduler_.remove(it->first));
    it = requests_.erase(it);
  }
  {
    const std::lock_guard lock(mutex_);
    if (!ended.empty()) state_.caches = engine_.kv().totals();
    note_state();
  }
  // Called after the slot is released, so that a client that reacts at once is admitted.
  for (auto& [done, result] : ended) done(std::move(result));
}

// State that costs nothing to read.
void Inference::note_state() {
  state_.n_running = static_cast<int>(scheduler_.n_running());
  state_.n_waiting = static_cast<int>(scheduler_.n_waiting());
  state_.kv_bytes = engine_.pools().used_bytes();
  for (const KvCodec codec : engine_.pools().codecs()) {
    state_.kv_bytes_by_codec[codec] = engine_.pools().used_bytes(codec);
  }
  state_.kv_pages = state_.kv_bytes / page_bytes_;
  state_.n_tokens = 0;
  scheduler_.for_each_sequence([this](const Sequence& sequence) { state_.n_tokens += sequence.n_tokens(); });
}

}  // namespace vlcache
