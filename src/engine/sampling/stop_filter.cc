#include "engine/sampling/stop_filter.h"

#include <algorithm>
#include <utility>

namespace vlcache {

StopFilter::StopFilter(std::vector<std::string> stops, bool included) : stops_(std::move(stops)), included_(included) {
  std::erase_if(stops_, [](const std::string& s) { return s.empty(); });
}

std::string StopFilter::push(std::string_view text) {
  if (stopped()) return "";
  held_ += text;
  size_t cut = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t at = held_.find(stop);
    if (at >= cut) continue;
    cut = at;
    stopped_by_ = stop;
  }
  if (stopped()) {
    held_.resize(cut + (included_ ? stopped_by_.size() : 0));
    return std::exchange(held_, "");
  }
  // The longest tail that begins some stop string is held back.
  size_t tail = 0;
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.size() - 1, held_.size()); n > tail; --n) {
      if (held_.ends_with(std::string_view(stop).substr(0, n))) tail = n;
    }
  }
  std::string out = held_.substr(0, held_.size() - tail);
  held_.erase(0, out.size());
  return out;
}

std::string StopFilter::finish() { return stopped() ? "" : std::exchange(held_, ""); }

}  // namespace vlcache
