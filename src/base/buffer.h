// Buffer: owned memory. Large buffers are mapped from the kernel (huge pages where it grants them): they cost memory
// only where touched and return it on destruction. A buffer may instead be part of what it owns with others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

namespace vlcache {

class Buffer {
 public:
  Buffer() = default;
  // 64-byte aligned, zeroed. Throws Error(kMemory) naming the size.
  explicit Buffer(int64_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer taken(std::move(other));
    swap(taken);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  // Address space of `bytes` that uses memory only where it is written. For pools that grow.
  static Buffer reserve(int64_t bytes);
  // Bytes that may only be read and exist while `owner` does: the last buffer of a mapped file unmaps it.
  static Buffer part_of(std::shared_ptr<const void> owner, std::span<const std::byte> bytes);

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  bool empty() const { return data_ == nullptr; }
  // Returns the memory of [begin, end) to the system (whole 4 KiB pages inside it); it reads as zero afterwards. Not
  // for a part of something else.
  void release(int64_t begin, int64_t end);

 private:
  void swap(Buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(mapped_bytes_, other.mapped_bytes_);
    std::swap(owner_, other.owner_);
  }
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  int64_t mapped_bytes_ = 0;  // by this buffer alone
  std::shared_ptr<const void> owner_;
};

}  // namespace vlcache
