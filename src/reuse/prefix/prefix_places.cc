#include "reuse/prefix/prefix_places.h"

#include "base/error.h"

namespace vlcache {
namespace {

constexpr int64_t kCalmBytes = 32 << 20;  // queued: a record of a model of 2 billion weights, a second of a busy disk

class ComputedKv final : public PrefixKv {
 public:
  ComputedKv(PrefixStore& store, KvCache cache) : store_(store), cache_(std::move(cache)) {}

  int32_t end_at(int32_t n) override {
    cache_.truncate(n);
    if (n % kPageSlots != 0 && !holds_token(n - 1)) return n / kPageSlots * kPageSlots;
    try {
      cache_.clear_tails();
    } catch (const Error&) {  // no page is free for a copy of the last one
      return n / kPageSlots * kPageSlots;
    }
    return n;
  }
  bool holds(const PrefixStore::Piece& piece) override { return store_.holds(piece, cache_); }
  int64_t save(const PrefixStore::Piece& piece, const PrefixStore::Worth& worth) override {
    return store_.save(piece, cache_, worth);
  }

 private:
  bool holds_token(int32_t token) const {
    for (int32_t layer = 0; layer < cache_.shape().n_layers(); ++layer) {
      for (int32_t head = 0; head < cache_.shape().n_own_heads(layer); ++head) {
        if (!cache_.holds(layer, head, token)) return false;
      }
    }
    return true;
  }

  PrefixStore& store_;
  KvCache cache_;
};

class CachedPages final : public PrefixKv {
 public:
  CachedPages(PrefixStore& store, const PrefixCache& cache, std::span<const PageGroup> groups)
      : store_(store), cache_(cache), groups_(groups) {}

  int32_t end_at(int32_t n) override { return n; }
  bool holds(const PrefixStore::Piece& piece) override {
    return store_.holds(piece, [this](int32_t page) { return pages(page); });
  }
  int64_t save(const PrefixStore::Piece& piece, const PrefixStore::Worth& worth) override {
    return store_.save(
        piece, [this](int32_t page) { return pages(page); }, worth);
  }

 private:
  std::span<const PageForms> pages(int32_t page) const {
    if (page >= std::ssize(groups_)) return {};
    return cache_.forms(groups_[static_cast<size_t>(page)]);
  }

  PrefixStore& store_;
  const PrefixCache& cache_;
  std::span<const PageGroup> groups_;
};

// The pages of a key in the prefix cache, and a copy of the last one if the key ends inside it.
class CachedPrefixKv final : public PrefixKv {
 public:
  CachedPrefixKv(PrefixStore& store, PrefixCache& cache, std::span<const Element> key, KvCache empty)
      : store_(store),
        cache_(cache),
        key_(key.begin(), key.end()),
        pages_(cache.pages(key)),
        whole_(store, cache, pages_.groups),
        tail_(std::move(empty)) {}

  int32_t end_at(int32_t n) override {
    const std::span<const Element> key = std::span(key_).first(static_cast<size_t>(n));
    const int32_t whole = n / kPageSlots * kPageSlots;
    if (n == whole || cache_.n_known(key) < n) return whole;
    cache_.share(key, tail_);
    try {
      tail_.clear_tails();
    } catch (const Error&) {  // no page is free for a copy of the last one
      return whole;
    }
    return n;
  }
  bool holds(const PrefixStore::Piece& piece) override {
    return is_whole(piece) ? whole_.holds(piece) : store_.holds(piece, tail_);
  }
  int64_t save(const PrefixStore::Piece& piece, const PrefixStore::Worth& worth) override {
    return is_whole(piece) ? whole_.save(piece, worth) : store_.save(piece, tail_, worth);
  }

 private:
  static bool is_whole(const PrefixStore::Piece& piece) { return piece.end % kPageSlots == 0; }

  PrefixStore& store_;
  PrefixCache& cache_;
  std::vector<Element> key_;
  PrefixCache::Pages pages_;
  CachedPages whole_;
  KvCache tail_;
};

class StoredPrefixes final : public PrefixPlaces {
 public:
  StoredPrefixes(PrefixStore& store, PrefixCache& cache, std::function<KvCache()> empty)
      : store_(store), cache_(cache), empty_(std::move(empty)) {}

  void on_evict(PrefixTree::EvictionListener listener) override { cache_.on_evict(std::move(listener)); }
  int32_t n_known(std::span<const Element> key) override { return cache_.known(key).n_common; }
  std::unique_ptr<PrefixKv> copy(std::span<const Element> key) override {
    return std::make_unique<CachedPrefixKv>(store_, cache_, key, empty_());
  }
  std::unique_ptr<PrefixKv> pages(std::span<const PageGroup> groups) override {
    return std::make_unique<CachedPages>(store_, cache_, groups);
  }
  bool is_near(const PrefixStore::Piece& piece) override { return store_.is_near(piece); }
  int64_t bytes(const PrefixStore::Piece& piece) override { return store_.piece_bytes(piece); }
  bool takes(const PrefixStore::Piece& piece) override { return store_.takes(piece); }
  bool calm() override { return store_.queues_at_most(kCalmBytes); }
  void used(const PrefixStore::Piece& piece) override { store_.used(piece); }
  bool flush(Deadline deadline) override { return store_.flush(deadline); }

 private:
  PrefixStore& store_;
  PrefixCache& cache_;
  std::function<KvCache()> empty_;
};

}  // namespace

std::unique_ptr<PrefixPlaces> make_prefix_places(PrefixStore& store, PrefixCache& cache,
                                                 std::function<KvCache()> empty) {
  return std::make_unique<StoredPrefixes>(store, cache, std::move(empty));
}

std::unique_ptr<PrefixKv> prefix_kv(PrefixStore& store, KvCache cache) {
  return std::make_unique<ComputedKv>(store, std::move(cache));
}

}  // namespace vlcache
