// Inference: the one thread that computes. Requests come from others, and their answers go from here to them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "engine/scheduler/batch.h"

namespace vlcache {

// A request that somebody still waits for, or not.
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
    int n_running = 32;   // requests that are computed together, at most
    int n_waiting = 256;  // and such as wait for that
    double step_ms = 0;   // BatchOptions::max_step_ms
  };
  // The engine is its alone from now on, but for what is const.
  Inference(Engine& engine, const Limits& limits);
  ~Inference() { end(); }

  // Called by the inference thread, like the request's callbacks: none of them may take long.
  using Done = std::function<void(GenerateResult)>;
  // Puts requests in line, all or none, each with whom to call. Any thread. False: the line is full, or closed; nobody
  // is called then. `accepted` is called before anybody else. `wanted` is asked before every step, by
  // callbacks.cancelled.
  bool submit(std::vector<Request> requests, std::shared_ptr<Wanted> wanted, std::vector<Done> done,
              const std::function<void()>& accepted);

  // What the inference thread is to do with the engine when its next step would come, or at once: not for long.
  void between_steps(std::function<void(Engine&)> work);

  // Takes no more requests and ends those that are there, without calling anybody.
  void end();

  struct State {
    int n_running = 0, n_waiting = 0;
    int64_t kv_bytes = 0, kv_max_bytes = 0;  // pages in use, those that are kept for others included; at most
    CacheTotals caches;                      // as of the last request's end
  };
  // As of the last step.
  State state() const;

 private:
  struct Coming {
    Request request;
    Done done;
  };
  void run();
  bool take();
  void do_work(std::unique_lock<std::mutex>& lock);
  void step();
  void note_state();

  Engine& engine_;
  Limits limits_;
  Batch batch_;
  std::map<RequestId, Done> requests_;  // in the batch
  mutable std::mutex mutex_;            // of all below
  std::condition_variable changed_;
  std::deque<Coming> coming_;  // to the batch, before its next step
  std::deque<std::function<void(Engine&)>> work_;
  bool ending_ = false;
  State state_;
  std::thread thread_;
};

}  // namespace vlcache
