#include "reuse/cache_budget.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace vlcache {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

}  // namespace

bool CacheBudget::make_room(int64_t bytes) {
  const CheckScope shared(CheckScope::Failure::kAbort);
  if (bytes > max_bytes_) return false;
  while (used_bytes() + bytes > max_bytes_) {
    const auto first = std::ranges::min_element(members_, {}, &Member::least_priority);
    if (first == members_.end() || (*first)->least_priority() == kNever) return false;
    went((*first)->least_priority());
    (*first)->evict_least();
  }
  return true;
}

double CacheBudget::priority(double n_uses, double cost, int64_t bytes) const {
  return age_ + n_uses * cost / static_cast<double>(std::max<int64_t>(1, bytes));
}

int64_t CacheBudget::used_bytes() const {
  int64_t bytes = 0;
  for (const Member* member : members_) bytes += member->bytes();
  return bytes;
}

std::shared_ptr<const void> DigestCache::find_any(const Sha256Digest& key) {
  const auto at = entries_.find(key);
  if (at == entries_.end()) return nullptr;
  touch(at);
  return at->second.value;
}

void DigestCache::put(const Sha256Digest& key, std::shared_ptr<const void> value, int64_t bytes, double cost) {
  const CheckScope shared(CheckScope::Failure::kAbort);
  CHECK(bytes >= 0 && value != nullptr);
  if (const auto at = entries_.find(key); at != entries_.end()) erase(at);
  if (!budget_.make_room(bytes)) return;
  const auto at =
      entries_.emplace(key, Entry{.value = std::move(value), .bytes = bytes, .cost = cost, .order = {}}).first;
  bytes_ += bytes;
  ++version_;
  touch(at);
}

void DigestCache::drop(const Sha256Digest& key) {
  if (const auto at = entries_.find(key); at != entries_.end()) erase(at);
}

void DigestCache::for_each(FunctionRef<void(const Sha256Digest& key, int64_t bytes, int64_t n_uses)> visit) const {
  for (const auto& [key, entry] : entries_) visit(key, entry.bytes, static_cast<int64_t>(entry.n_uses));
}

void DigestCache::clear() {
  while (!entries_.empty()) erase(entries_.begin());
}

double DigestCache::least_priority() const { return queue_.empty() ? kNever : queue_.begin()->first.first; }

void DigestCache::evict_least() {
  CHECK(!queue_.empty());
  ++n_evictions_;
  erase(queue_.begin()->second);
}

void DigestCache::touch(Entries::iterator at) {
  Entry& entry = at->second;
  queue_.erase(entry.order);
  entry.n_uses += 1;
  entry.order = {budget_.priority(entry.n_uses, entry.cost, entry.bytes), ++n_touched_};
  if (!holds_.contains(at->first)) queue_.emplace(entry.order, at);
}

CacheHold DigestCache::hold(const Sha256Digest& key) {
  const auto at = entries_.find(key);
  if (++holds_[key] == 1 && at != entries_.end()) queue_.erase(at->second.order);
  return CacheHold([this, key] { release(key); });
}

void DigestCache::release(const Sha256Digest& key) {
  if (--holds_[key] > 0) return;
  holds_.erase(key);
  if (const auto at = entries_.find(key); at != entries_.end()) queue_.emplace(at->second.order, at);
}

void DigestCache::erase(Entries::iterator at) {
  ++version_;
  queue_.erase(at->second.order);
  bytes_ -= at->second.bytes;
  entries_.erase(at);
}

}  // namespace vlcache
