// SimilarImageIndex finds the image, among those whose KV is kept, that most of a new image equals: a page with an
// edited line, the next frame.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "base/function_ref.h"
#include "base/sha256.h"

namespace vlcache {

class SimilarImageIndex {
 public:
  // [n_tokens] A digest of what each token of an image shows (cell_hashes).
  using Cells = std::shared_ptr<const std::vector<uint64_t>>;
  // An image must have this share of its tokens in common with another one.
  static constexpr double kLeastShare = 0.5;
  static constexpr size_t kMaxImages = 512;             // the least recently used are forgotten
  static constexpr size_t kMaxCells = size_t{4} << 20;  // of all of them together: 32 MiB

  // An image and its cells. Only images of the same shape (a digest of what decides which token shows what, and of the
  // salt) are compared.
  void put(const Sha256Digest& image, const Sha256Digest& shape, Cells cells);
  struct Found {
    Sha256Digest image{};
    Cells cells;
  };
  // Of the other images that are usable, the one with most cells in common; of equals the one used last.
  std::optional<Found> find(const Sha256Digest& image, const Sha256Digest& shape, const std::vector<uint64_t>& cells,
                            FunctionRef<bool(const Sha256Digest& image)> usable);
  // Whether this is the first call for the image since long: it takes the KV of a similar one once, then its own.
  bool first_time(const Sha256Digest& image);
  void clear();

 private:
  struct Entry {
    Sha256Digest image, shape;
    Cells cells;
  };
  void forget(std::list<Entry>::iterator at);

  std::list<Entry> entries_;  // the one used last first
  std::map<Sha256Digest, std::list<Entry>::iterator> by_image_;
  size_t n_cells_ = 0;
  std::set<Sha256Digest> served_;
};

}  // namespace vlcache
