// PrefixPlaces: what PrefixSaver stores prefixes from and where: the prefix cache and the tiers of a process, or of one
// that is simulated.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "reuse/prefix/prefix_cache.h"
#include "reuse/prefix/prefix_store.h"

namespace vlcache {

// The KV of a prefix from its first token on, which pieces are stored from.
class PrefixKv {
 public:
  virtual ~PrefixKv() = default;
  // Ends it after n tokens, all of which it has. Returns how many of them can be stored: a piece that ends inside a
  // page needs a copy of that page, for which none may be free.
  virtual int32_t end_at(int32_t n) = 0;
  // Whether it has the piece's pages in the piece's form.
  virtual bool holds(const PrefixStore::Piece& piece) = 0;
  // Queues a piece that it holds. Returns the bytes queued.
  virtual int64_t save(const PrefixStore::Piece& piece, const PrefixStore::Worth& worth) = 0;
};

class PrefixPlaces {
 public:
  virtual ~PrefixPlaces() = default;
  // Elements of a page, in which keys and pieces are counted, too.
  virtual int32_t page_size() const { return kPageSlots; }
  // As PrefixTree::on_evict; null: nothing is called any more.
  virtual void on_evict(PrefixTree::EvictionListener listener) = 0;
  // Number of leading elements of the key that memory has, in whatever form.
  virtual int32_t n_known(std::span<const Element> key) = 0;
  // The KV of a key that memory has.
  virtual std::unique_ptr<PrefixKv> copy(std::span<const Element> key) = 0;
  // The KV of pages that memory is about to evict: saving alone is allowed, while these are there.
  virtual std::unique_ptr<PrefixKv> pages(std::span<const PageGroup> groups) = 0;
  // Whether a tier on this machine has the piece.
  virtual bool is_near(const PrefixStore::Piece& piece) = 0;
  // Bytes of the piece's KV.
  virtual int64_t bytes(const PrefixStore::Piece& piece) = 0;
  // Whether a tier's queue takes the piece now.
  virtual bool takes(const PrefixStore::Piece& piece) = 0;
  // Whether little waits to be stored: a request that comes now is computed beside a record or two being written.
  virtual bool calm() = 0;
  // Tells the tiers that a piece that they have was used in memory.
  virtual void used(const PrefixStore::Piece& piece) = 0;
  virtual bool flush(Deadline deadline) = 0;
};

// The prefix cache and the tiers of this process. All must outlive it. `empty`: makes an empty cache of the model's
// shape.
std::unique_ptr<PrefixPlaces> make_prefix_places(PrefixStore& store, PrefixCache& cache,
                                                 std::function<KvCache()> empty);
// What a sequence has computed. The store must outlive it.
std::unique_ptr<PrefixKv> prefix_kv(PrefixStore& store, KvCache cache);

}  // namespace vlcache
