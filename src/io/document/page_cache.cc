#include "io/document/page_cache.h"

#include <span>

namespace vlcache {
namespace {

constexpr int64_t kEntryBytes = 256;  // of a cached entry, beside its bytes

}  // namespace

Sha256Digest PageCache::key_of(const std::string& owner, const Sha256Digest& file, int32_t page, int64_t part) {
  Sha256 hash;
  hash.add(std::ssize(owner));
  hash.add(std::as_bytes(std::span(owner)));
  hash.add(std::as_bytes(std::span(file)));
  hash.add(int64_t{page});
  hash.add(part);
  return hash.finish();
}

PageCache::Bytes PageCache::find(const Sha256Digest& key) {
  const std::lock_guard lock(mutex_);
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return nullptr;
  known_.splice(known_.begin(), known_, found->second);
  return found->second->bytes;
}

void PageCache::remember(const Sha256Digest& key, const Bytes& bytes) {
  const std::lock_guard lock(mutex_);
  if (std::ssize(*bytes) > kMaxBytes || by_key_.contains(key)) return;
  known_.push_front({key, bytes});
  by_key_.emplace(key, known_.begin());
  known_bytes_ += std::ssize(*bytes) + kEntryBytes;
  while (known_bytes_ > kMaxBytes) {
    known_bytes_ -= std::ssize(*known_.back().bytes) + kEntryBytes;
    by_key_.erase(known_.back().key);
    known_.pop_back();
  }
}

void PageCache::clear() {
  const std::lock_guard lock(mutex_);
  known_.clear();
  by_key_.clear();
  known_bytes_ = 0;
}

}  // namespace vlcache
