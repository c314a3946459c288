// Inference: the one thread that computes. Other threads submit requests, and callbacks get the answers.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "base/os/machine.h"
#include "engine/scheduler/reuse_shadows.h"
#include "engine/scheduler/scheduler.h"

namespace vlcache {

// Whether a request's answer is still wanted: it was not cancelled, and its time is not up.
class Wanted {
 public:
  explicit Wanted(Clock::time_point until = Clock::time_point::max()) : until_(until) {}
  void cancel() { cancelled_ = true; }
  bool late() const { return Clock::now() > until_; }
  bool cancelled() const { return cancelled_ || late(); }

 private:
  std::atomic<bool> cancelled_{false};
  Clock::time_point until_;
};

class Inference {
 public:
  struct Limits {
    int n_running = 32;   // requests that run at once, at most
    int n_waiting = 256;  // requests in the waiting queue, at most
    double step_ms = 0;   // SchedulerOptions::max_step_ms
  };
  // Takes exclusive use of the engine; other threads may call const members only. `counts`, which outlives this:
  // answers with ReuseOptions::compared are compared for it while nothing else is to be computed; null: none are.
  Inference(Engine& engine, const Limits& limits, ReuseCountsByCodec* counts = nullptr);
  ~Inference() { end(); }

  // Called by the inference thread, like the request's callbacks; none of them may take long.
  using Done = std::function<void(GenerateResult)>;
  // Queues requests, all or none, each with its callback. Any thread. Returns false if the queue is full or closed;
  // then no callback is called. `accepted` is called before all other callbacks. `wanted` is polled before every step,
  // as callbacks.cancelled.
  bool submit(std::vector<Request> requests, std::shared_ptr<Wanted> wanted, std::vector<Done> done,
              const std::function<void()>& accepted);

  // Runs `work` on the inference thread before its next step, or at once if it is idle. `work` must not take long.
  void between_steps(std::function<void(Engine&)> work);

  // Accepts no more requests and ends the accepted ones, without calling their callbacks.
  void end();

  struct State {
    int n_running = 0, n_waiting = 0;
    int64_t kv_bytes = 0, kv_max_bytes = 0;        // pages in use, cached ones included; and their limit
    std::map<KvCodec, int64_t> kv_bytes_by_codec;  // kv_bytes, by the form of the pages
    int64_t kv_pages = 0, kv_max_pages = 0;        // likewise, in pages of the first layer's size
    int64_t n_tokens = 0;                          // of prompts and answers in running requests
    CacheTotals caches;                            // as of the last request's end; tiers: as of now
    KvCodec kv_codec = KvCodec::kBF16;             // default of requests
    std::map<KvCodec, ReuseCounts::State> reuse;   // by the codec of requests; empty: no answers are compared
  };
  // As of the last step.
  State state() const;

 private:
  struct Coming {
    Request request;
    Done done;
  };
  void run();
  void wait(std::unique_lock<std::mutex>& lock);
  bool take();
  void shadow();
  void save_first_use();
  void do_work(std::unique_lock<std::mutex>& lock);
  void step();
  void note_state();

  Engine& engine_;
  Limits limits_;
  ReuseCountsByCodec* counts_;
  const TierChain* tiers_;  // null: none
  int64_t page_bytes_ = 1;
  Scheduler scheduler_;
  std::map<RequestId, Done> requests_;  // in the scheduler
  std::unique_ptr<ReuseShadows> shadows_;
  OtherLoad other_load_;
  Clock::time_point next_shadow_ = Clock::now(), next_save_ = next_shadow_, in_spite_until_ = next_shadow_;
  std::optional<Clock::time_point> paused_since_;  // while other processes compute
  mutable std::mutex mutex_;                       // guards all below
  std::condition_variable changed_;
  std::deque<Coming> coming_;  // not yet in the scheduler
  std::deque<std::function<void(Engine&)>> work_;
  bool ending_ = false;
  State state_;
  std::thread thread_;
};

}  // namespace vlcache
