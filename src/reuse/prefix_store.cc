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
constexpr int kPageFormat = 2;
constexpr int32_t kRecordTokens = PrefixStore::kRecordPages * kPageSlots;
// Of the format before: records of 1,024 tokens, with one section.
constexpr int32_t kOldRecordTokens = 16 * kPageSlots;

Sha256Digest chained(const Sha256Digest& before, std::span<const Sha256Digest> own) {
  Sha256 hash;
  hash.add(std::as_bytes(std::span(before)));
  hash.add(std::as_bytes(own));
  return hash.finish();
}

std::span<const Sha256Digest> part_of(std::span<const Sha256Digest> elements, int32_t begin, int32_t end) {
  return elements.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
}

// An image as records of prefixes name it: its id, which depends on the salt of the tiers alone.
RecordKey image_name(const Sha256Digest& image) {
  return {.kind = RecordKind::kImage, .model = {}, .content = image, .layout = "in prefixes"};
}

// After the layers, a record has a section of 32 zeros and the names of its images, and one with the time that a token
// took.
size_t names_bytes(const PrefixStore::Piece& piece) { return sizeof(RecordId) * (1 + piece.images.size()); }
int64_t trailer_bytes(const PrefixStore::Piece& piece) {
  return static_cast<int64_t>(names_bytes(piece) + sizeof(double));
}

// Whether a record of a prefix names the image.
bool names_image(KvTier& tier, const RecordKey& key, const RecordId& image) {
  const OpenedRecord record = tier.open(key, kNoDeadline);
  if (record.reader == nullptr || record.reader->header().sections.size() < 2) return false;
  const size_t at = record.reader->header().sections.size() - 2;
  const int64_t n_bytes = record.reader->header().sections[at].bytes;
  if (n_bytes % static_cast<int64_t>(sizeof(RecordId)) != 0) return false;
  std::vector<RecordId> names(static_cast<size_t>(n_bytes) / sizeof(RecordId));
  const auto bytes = std::as_writable_bytes(std::span(names));
  return !record.reader->read(static_cast<int32_t>(at), bytes, kNoDeadline) &&
         std::ranges::find(names, image) != names.end();
}

// Makes room in every layer for tokens [begin, end).
void append_tokens(KvCache& cache, int32_t begin, int32_t end) {
  std::vector<int32_t> tokens(static_cast<size_t>(end - begin));
  std::iota(tokens.begin(), tokens.end(), begin);
  for (int32_t layer = 0; layer < cache.shape().n_layers(); ++layer) cache.append(layer, tokens, tokens);
}

}  // namespace

PrefixStore::PrefixStore(TierChain& chain, const ModelFingerprint& model, const KvShape& shape, PagePools& pools)
    : chain_(chain),
      model_(model),
      shape_(shape),
      layout_("pages" + std::to_string(kPageFormat) + " " + kv_layout(shape)),
      old_layout_("pages1 " + kv_layout(shape)) {
  for (const KvLayerShape& layer : shape.layers) page_bytes_.push_back(pools.of(layer.head_dim).page_bytes());
}

std::vector<PrefixStore::Piece> PrefixStore::pieces(std::span<const Sha256Digest> elements,
                                                    std::span<const Image> images,
                                                    const std::optional<Sha256Digest>& salt) const {
  std::vector<Piece> pieces;
  const auto n = static_cast<int32_t>(elements.size());
  Sha256Digest before = salt.value_or(Sha256Digest{});
  size_t next = 0;  // the image whose end may cut the next piece
  for (int32_t begin = 0; begin < n;) {
    int32_t end = std::min(begin + kRecordTokens, n);
    while (next < images.size() && images[next].end / kPageSlots * kPageSlots <= begin) ++next;
    if (next < images.size()) end = std::min(end, images[next].end / kPageSlots * kPageSlots);
    before = chained(before, part_of(elements, begin, end));
    pieces.push_back({.begin = begin,
                      .end = end,
                      .key = {.kind = RecordKind::kPrefix, .model = model_, .content = before, .layout = layout_},
                      .images = {}});
    for (const Image& image : images) {
      if (image.begin < end) pieces.back().images.push_back(image.key);
    }
    begin = end;
  }
  return pieces;
}

int64_t PrefixStore::piece_bytes(const Piece& piece) const {
  int64_t bytes = 0;
  for (int32_t layer = 0; layer < shape_.n_layers(); ++layer) {
    bytes += page_bytes_[static_cast<size_t>(layer)] * shape_.n_own_heads(layer);
  }
  return bytes * (piece.end_page() - piece.begin_page());
}

int64_t PrefixStore::save(const Piece& piece, const KvCache& cache, double ms_per_token) {
  auto bytes = std::make_shared<Buffer>(piece_bytes(piece) + trailer_bytes(piece));
  Record record{.key = piece.key, .sections = {}, .owner = bytes};
  std::byte* to = bytes->data();
  int32_t column = 0;
  for (int32_t layer = 0; layer < shape_.n_layers(); ++layer) {
    std::byte* const begin = to;
    const int32_t n_heads = shape_.n_own_heads(layer);
    for (int32_t i = piece.begin_page(); i < piece.end_page(); ++i) {
      for (int32_t head = 0; head < n_heads; ++head) {
        const std::span<const std::byte> page = cache.page(column + head, i);
        std::memcpy(to, page.data(), page.size());
        to += page.size();
      }
    }
    column += n_heads;
    record.sections.emplace_back(begin, to);
  }
  std::byte* const names = to;
  std::memset(to, 0, sizeof(RecordId));
  to += sizeof(RecordId);
  for (const Sha256Digest& image : piece.images) {
    const RecordId name = chain_.id_of(image_name(image));
    std::memcpy(to, name.data(), name.size());
    to += name.size();
  }
  record.sections.emplace_back(names, to);
  std::memcpy(to, &ms_per_token, sizeof(ms_per_token));
  record.sections.emplace_back(to, sizeof(ms_per_token));
  const int64_t n = bytes->bytes();
  chain_.save(record);
  return n;
}

