#include "base/buffer.h"

#include <sys/mman.h>

#include <string>

#include "base/error.h"

namespace vlcache {
namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kHugePage = 2 << 20;  // above this size huge pages are requested: fewer TLB misses in GEMV

int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

std::byte* map_memory(int64_t bytes, int flags) {
  void* p =
      mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  if (p == MAP_FAILED) {
    throw Error(ErrorCode::kMemory, "out of memory: could not allocate " + std::to_string(bytes) + " bytes");
  }
  if (bytes >= kHugePage) madvise(p, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  return static_cast<std::byte*>(p);
}

}  // namespace

Buffer::Buffer(int64_t bytes) : bytes_(bytes) {
  CHECK(bytes >= 0);
  if (bytes == 0) return;
  mapped_bytes_ = round_up(bytes, bytes >= kHugePage ? kHugePage : kPage);
  data_ = map_memory(mapped_bytes_, 0);
}

Buffer Buffer::reserve(int64_t bytes) {
  Buffer b;
  b.bytes_ = bytes;
  b.mapped_bytes_ = round_up(bytes, kPage);
  b.data_ = map_memory(b.mapped_bytes_, MAP_NORESERVE);
  return b;
}

Buffer Buffer::part_of(std::shared_ptr<const void> owner, std::span<const std::byte> bytes) {
  Buffer b;
  if (bytes.empty()) return b;
  b.data_ = const_cast<std::byte*>(bytes.data());
  b.bytes_ = static_cast<int64_t>(bytes.size());
  b.owner_ = std::move(owner);
  return b;
}

Buffer::~Buffer() {
  if (mapped_bytes_ > 0) munmap(data_, static_cast<size_t>(mapped_bytes_));
}

void Buffer::release(int64_t begin, int64_t end) {
  CHECK(owner_ == nullptr);
  begin = round_up(begin, kPage);
  end = end / kPage * kPage;
  if (begin < end) madvise(data_ + begin, static_cast<size_t>(end - begin), MADV_DONTNEED);
}

}  // namespace vlcache
