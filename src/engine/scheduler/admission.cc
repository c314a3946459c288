#include "engine/scheduler/admission.h"

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace vlcache {

bool all_find_places(std::span<const WaitingRequest> waiting, size_t n_running, const Places& places) {
  size_t n = 0;
  std::optional<int32_t> priority;
  for (const WaitingRequest& w : waiting) {
    if (w.passed) continue;
    ++n;
    if (priority.value_or(w.order.priority) != w.order.priority) return false;
    priority = w.order.priority;
  }
  return places.max_running == 0 || n + n_running <= static_cast<size_t>(places.max_running);
}

std::optional<size_t> next_waiting(std::span<const WaitingRequest> waiting, size_t n_running, const Places& places) {
  std::vector<size_t> left;
  for (size_t i = 0; i < waiting.size(); ++i) {
    if (!waiting[i].passed) left.push_back(i);
  }
  if (left.empty()) return std::nullopt;
  if (all_find_places(waiting, n_running, places)) return left[0];
  std::vector<QueuedRequest> orders;
  for (const size_t i : left) orders.push_back(waiting[i].order);
  return left[next_queued(orders)];
}

size_t preempted_first(std::span<const int32_t> running) {
  CHECK(!running.empty());
  size_t first = 0;
  for (size_t i = 1; i < running.size(); ++i) {
    if (running[i] <= running[first]) first = i;
  }
  return first;
}

Admission admit(std::span<const WaitingRequest> waiting, size_t request, std::span<const int32_t> running,
                const Places& places) {
  using Action = Admission::Action;
  const WaitingRequest& w = waiting[request];
  if (w.awaits) return {.action = Action::kPass, .request = request};
  const size_t n = running.size();
  const bool has_place =
      n == 0 || (!places.full && (places.max_running == 0 || n < static_cast<size_t>(places.max_running)));
  if (has_place && w.fits) return {.action = Action::kStart, .request = request};
  if (n == 0) return {.action = Action::kNone, .request = request};
  const size_t victim = preempted_first(running);
  if (running[victim] >= w.order.priority) return {.action = Action::kNone, .request = request};
  return {.action = Action::kPreempt, .request = request, .victim = victim};
}

}  // namespace vlcache