int64_t PrefixStore::erase_image(KvTier& tier, const Sha256Digest& image_key) {
  const RecordId image = tier.id_of(image_name(image_key));
  int64_t n = 0;
  for (const ListedRecord& record : tier.list()) {
    const bool of_prefix = !record.problem && record.key.kind == RecordKind::kPrefix &&
                           record.key.layout.starts_with("pages" + std::to_string(kPageFormat) + " ");
    if (of_prefix && names_image(tier, record.key, image)) n += tier.erase(record.id) ? 1 : 0;
  }
  return n;
}

void PrefixStore::erase_image(const Sha256Digest& image_key) {
  chain_.erase([image_key](KvTier& tier) { erase_image(tier, image_key); });
}

TierSearch PrefixStore::search(std::span<const Piece> pieces, Deadline deadline) {
  std::vector<RecordKey> keys;
  for (const Piece& piece : pieces) keys.push_back(piece.key);
  return chain_.search(keys, deadline);
}

PrefixStore::Load PrefixStore::load(const Piece& piece, ChainedTier& from, Deadline by) const {
  auto bytes = std::make_shared<Buffer>(piece_bytes(piece) + trailer_bytes(piece));
  LoadRequest request{.key = piece.key, .targets = {}, .owner = bytes, .deadline = by};
  std::byte* to = bytes->data();
  const int32_t n_pages = piece.end_page() - piece.begin_page();
  for (int32_t layer = 0; layer < shape_.n_layers(); ++layer) {
    const auto size =
        static_cast<size_t>(page_bytes_[static_cast<size_t>(layer)] * shape_.n_own_heads(layer) * n_pages);
    request.targets.push_back({layer, {to, size}});
    to += size;
  }
  for (const size_t size : {names_bytes(piece), sizeof(double)}) {
    request.targets.push_back({static_cast<int32_t>(request.targets.size()), {to, size}});
    to += size;
  }
  const auto n_sections = static_cast<int32_t>(request.targets.size());
  return {.piece = piece,
          .from = &from,
          .bytes = std::move(bytes),
          .load = from.worker->load(std::move(request)),
          .n_sections = n_sections};
}

RecordLoad::State PrefixStore::Load::wait(Deadline until) const {
  // Targets become ready in their order; the last is the cost, after all layers.
  return load.wait(static_cast<size_t>(n_sections) - 1, until);
}

double PrefixStore::Load::ms_per_token() const {
  double ms = 0;
  std::memcpy(&ms, bytes->data() + bytes->bytes() - sizeof(ms), sizeof(ms));
  return ms >= 0 && ms < 1e6 ? ms : 0;
}

void PrefixStore::append(const Load& load, KvCache& cache) {
  append_tokens(cache, load.piece.begin, load.piece.end);
  const std::byte* from = load.bytes->data();
  int32_t column = 0;
  Record record{.key = load.piece.key, .sections = {}, .owner = load.bytes, .created_ms = load.load.created_ms()};
  for (int32_t layer = 0; layer < shape_.n_layers(); ++layer) {
    const std::byte* const begin = from;
    const int32_t n_heads = shape_.n_own_heads(layer);
    for (int32_t i = load.piece.begin_page(); i < load.piece.end_page(); ++i) {
      for (int32_t head = 0; head < n_heads; ++head) {
        const std::span<std::byte> page = cache.page(column + head, i);
        std::memcpy(page.data(), from, page.size());
        from += page.size();
      }
    }
    column += n_heads;
    record.sections.emplace_back(begin, from);
  }
  record.sections.emplace_back(from, names_bytes(load.piece));
  record.sections.emplace_back(from + names_bytes(load.piece), sizeof(double));
  chain_.bring_nearer(record, *load.from);
}

int32_t PrefixStore::load_all(std::span<const Piece> pieces, KvCache& cache, Deadline deadline) {
  int32_t n = pieces.empty() ? 0 : pieces.front().begin;
  for (const Piece& piece : pieces) {
    ChainedTier* const from = chain_.find(piece.key, deadline);
    if (from == nullptr) break;
    const Load coming = load(piece, *from, deadline);
    if (coming.wait(deadline) != RecordLoad::State::kReady) break;
    append(coming, cache);
    n = piece.end;
  }
  return n;
}

int32_t PrefixStore::load_old(std::span<const Sha256Digest> elements, KvCache& cache, Deadline deadline) {
  CHECK(cache.n_pages() == 0);
  Sha256Digest before{};
  int32_t n_loaded = 0;
  for (const auto n = static_cast<int32_t>(elements.size()); n_loaded < n;) {
    const int32_t end = std::min(n_loaded + kOldRecordTokens, n);
    before = chained(before, part_of(elements, n_loaded, end));
    const RecordKey key{.kind = RecordKind::kPrefix, .model = model_, .content = before, .layout = old_layout_};
    ChainedTier* const from = chain_.find(key, deadline);
    const OpenedRecord record = from != nullptr ? from->tier->open(key, deadline) : OpenedRecord{};
    const Piece piece{.begin = n_loaded, .end = end, .key = key};
    Buffer bytes(piece_bytes(piece));
    if (record.reader == nullptr || record.reader->header().sections.size() != 1 ||
        record.reader->read(0, {bytes.data(), static_cast<size_t>(bytes.bytes())}, deadline)) {
      break;
    }
    append_tokens(cache, n_loaded, end);
    const std::byte* at = bytes.data();
    for (int32_t i = piece.begin_page(); i < piece.end_page(); ++i) {
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
