// PrefixStore keeps the KV of prompts and conversations beyond this process: pages as they are, in records of a few
// pages each. A record's key covers everything from the first token to its own last, so that prompts with a common
// beginning share records, and a continued conversation stores only the new ones. Where full pages become codes, the
// same pages have a record as codes and one as values, as far as memory has them in these forms; and layers with a
// window have records of their own, as memory lacks most of their pages.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/function_ref.h"
#include "base/sha256.h"
#include "cache/continuation.h"
#include "cache/kv_cache.h"
#include "cache/page_pools.h"
#include "store/tier_chain.h"

namespace vlcache {

class PrefixStore {
 public:
  static constexpr int32_t kRecordPages = 4;  // per head: 256 tokens

  // For the model with this fingerprint. The chain must outlive it.
  PrefixStore(TierChain& chain, const ModelFingerprint& model, const KvShape& shape, PagePools& pools);

  // Tokens [begin, end) of a prefix, and a record that holds their KV. Only the last tokens of a prefix may end inside
  // a page.
  struct Piece {
    int32_t begin, end;
    RecordKey key;
    std::vector<Sha256Digest> images;  // image_keys of the images that its KV depends on
    int32_t images_end = 0;            // where the last of them ends, rounded down to pages
    bool codes = false;                // its pages are codes, except the first page of the prefix
    bool windowed = false;             // KV of the windowed layers; else of the others

    int32_t begin_page() const { return begin / kPageSlots; }
    int32_t end_page() const { return pages_for(end); }
  };
  // An image of a prefix: its tokens, and its image_key.
  struct Image {
    int32_t begin, end;
    Sha256Digest key;
  };
  // elements: per token, all that its KV depends on besides the tokens before it. A piece ends after kRecordPages, at
  // the end of each image (rounded down to pages), and with the last whole page; elements that fill no page are a piece
  // of their own. A prefix of other elements with the same beginning and images has the same pieces there. `salt`: only
  // prefixes with the same salt share records. Where pages become codes, pieces end where these may end (coded_end) and
  // at regular places, and each full page is in two of them: as codes, then as values. Pieces of windowed layers follow
  // those of the same tokens in the other layers.
  std::vector<Piece> pieces(std::span<const Sha256Digest> elements, std::span<const Image> images,
                            const std::optional<Sha256Digest>& salt = std::nullopt) const;
  // Where the pieces of a prefix of n tokens end.
  static std::vector<int32_t> ends(int32_t n, std::span<const Image> images, bool has_codes = false);
  bool has_codes() const { return shape_.has_codes(); }
  bool has_places() const { return has_codes() || window_ > 0; }
  // Says if a tier on this machine has the beginning of a prefix as computed under another of the model's shapes; "":
  // none has it.
  std::string other_codes(std::span<const Sha256Digest> elements, std::span<const Image> images,
                          const std::optional<Sha256Digest>& salt, std::span<const KvShape> shapes);

  // Whether a tier on this machine has it.
  bool is_near(const Piece& piece) { return chain_.is_near(piece.key); }
  // Queues that the piece's record was used in memory.
  void used(const Piece& piece) { chain_.used(piece.key); }
  // Whether the queues of tiers hold no more than this.
  bool queues_at_most(int64_t bytes) const { return chain_.queues_at_most(bytes); }
  // What a record is worth.
  struct Worth {
    double ms_per_token = 0;  // what computing it took
    int32_t n_uses = 0;       // so far, beyond the first
    bool yields = false;      // Record::yields
    bool first_use = false;   // Record::first_use
  };
  // Copies a piece of a cache and queues it. Where the piece ends inside a page, the cache ends there, too, and has
  // cleared its tails. Returns the bytes queued.
  int64_t save(const Piece& piece, const KvCache& cache, const Worth& worth);
  // The same for pages of the prefix that pages_of() gives, by column as KvCache counts them.
  using PagesOf = FunctionRef<std::span<const PageForms>(int32_t page)>;
  int64_t save(const Piece& piece, PagesOf pages_of, const Worth& worth);
  // Whether these pages are there in the piece's form; no columns: the page is not.
  bool holds(const Piece& piece, PagesOf pages_of) const;
  bool holds(const Piece& piece, const KvCache& cache) const;
  // Whether a tier's queue takes the piece now.
  bool takes(const Piece& piece) { return chain_.takes(piece_bytes(piece)); }
  void erase(const Piece& piece) { chain_.erase(piece.key); }
  // Queues the erasure, in all tiers, of every record that depends on the image.
  void erase_image(const Sha256Digest& image_key);
  // The same at once, in one tier, for records of any model that is named. Returns how many were erased.
  static int64_t erase_image(KvTier& tier, const Sha256Digest& image_key);

