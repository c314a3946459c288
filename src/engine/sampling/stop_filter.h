// StopFilter holds text back while it may still become a stop string, and cuts at the first that appears.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace vlcache {

class StopFilter {
 public:
  // `included`: the answer ends with the stop string, not before it.
  explicit StopFilter(std::vector<std::string> stops, bool included = false);

  // Adds text; returns what is now certain to be part of the answer. After stopped() it returns nothing more.
  std::string push(std::string_view text);
  // The generation has ended: returns the text that was still held back.
  std::string finish();
  bool stopped() const { return !stopped_by_.empty(); }
  // The stop string that appeared; empty: none has.
  const std::string& stopped_by() const { return stopped_by_; }

 private:
  std::vector<std::string> stops_;  // no empty ones
  bool included_;
  std::string held_;
  std::string stopped_by_;
};

}  // namespace vlcache
