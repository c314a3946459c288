// Defines memory for what is between an op's operands and its result.
#pragma once

#include "base/buffer.h"

namespace vlcache::cpu {

// Memory that grows to the largest request and is kept: nothing is allocated once the sizes repeat.
class Scratch {
 public:
  std::byte* get(int64_t bytes) {
    if (buffer_.bytes() < bytes) {
      buffer_ = Buffer();  // first free, then allocate
      buffer_ = Buffer(bytes);
    }
    return buffer_.data();
  }
  int64_t bytes() const { return buffer_.bytes(); }

 private:
  Buffer buffer_;
};

}  // namespace vlcache::cpu
