// PrefixSaver over a replica's tree and tiers.
#include "reuse/prefix/prefix_places.h"
#include "reuse/simulate/replica.h"

namespace vlcache {
namespace {

// KV without contents: storing it takes a record's key and size.
class EmptyKv final : public PrefixKv {
 public:
  bool holds(const PrefixStore::Piece& /*piece*/) override { return true; }
  EmptyKv(ReplayTiers& tiers, const ReplayPages& pages) : tiers_(tiers), pages_(pages) {}

  int32_t end_at(int32_t n) override { return n; }
  int64_t save(const PrefixStore::Piece& piece, const PrefixStore::Worth& worth) override {
    const int64_t bytes = pages_.bytes_of(piece.end - piece.begin);
    tiers_.write(piece.key.content, bytes,
                 worth.first_use ? RecordRank::kFirstUse
                 : worth.yields  ? RecordRank::kYields
                                 : RecordRank::kUsual);
    return bytes;
  }

 private:
  ReplayTiers& tiers_;
  ReplayPages pages_;
};

class ReplayPlaces final : public PrefixPlaces {
 public:
  ReplayPlaces(ReplayTiers& tiers, PrefixTree& tree, const ReplayPages& pages)
      : tiers_(tiers), tree_(tree), pages_(pages) {}

  int32_t page_size() const override { return pages_.n_elements; }
  void on_evict(PrefixTree::EvictionListener listener) override { tree_.on_evict(std::move(listener)); }
  int32_t n_known(std::span<const Element> key) override { return static_cast<int32_t>(tree_.n_common(key)); }
  std::unique_ptr<PrefixKv> copy(std::span<const Element> /*key*/) override {
    return std::make_unique<EmptyKv>(tiers_, pages_);
  }
  std::unique_ptr<PrefixKv> pages(std::span<const PageGroup> /*groups*/) override {
    return std::make_unique<EmptyKv>(tiers_, pages_);
  }
  bool is_near(const PrefixStore::Piece& piece) override { return tiers_.on_disk(piece.key.content); }
  int64_t bytes(const PrefixStore::Piece& piece) override { return pages_.bytes_of(piece.end - piece.begin); }
  bool takes(const PrefixStore::Piece& /*piece*/) override { return true; }
  bool calm() override { return true; }
  void used(const PrefixStore::Piece& piece) override { tiers_.used(piece.key.content); }
  bool flush(Deadline /*deadline*/) override { return true; }

 private:
  ReplayTiers& tiers_;
  PrefixTree& tree_;
  ReplayPages pages_;
};

}  // namespace

ReplicaSaver::ReplicaSaver(ReplayTiers& tiers, PrefixTree& tree, const ReplayPages& pages, PrefixSaving when)
    : tiers_(tiers), pages_(pages), first_uses_(kNoLimit) {
  if (!tiers.any() || when == PrefixSaving::kOff) return;
  saver_.emplace(std::make_unique<ReplayPlaces>(tiers, tree, pages), when, first_uses_);
}

void ReplicaSaver::used(std::vector<Element> key, std::vector<PrefixStore::Piece> pieces, double cost) {
  const auto computed = [&] { return std::make_unique<EmptyKv>(tiers_, pages_); };
  saver_->used(std::move(key), std::move(pieces), computed, {.ms_per_token = cost});
}

void ReplicaSaver::idle() {
  while (saver_ && saver_->save_first_use()) {
  }
}

}  // namespace vlcache
