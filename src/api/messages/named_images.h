// NamedImages holds the bytes of images that requests have named, so that later requests need not send them again: in
// memory, and in the tiers that other replicas share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "store/kv_tier.h"

namespace vlcache {

// Any thread; with tiers it may wait for them, up to kTierTime for each.
class NamedImages {
 public:
  using Bytes = std::shared_ptr<const std::vector<std::byte>>;
  // The owner and the name. An owner finds only its own images.
  using Name = std::pair<std::string, std::string>;

  static constexpr Clock::duration kTierTime = std::chrono::seconds(2);

  // tiers: nearest first. model: under which their records are listed and evicted.
  explicit NamedImages(int64_t max_bytes, std::vector<std::shared_ptr<KvTier>> tiers = {},
                       const ModelFingerprint& model = {})
      : max_bytes_(max_bytes), tiers_(std::move(tiers)), model_(model) {}

  // Evicts the least recently used images; an image larger than the whole cache is not stored. A name stays with its
  // image, here and in all tiers that keep it: throws Error(kInput), beginning with `where`, for another one.
  void add(const Name& name, Bytes bytes, const std::string& where);
  // Throws Error(kNotFound), beginning with `where`.
  Bytes find(const Name& name, const std::string& where);
  void clear();  // tiers keep theirs

  struct State {
    size_t n_images = 0;
    int64_t bytes = 0, max_bytes = 0;
  };
  State state() const;

 private:
  struct Image {
    Name name;
    Bytes bytes;
  };
  using Images = std::list<Image>;

  Bytes known(const Name& name);
  void insert(const Name& name, Bytes bytes);
  RecordKey key_of(const Name& name) const;
  Bytes load(const Name& name) const;
  void save(const Name& name, const Bytes& bytes) const;

  int64_t max_bytes_;
  std::vector<std::shared_ptr<KvTier>> tiers_;
  ModelFingerprint model_;
  mutable std::mutex mutex_;  // guards all below
  int64_t bytes_ = 0;
  Images images_;  // most recently used first
  std::map<Name, Images::iterator> by_name_;
};

}  // namespace vlcache
