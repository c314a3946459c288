#include "reuse/image/similar_image_index.h"

#include <iterator>

namespace vlcache {
namespace {

constexpr size_t kMaxServed = 1 << 16;

}  // namespace

void SimilarImageIndex::put(const Sha256Digest& image, const Sha256Digest& shape, Cells cells) {
  if (cells == nullptr || cells->empty() || cells->size() > kMaxCells) return;
  if (const auto known = by_image_.find(image); known != by_image_.end()) forget(known->second);
  n_cells_ += cells->size();
  entries_.push_front({image, shape, std::move(cells)});
  by_image_[image] = entries_.begin();
  while (entries_.size() > kMaxImages || n_cells_ > kMaxCells) forget(std::prev(entries_.end()));
}

void SimilarImageIndex::forget(std::list<Entry>::iterator at) {
  n_cells_ -= at->cells->size();
  by_image_.erase(at->image);
  entries_.erase(at);
}

std::optional<SimilarImageIndex::Found> SimilarImageIndex::find(const Sha256Digest& image, const Sha256Digest& shape,
                                                                const std::vector<uint64_t>& cells,
                                                                FunctionRef<bool(const Sha256Digest& image)> usable) {
  auto best = entries_.end();
  size_t most = 0;
  for (auto at = entries_.begin(); at != entries_.end(); ++at) {
    if (at->shape != shape || at->image == image || at->cells->size() != cells.size() || !usable(at->image)) continue;
    size_t n_same = 0;
    for (size_t i = 0; i < cells.size(); ++i) n_same += (*at->cells)[i] == cells[i] ? 1 : 0;
    if (n_same > most) {
      most = n_same;
      best = at;
    }
  }
  if (best == entries_.end() || static_cast<double>(most) < kLeastShare * static_cast<double>(cells.size())) return {};
  entries_.splice(entries_.begin(), entries_, best);
  return Found{best->image, best->cells};
}

bool SimilarImageIndex::first_time(const Sha256Digest& image) {
  if (served_.size() >= kMaxServed) served_.clear();
  return served_.insert(image).second;
}

void SimilarImageIndex::clear() {
  served_.clear();
  entries_.clear();
  by_image_.clear();
  n_cells_ = 0;
}

}  // namespace vlcache
