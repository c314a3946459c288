// A chain of digests names the records; pages are copied in and out.
#include "reuse/prefix_store.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "reuse/kv_layout.h"

namespace vlcache {
namespace {

// Bumped if a backend changes the layout of a page: pages are stored as they are.
constexpr int kPageFormat = 1;
constexpr size_t kRecordTokens = size_t{PrefixStore::kRecordPages} * kPageSlots;

}  // namespace

PrefixStore::PrefixStore(TierChain& chain, const ModelFingerprint& model, const KvShape& shape)
    : chain_(chain), model_(model), layout_("pages" + std::to_string(kPageFormat) + " " + kv_layout(shape)) {}

std::vector<PrefixStore::Piece> PrefixStore::pieces_of(std::span<const Sha256Digest> elements) const {
  std::vector<Piece> pieces;
  Sha256Digest before{};
  for (size_t begin = 0; begin < elements.size(); begin += kRecordTokens) {
    const std::span<const Sha256Digest> own = elements.subspan(begin, std::min(kRecordTokens, elements.size() - begin));
    Sha256 hash;
    hash.add(std::as_bytes(std::span(before)));
    hash.add(std::as_bytes(own));
    before = hash.finish();
    pieces.push_back({.begin_page = static_cast<int32_t>(begin) / kPageSlots,
                      .end_page = pages_for(static_cast<int64_t>(begin + own.size())),
                      .key = {.kind = RecordKind::kPrefix, .model = model_, .content = before, .layout = layout_}});
  }
  return pieces;
}

int64_t PrefixStore::bytes_of(const KvCache& cache, const Piece& piece) {
  int64_t bytes = 0;
  for (int32_t c = 0; c < cache.n_columns(); ++c) bytes += std::ssize(cache.page(c, piece.begin_page));
  return bytes * (piece.end_page - piece.begin_page);
}

void PrefixStore::save(std::span<const Sha256Digest> elements, KvCache& cache, std::span<const Sha256Digest> before) {
  CHECK(cache.complete(static_cast<int32_t>(elements.size())));
  cache.clear_tails();
  const std::vector<Piece> pieces = pieces_of(elements);
  for (const Piece& piece : pieces) {
    if (chain_.is_near(piece.key)) continue;
    auto bytes = std::make_shared<Buffer>(bytes_of(cache, piece));
    std::byte* to = bytes->data();
    for (int32_t i = piece.begin_page; i < piece.end_page; ++i) {
      for (int32_t c = 0; c < cache.n_columns(); ++c) {
        const std::span<const std::byte> page = std::as_const(cache).page(c, i);
        std::memcpy(to, page.data(), page.size());
        to += page.size();
      }
    }
    chain_.save({.key = piece.key,
                 .sections = {{bytes->data(), static_cast<size_t>(bytes->bytes())}},
                 .owner = std::move(bytes)});
  }
  if (before.size() % kRecordTokens == 0) return;
  const RecordKey end = pieces_of(before).back().key;
  if (std::ranges::find(pieces, end, &Piece::key) == pieces.end()) chain_.erase(end);
}

int32_t PrefixStore::load(std::span<const Sha256Digest> elements, KvCache& cache, Deadline deadline) {
  CHECK(cache.n_pages() == 0);
  int32_t n_loaded = 0;
  for (const Piece& piece : pieces_of(elements)) {
    ChainedTier* const from = chain_.find(piece.key, deadline);
    if (from == nullptr) break;
    const int32_t end = std::min(piece.end_page * kPageSlots, static_cast<int32_t>(elements.size()));
    std::vector<int32_t> tokens(static_cast<size_t>(end - n_loaded));
    std::iota(tokens.begin(), tokens.end(), n_loaded);
    for (int32_t layer = 0; layer < cache.shape().n_layers(); ++layer) cache.append(layer, tokens, tokens);
    const OpenedRecord record = from->tier->open(piece.key, deadline);
    const auto bytes = std::make_shared<Buffer>(bytes_of(cache, piece));
    const std::span<std::byte> section(bytes->data(), static_cast<size_t>(bytes->bytes()));
    if (record.reader == nullptr || record.reader->header().sections.size() != 1 ||
        record.reader->read(0, section, deadline)) {
      cache.truncate(n_loaded);
      break;
    }
    chain_.bring_nearer(
        {.key = piece.key, .sections = {section}, .owner = bytes, .created_ms = record.reader->header().created_ms},
        *from);
    const std::byte* at = bytes->data();
    for (int32_t i = piece.begin_page; i < piece.end_page; ++i) {
      for (int32_t c = 0; c < cache.n_columns(); ++c) {
        const std::span<std::byte> page = cache.page(c, i);
        std::memcpy(page.data(), at, page.size());
        at += page.size();
      }
    }
    n_loaded = end;
  }
  return n_loaded;
}

}  // namespace vlcache
