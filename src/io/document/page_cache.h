// PageCache keeps the images and texts of pages, so that a document that is asked about again is not read again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/sha256.h"

namespace vlcache {

// What of a page is kept: its image in pixels of the longer side (> 0), or one of these.
enum PagePart : int64_t { kPageText = 0, kWholePage = -1 };

// Any thread. Evicts the least recently used.
class PageCache {
 public:
  using Bytes = std::shared_ptr<const std::vector<std::byte>>;

  static constexpr int64_t kMaxBytes = int64_t{64} << 20;

  // A part of a page of the file whose digest is `file`, for this owner alone.
  static Sha256Digest key_of(const std::string& owner, const Sha256Digest& file, int32_t page, int64_t part);

  Bytes find(const Sha256Digest& key);  // null: a miss
  void remember(const Sha256Digest& key, const Bytes& bytes);
  void clear();

 private:
  struct Known {
    Sha256Digest key;
    Bytes bytes;
  };

  std::mutex mutex_;        // guards all below
  std::list<Known> known_;  // most recently used first
  std::map<Sha256Digest, std::list<Known>::iterator> by_key_;
  int64_t known_bytes_ = 0;
};

}  // namespace vlcache
