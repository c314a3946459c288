// NamedImages holds the bytes of images that requests have named, so that later requests need not send them again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace vlcache {

// Any thread.
class NamedImages {
 public:
  using Bytes = std::shared_ptr<const std::vector<std::byte>>;
  // The owner and the name. An owner finds only its own images.
  using Name = std::pair<std::string, std::string>;

  explicit NamedImages(int64_t max_bytes) : max_bytes_(max_bytes) {}

  // Evicts the least recently used images; an image larger than the whole cache is not stored. A name stays with its
  // image: throws Error(kInput), beginning with `where`, for another one.
  void add(const Name& name, Bytes bytes, const std::string& where);
  // Throws Error(kNotFound), beginning with `where`.
  Bytes find(const Name& name, const std::string& where);
  void clear();

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

  int64_t max_bytes_;
  mutable std::mutex mutex_;  // guards all below
  int64_t bytes_ = 0;
  Images images_;  // most recently used first
  std::map<Name, Images::iterator> by_name_;
};

}  // namespace vlcache
