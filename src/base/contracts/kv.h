// Defines plain views of the KV cache for kernels, policies and models; none of them owns memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/contracts/position.h"
#include "base/kv_codec_name.h"

namespace vlcache {

inline constexpr int kPageSlots = 64;  // slots per page: 16 KiB of K and V for bf16 and head_dim 64

// Pages are born as values and become codes later, a block of them at a time: a row in slot `slot` of its head sees
// pages [1, coded_end(slot)) as codes, and the others as they were born. So the forms that a row sees depend on its
// slot alone, not on the pieces in which a prompt is computed. The first page and at least the two before the row's
// block stay values: most of the error that codes make comes from these tokens.
inline constexpr int32_t kCodedBlockPages = 4;
constexpr int32_t coded_end(int64_t slot) {
  const auto block = static_cast<int32_t>(slot / kPageSlots / kCodedBlockPages * kCodedBlockPages);
  return block < 3 ? 1 : block - 2;
}

enum class Modality : uint8_t { kText, kVision };
// The kind of a token to the tokenizer (Tokenizer::token_class): policies always keep some classes.
enum class TokenClass : uint8_t { kOther, kPunctuation, kSpecial };

// Per token of a sequence, whatever happens to its slots.
struct SlotMeta {
  Position position;
  Modality modality = Modality::kText;
  int32_t segment = -1;  // index of the image the token belongs to, -1 for text
  float bias = 0;        // of its slots (KvView::slot_bias): log c for a token that stands for c cells of an image
};

// Memory of one pool: page `id` is the `page_bytes` bytes at base + id * page_bytes. Only ops/ reads inside a page.
struct KvPool {
  std::byte* base = nullptr;
  int64_t page_bytes = 0;
};

// One layer of one sequence: per kv head a list of pages that hold its slots in order. Lengths differ per head. A view
// without heads is of a layer without KV.
struct KvView {
  // By codec.
  KvPool pools[kKvCodecs];
  // [n_kv_heads, page_stride] page ids; page i holds slots [64 i, 64 i + 64). -1: the page is not held; no row whose
  // attention is asked for sees it, for its window.
  const int32_t* pages = nullptr;
  // [n_kv_heads, page_stride] codec of each page; null: all are `codec`.
  const uint8_t* codecs = nullptr;
  // [n_kv_heads, page_stride] of a coded page the page of `codec` that it was made from, as long as rows may need it
  // (coded_end); -1: there is none. Null: none has one.
  const int32_t* born = nullptr;
  // [n_kv_heads]
  const int32_t* n_slots = nullptr;
  // [n_kv_heads, slot_stride] added to the logits: log c for a merge of c tokens, -inf for a hidden slot; null: 0.
  const float* slot_bias = nullptr;
  // [n_kv_heads, slot_stride] index of each slot's token in the sequence; null: slot i is token i.
  const int32_t* slot_pos = nullptr;
  int32_t page_stride = 0;
  int32_t slot_stride = 0;
  int32_t n_kv_heads = 0;
  int32_t head_dim = 0;
  KvCodec codec = KvCodec::kBF16;

  bool holds(int head, int64_t i) const { return pages[static_cast<int64_t>(head) * page_stride + i] >= 0; }
  std::byte* page(int head, int64_t i) const {
    const int64_t at = static_cast<int64_t>(head) * page_stride + i;
    return page_in(page_codec(head, i), pages[at]);
  }
  KvCodec page_codec(int head, int64_t i) const {
    return codecs != nullptr ? static_cast<KvCodec>(codecs[static_cast<int64_t>(head) * page_stride + i]) : codec;
  }
  // Page i as a row reads that sees pages [1, end) as codes.
  struct Form {
    std::byte* data;
    KvCodec codec;
  };
  Form form(int head, int64_t i, int32_t end) const {
    const int64_t at = static_cast<int64_t>(head) * page_stride + i;
    if (born != nullptr && (i == 0 || i >= end) && born[at] >= 0) return {page_in(codec, born[at]), codec};
    const KvCodec own = page_codec(head, i);
    return {page_in(own, pages[at]), own};
  }
  // Bytes of pages [first, last) in the forms of such a row.
  int64_t page_bytes(int head, int64_t first, int64_t last, int32_t end) const {
    if (codecs == nullptr) return std::max<int64_t>(last - first, 0) * pools[static_cast<size_t>(codec)].page_bytes;
    int64_t bytes = 0;
    for (int64_t i = first; i < last; ++i) bytes += pools[static_cast<size_t>(form(head, i, end).codec)].page_bytes;
    return bytes;
  }

 private:
  std::byte* page_in(KvCodec of, int32_t id) const {
    const KvPool& pool = pools[static_cast<size_t>(of)];
    return pool.base + id * pool.page_bytes;
  }
};

// Bytes of pages of K and V.
struct KvReads {
  int64_t bytes = 0;  // read
  int64_t saved = 0;  // not read, because rows of several sequences shared one read

  KvReads& operator+=(const KvReads& other) {
    bytes += other.bytes, saved += other.saved;
    return *this;
  }
};

// What compaction leaves of one (layer, kv head): slots to keep, in the order of their tokens, and slots to merge into
// one.
struct KeepPlan {
  struct Merge {
    std::vector<int32_t> sources;  // slots, none of them in `keep`
    std::vector<float> weights;    // of K and V alike, one per source
  };
  struct Head {
    std::vector<int32_t> keep;     // ascending slot indices
    std::vector<Merge> merges;     // each becomes one slot, in the place of its first source
    std::vector<float> slot_bias;  // empty, or one per resulting slot
    std::vector<float> planes;     // empty, or [n_planes, resulting slots]: the new contents of their planes
    std::vector<float> values;     // [n, head_dim], n <= keep.size(): new V of the first n kept; their K stays as it is
  };
  std::vector<std::vector<Head>> layers;  // [n_layers][n_kv_heads]; no heads in a layer without KV of its own
};

}  // namespace vlcache
