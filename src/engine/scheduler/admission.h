// Admission: which waiting request starts next, and which running one is preempted for it. Pure, as step_plan.h is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "engine/scheduler/request_order.h"

namespace vlcache {

// A waiting request, as far as admission depends on it.
struct WaitingRequest {
  QueuedRequest order;
  bool awaits = false;  // what another request computes (an image, a prefix), or what a tier is asked for
  bool fits = true;     // there are pages for its prompt
  bool passed = false;  // considered in this round already
};

struct Places {
  int32_t max_running = 0;  // 0: as many as memory holds
  bool full = false;        // pages ran out: nothing is admitted until a request ends, unless none runs
};

struct Admission {
  enum class Action : uint8_t {
    kNone,     // the round is over
    kPass,     // the request waits for something; the next one may go before it
    kStart,    // the request starts
    kPreempt,  // `victim` gives its KV back, then the request is considered again
  };
  Action action = Action::kNone;
  size_t request = 0;  // index in `waiting`
  size_t victim = 0;   // index in `running`
};

// Whether all that wait find a place whatever the order: equal priorities and places enough. Only where they do not,
// WaitingRequest::order.n_matched matters.
bool all_find_places(std::span<const WaitingRequest> waiting, size_t n_running, const Places& places);

// The request to consider next, which has not been passed: the first that came where all find places, else as
// next_queued says. None: all have been passed.
std::optional<size_t> next_waiting(std::span<const WaitingRequest> waiting, size_t n_running, const Places& places);

// What becomes of it. It starts where there is a place and its prompt fits; else the last comer among those that run
// with the lowest priority is preempted, if that is lower than its own; else the round is over: no smaller request goes
// before it, which might make it wait forever. running: priorities, in the order of arrival.
Admission admit(std::span<const WaitingRequest> waiting, size_t request, std::span<const int32_t> running,
                const Places& places);

// The request that is preempted first: of those with the lowest priority the last comer. Of at least one.
size_t preempted_first(std::span<const int32_t> running);

}  // namespace vlcache