  // A piece on its way from a tier.
  struct Load {
    Piece piece;
    ChainedTier* from;
    std::shared_ptr<Buffer> bytes;
    RecordLoad load;
    size_t n_sections;

    // Whether it has arrived by `until`, with every byte verified.
    RecordLoad::State wait(Deadline until) const;
    // The same of one layer; layers arrive in their order.
    RecordLoad::State wait_layer(int32_t layer, Deadline until) const;
    double ms_per_token() const;  // once a layer has arrived
  };
  TierSearch search(std::span<const Piece> pieces, Deadline deadline);
  // The pieces, of which there(i), that give a cache most tokens, n_most at most, after the n_begin that it has, of
  // which pieces may hold the last ones, too: where a shape has places, a piece begins after n_begin tokens, and a
  // sequence can continue there and after the tokens that come.
  struct Plan {
    Continuation to;             // n = 0: none comes
    std::vector<size_t> pieces;  // ascending
  };
  Plan plan(std::span<const Piece> pieces, FunctionRef<bool(size_t)> there, int32_t n_begin, int32_t n_most) const;
  int64_t piece_bytes(const Piece& piece) const;
  Load load(const Piece& piece, ChainedTier& from, Deadline by) const;
  // Copies a layer that has arrived into the pages of a cache that has n_tokens: the piece's, or the first of them. The
  // newest rows see them in the piece's form.
  void fill(const Load& load, int32_t layer, int32_t n_tokens, KvCache& cache) const;
  // Stores a piece that is ready in the tiers before the one that it has come from.
  void bring_nearer(const Load& load);
  // Fills an empty cache with as many pieces as are stored. Blocks. Throws as KvCache::append does.
  struct Loaded {
    int32_t n = 0;            // tokens that the cache has then
    double ms_per_token = 0;  // what computing them took; 0: not known
  };
  Loaded load_all(std::span<const Piece> pieces, KvCache& cache, Deadline deadline);
  // The same for records of conversations in the format before this one.
  int32_t load_old(std::span<const Sha256Digest> elements, KvCache& cache, Deadline deadline);

  bool flush(Deadline deadline) { return chain_.flush(deadline); }

 private:
  PrefixStore(TierChain& chain, const ModelFingerprint& model, const KvShape& shape);  // makes names alone
  bool is_coded(const Piece& piece, int32_t layer, int32_t page) const;
  int64_t page_bytes(const Piece& piece, int32_t layer, int32_t page) const;
  int64_t layer_bytes(const Piece& piece, int32_t layer) const;
  Plan plan_place(std::span<const Piece> pieces, FunctionRef<bool(size_t)> there, int32_t n_begin,
                  int32_t n_most) const;
  bool take_pieces(std::span<const Piece> pieces, FunctionRef<bool(size_t)> there, int32_t n_begin, Plan& plan) const;
  bool has_layer(const Piece& piece, int32_t layer) const {
    return piece.windowed == windowed_[static_cast<size_t>(layer)];
  }
  bool load_planned(std::span<const Piece> pieces, const Plan& plan, std::vector<ChainedTier*>& from, KvCache& cache,
                    Loaded& loaded, Deadline deadline);
  // Room for the sections of a piece's record, one after the other: the layers, the names of images, the cost.
  std::shared_ptr<Buffer> allocate(const Piece& piece) const;
  std::vector<std::span<std::byte>> sections(const Piece& piece, Buffer& bytes) const;
  // Visits the pages of a piece, or of one of its layers, in the order of its record.
  void for_each_page_of(const Piece& piece, int32_t layer, FunctionRef<void(int32_t column, int32_t page)> visit) const;
  void for_each_page(const Piece& piece, FunctionRef<void(int32_t layer, int32_t column, int32_t page)> visit) const;

  TierChain& chain_;
  ModelFingerprint model_;
  KvShape shape_;
  int32_t window_;              // largest window; 0: no layer has one
  std::vector<bool> windowed_;  // [n_layers]
  bool has_others_;             // layers without a window
  std::string layout_, codes_layout_, old_layout_;
  std::vector<TablePools> pools_;  // [n_layers]
};

}  // namespace vlcache
