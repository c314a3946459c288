// Fetches memory that is read next, in equal parts beside the work that comes before it.
#pragma once

#include <cstddef>
#include <span>

namespace vlcache::cpu {

class Ahead {
 public:
  Ahead(std::span<const std::byte> memory, size_t n_parts)
      : next_(memory.data()),
        end_(next_ + memory.size()),
        lines_(n_parts == 0 ? 0 : memory.size() / 64 / n_parts + 1) {}
  void fetch_part() {  // into L2
    for (size_t i = 0; i < lines_ && next_ < end_; ++i, next_ += 64) __builtin_prefetch(next_, 0, 2);
  }

 private:
  const std::byte *next_, *end_;
  size_t lines_;
};

}  // namespace vlcache::cpu
