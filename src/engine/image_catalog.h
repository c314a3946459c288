// ImageCatalog lists, pins and drops the images that an engine caches, one by one, for its operator.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "base/sha256.h"
#include "reuse/cache_budget.h"

namespace vlcache {

class EngineCaches;
class KvCaches;

struct ImageEntry {
  Sha256Digest key{};                    // image_keys()
  int64_t kv_bytes = 0, rows_bytes = 0;  // of its KV, of its embeddings; 0: not cached
  int64_t n_uses = 0;                    // of either; being cached is one
  bool pinned = false;
};

class ImageCatalog {
 public:
  // The caches outlive this. Of an image's KV, all codecs are listed, pinned and dropped as one.
  explicit ImageCatalog(EngineCaches& caches);

  // The images in memory, in the order of their keys.
  std::vector<ImageEntry> list() const;
  bool has(const Sha256Digest& key) const;
  // Stays in memory until it is unpinned, dropped, or everything is cleared. Pins take room from all other images.
  void pin(const Sha256Digest& key);
  void unpin(const Sha256Digest& key) { pins_.erase(key); }
  void unpin_all() { pins_.clear(); }
  // Drops an image from memory and (soon) from every tier, with the prefixes there that depend on it, and all prefixes
  // from memory: they may contain its tokens, or tokens that attended to these. Returns the bytes freed in memory.
  int64_t drop(const Sha256Digest& key);

 private:
  struct Pin {
    CacheHold rows;
    std::vector<CacheHold> kv;  // by codec
  };
  EngineCaches& caches_;
  std::map<Sha256Digest, Pin> pins_;
};

}  // namespace vlcache
