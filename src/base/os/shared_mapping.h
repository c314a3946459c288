// SharedMapping: a file mapped read-only, so that all processes that map it share its memory. The file must not change
// while it is mapped, except that it is replaced by renaming or removed. Where a page of it cannot be had any more (the
// file was cut short, its medium fails), the process ends with exit code 2 and a line that says so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/file.h"

namespace vlcache {

class SharedMapping {
 public:
  // Of the first `bytes` bytes, at least one, in huge pages where the kernel has the file in such. last_line: what
  // stderr gets in that case. Throws Error(kUnsupported) if the file system cannot map it, or 64 files are mapped.
  SharedMapping(const File& file, int64_t bytes, const std::string& last_line);
  ~SharedMapping();
  SharedMapping(const SharedMapping&) = delete;
  SharedMapping& operator=(const SharedMapping&) = delete;

  std::span<const std::byte> bytes() const { return {data_, bytes_}; }
  // Reads the pages of [begin, end); begin: a multiple of 4096. Returns 0, or EIO where that fails; kernels before 5.14
  // do nothing, and read when the bytes are.
  int populate(int64_t begin, int64_t end) const;

 private:
  std::byte* data_ = nullptr;
  size_t bytes_;
};

}  // namespace vlcache
