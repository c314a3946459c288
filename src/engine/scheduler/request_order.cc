// The score of a request: its share of the longest match, plus the share of kPatience that it has waited.
#include "engine/scheduler/request_order.h"

#include <algorithm>

#include "base/error.h"

namespace vlcache {

size_t next_queued(std::span<const QueuedRequest> queue) {
  CHECK(!queue.empty());
  const int32_t highest = std::ranges::max(queue, {}, &QueuedRequest::priority).priority;
  int64_t most = 1;
  for (const QueuedRequest& request : queue) {
    if (request.priority == highest) most = std::max(most, request.n_matched);
  }
  const auto score = [&](const QueuedRequest& request) {
    return request.n_matched * kPatience + request.n_turns * most;
  };  // x most kPatience
  size_t next = queue.size();
  for (size_t i = 0; i < queue.size(); ++i) {
    if (queue[i].priority != highest) continue;
    if (next == queue.size() || score(queue[i]) > score(queue[next])) next = i;
  }
  return next;
}

}  // namespace vlcache
