// The score of a request: its share of the longest match, plus the share of kPatience that it has waited.
#include "engine/scheduler/request_order.h"

#include <algorithm>

#include "base/error.h"

namespace vlcache {

size_t next_in_line(std::span<const InLine> line) {
  CHECK(!line.empty());
  const int32_t highest = std::ranges::max(line, {}, &InLine::priority).priority;
  int64_t most = 1;
  for (const InLine& in : line) {
    if (in.priority == highest) most = std::max(most, in.n_matched);
  }
  const auto score = [&](const InLine& in) {
    return in.n_matched * kPatience + in.n_turns * most;
  };  // x most kPatience
  size_t next = line.size();
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i].priority != highest) continue;
    if (next == line.size() || score(line[i]) > score(line[next])) next = i;
  }
  return next;
}

}  // namespace vlcache
