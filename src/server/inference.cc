// Taking requests in between two steps.
#include "server/inference.h"

#include <utility>

#include "base/error.h"

namespace vlcache {

Inference::Inference(Engine& engine, const Limits& limits) : engine_(engine), limits_(limits), batch_(engine) {
  note_state();
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

bool Inference::submit(std::vector<Request> requests, std::shared_ptr<Wanted> wanted, std::vector<Done> done,
                       const std::function<void()>& accepted) {
  CHECK(requests.size() == done.size());
  {
    const std::lock_guard lock(mutex_);
    if (ending_ || waiting_.size() + requests.size() > static_cast<size_t>(limits_.n_waiting)) return false;
    accepted();
    for (size_t i = 0; i < requests.size(); ++i) {
      requests[i].callbacks.cancelled = [wanted] { return wanted->cancelled(); };
      waiting_.push_back({std::move(requests[i]), std::move(done[i])});
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
  const std::lock_guard lock(mutex_);
  State state = state_;
  state.n_waiting = static_cast<int>(waiting_.size());
  return state;
}

void Inference::run() {
  while (take()) step();
}

// Fills free places; waits where there is nothing else to do. False: this is the end.
bool Inference::take() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return ending_ || !waiting_.empty() || !running_.empty() || !work_.empty(); });
  if (ending_) {
    waiting_.clear();
    for (const auto& [id, done] : running_) batch_.remove(id);
    running_.clear();
    work_.clear();
    return false;
  }
  do_work(lock);
  let_go_cancelled(lock);
  while (!waiting_.empty() && running_.size() < static_cast<size_t>(limits_.n_running)) {
    Waiting next = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    try {
      const RequestId id = batch_.add(std::move(next.request));
      running_.emplace(id, std::move(next.done));
    } catch (const Error& e) {
      GenerateResult refused;
      refused.error = e;
      refused.finish_reason = "error";
      next.done(std::move(refused));
    }
    lock.lock();
  }
  state_.n_running = static_cast<int>(running_.size());
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
  lock.unlock();
  note_state();
  lock.lock();
}

// Whoever has left holds no place in line.
void Inference::let_go_cancelled(std::unique_lock<std::mutex>& lock) {
  std::vector<Waiting> cancelled;
  std::erase_if(waiting_, [&](Waiting& waiting) {
    if (!waiting.request.callbacks.cancelled()) return false;
    cancelled.push_back(std::move(waiting));
    return true;
  });
  if (cancelled.empty()) return;
  lock.unlock();
  for (const Waiting& waiting : cancelled) {
    GenerateResult nothing;
    nothing.finish_reason = "cancelled";
    waiting.done(std::move(nothing));
  }
  lock.lock();
}

void Inference::step() {
  batch_.step();
  const size_t before = running_.size();
  for (auto it = running_.begin(); it != running_.end();) {
    if (!batch_.done(it->first)) {
      ++it;
      continue;
    }
    it->second(batch_.remove(it->first));
    it = running_.erase(it);
  }
  if (running_.size() != before) {
    note_state();
  } else {
    note_load();
  }
}

// What costs nothing to know.
void Inference::note_load() {
  const std::lock_guard lock(mutex_);
  state_.n_running = static_cast<int>(running_.size());
  state_.kv_bytes = engine_.pools().used_bytes();
  state_.kv_max_bytes = engine_.pools().max_bytes();
}

void Inference::note_state() {
  CacheTotals caches = engine_.cache_totals();
  note_load();
  const std::lock_guard lock(mutex_);
  state_.caches = std::move(caches);
}

}  // namespace vlcache
