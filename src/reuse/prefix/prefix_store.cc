// A chain of digests names the records; pages are copied in and out.
#include "reuse/prefix/prefix_store.h"

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
  for (int32_t layer = 0; layer < cache.shape().n_layers(); ++layer) cache.append(layer, tokens);
}

}  // namespace

PrefixStore::PrefixStore(TierChain& chain, const ModelFingerprint& model, const KvShape& shape, PagePools& pools)
    : chain_(chain),
      model_(model),
      shape_(shape),
      layout_("pages" + std::to_string(kPageFormat) + " " + kv_layout(shape)),
      old_layout_("pages1 " + kv_layout(shape)) {
  for (int32_t layer = 0; layer < shape.n_layers(); ++layer) pools_.push_back(pools.of(shape, layer));
}

std::vector<int32_t> PrefixStore::ends(int32_t n, std::span<const Image> images) {
  std::vector<int32_t> ends;
  size_t next = 0;  // the image whose end may cut the next piece
  const int32_t whole = n / kPageSlots * kPageSlots;
  for (int32_t begin = 0; begin < n; begin = ends.back()) {
    // What fills no page is a piece of its own: memory evicts it first.
    int32_t end = begin < whole ? std::min(begin + kRecordTokens, whole) : n;
    while (next < images.size() && images[next].end / kPageSlots * kPageSlots <= begin) ++next;
    if (next < images.size()) end = std::min(end, images[next].end / kPageSlots * kPageSlots);
    ends.push_back(end);
  }
  return ends;
}

std::vector<PrefixStore::Piece> PrefixStore::pieces(std::span<const Sha256Digest> elements,
                                                    std::span<const Image> images,
                                                    const std::optional<Sha256Digest>& salt) const {
  std::vector<Piece> pieces;
  Sha256Digest before = salt.value_or(Sha256Digest{});
  int32_t begin = 0;
  for (const int32_t end : ends(static_cast<int32_t>(elements.size()), images)) {
    before = chained(before, part_of(elements, begin, end));
    pieces.push_back({.begin = begin,
                      .end = end,
                      .key = {.kind = RecordKind::kPrefix, .model = model_, .content = before, .layout = layout_},
                      .images = {}});
    for (const Image& image : images) {
      if (image.begin >= end) continue;
      pieces.back().images.push_back(image.key);
      pieces.back().images_end = std::max(pieces.back().images_end, image.end / kPageSlots * kPageSlots);
    }
    begin = end;
  }
  return pieces;
}

int64_t PrefixStore::layer_bytes(const Piece& piece, int32_t layer) const {
  const int64_t n_pages = piece.end_page() - piece.begin_page(), n_heads = shape_.n_own_heads(layer);
  return n_heads == 0 ? 0 : n_pages * n_heads * pools_[static_cast<size_t>(layer)].values->page_bytes();
}

int64_t PrefixStore::piece_bytes(const Piece& piece) const {
  int64_t bytes = 0;
  for (int32_t layer = 0; layer < shape_.n_layers(); ++layer) bytes += layer_bytes(piece, layer);
  return bytes;
}

std::shared_ptr<Buffer> PrefixStore::allocate(const Piece& piece) const {
  return std::make_shared<Buffer>(piece_bytes(piece) + static_cast<int64_t>(names_bytes(piece) + sizeof(double)));
}

std::vector<std::span<std::byte>> PrefixStore::sections(const Piece& piece, Buffer& bytes) const {
  std::vector<std::span<std::byte>> sections;
  std::byte* at = bytes.data();
  const auto add = [&](size_t size) {
    sections.emplace_back(at, size);
    at += size;
  };
  for (int32_t layer = 0; layer < shape_.n_layers(); ++layer) add(static_cast<size_t>(layer_bytes(piece, layer)));
  add(names_bytes(piece));
  add(sizeof(double));
  return sections;
}

void PrefixStore::for_each_page_of(const Piece& piece, int32_t layer,
                                   FunctionRef<void(int32_t column, int32_t page)> visit) const {
  int32_t column = 0;
  for (int32_t before = 0; before < layer; ++before) column += shape_.n_own_heads(before);
  for (int32_t page = piece.begin_page(); page < piece.end_page(); ++page) {
    for (int32_t head = 0; head < shape_.n_own_heads(layer); ++head) visit(column + head, page);
  }
}

void PrefixStore::for_each_page(const Piece& piece,
                                FunctionRef<void(int32_t layer, int32_t column, int32_t page)> visit) const {
  for (int32_t layer = 0; layer < shape_.n_layers(); ++layer) {
    for_each_page_of(piece, layer, [&](int32_t column, int32_t page) { visit(layer, column, page); });
  }
}

int64_t PrefixStore::save(const Piece& piece, const KvCache& cache, const Worth& worth) {
  std::vector<PageForms> pages(static_cast<size_t>(cache.n_columns()));
  const auto pages_of = [&](int32_t page) {
    cache.list_pages(page, pages);
    return std::span<const PageForms>(pages);
  };
  return save(piece, pages_of, worth);
}

int64_t PrefixStore::save(const Piece& piece, PagesOf pages_of, const Worth& worth) {
  const std::shared_ptr<Buffer> bytes = allocate(piece);
  std::vector<PageForms> pages;  // [n_pages, n_columns]
  for (int32_t page = piece.begin_page(); page < piece.end_page(); ++page) {
    const std::span<const PageForms> columns = pages_of(page);
    pages.insert(pages.end(), columns.begin(), columns.end());
  }
  const size_t n_columns = pages.size() / static_cast<size_t>(piece.end_page() - piece.begin_page());
  std::byte* to = bytes->data();
  for_each_page(piece, [&](int32_t layer, int32_t column, int32_t page) {
    const KvPool pool = pools_[static_cast<size_t>(layer)].values->view();
    const auto at = static_cast<size_t>(page - piece.begin_page()) * n_columns + static_cast<size_t>(column);
    std::memcpy(to, pool.base + pages[at].born * pool.page_bytes, static_cast<size_t>(pool.page_bytes));
    to += pool.page_bytes;
  });
  std::vector<RecordId> names(1);
  for (const Sha256Digest& image : piece.images) names.push_back(chain_.id_of(image_name(image)));
  std::memcpy(to, names.data(), names_bytes(piece));
  std::memcpy(to + names_bytes(piece), &worth.ms_per_token, sizeof(worth.ms_per_token));
  const std::vector<std::span<std::byte>> parts = sections(piece, *bytes);
  chain_.save({.key = piece.key,
               .sections = {parts.begin(), parts.end()},
               .owner = bytes,
               .saves_ms = worth.ms_per_token * (piece.end - piece.begin),
               .n_uses = worth.n_uses,
               .yields = worth.yields,
               .first_use = worth.first_use});
  return bytes->bytes();
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
  std::shared_ptr<Buffer> bytes = allocate(piece);
  LoadRequest request{.key = piece.key, .targets = {}, .owner = bytes, .deadline = by};
  for (const std::span<std::byte> section : sections(piece, *bytes)) {
    request.targets.push_back({static_cast<int32_t>(request.targets.size()), section});
  }
  const size_t n_sections = request.targets.size();
  return {.piece = piece,
          .from = &from,
          .bytes = std::move(bytes),
          .load = from.worker->load(std::move(request)),
          .n_sections = n_sections};
}

RecordLoad::State PrefixStore::Load::wait(Deadline until) const {
  // Targets become ready in their order; the last is the cost, after all layers.
  return load.wait(n_sections - 1, until);
}

RecordLoad::State PrefixStore::Load::wait_layer(int32_t layer, Deadline until) const {
  return load.wait(static_cast<size_t>(layer), until);
}

// The record's own figure, or the header's until that has arrived.
double PrefixStore::Load::ms_per_token() const {
  double ms = load.saves_ms() / std::max(1, piece.end - piece.begin);
  if (wait(Deadline::min()) == RecordLoad::State::kReady) {
    std::memcpy(&ms, bytes->data() + bytes->bytes() - sizeof(ms), sizeof(ms));
  }
  return ms >= 0 && ms < 1e6 ? ms : 0;
}

void PrefixStore::append(const Load& load, KvCache& cache) {
  append_tokens(cache, load.piece.begin, load.piece.end);
  for (int32_t layer = 0; layer < shape_.n_layers(); ++layer) fill(load, layer, load.piece.end, cache);
  bring_nearer(load);
}

void PrefixStore::fill(const Load& load, int32_t layer, int32_t n_tokens, KvCache& cache) const {
  const std::byte* from = load.bytes->data();
  for (int32_t before = 0; before < layer; ++before) from += layer_bytes(load.piece, before);
  for_each_page_of(load.piece, layer, [&](int32_t column, int32_t i) {
    if (i >= pages_for(n_tokens)) return;
    const std::span<std::byte> page = cache.page(column, i);
    std::memcpy(page.data(), from, page.size());
    from += page.size();
  });
}

void PrefixStore::bring_nearer(const Load& load) {
  const std::vector<std::span<std::byte>> parts = sections(load.piece, *load.bytes);
  chain_.bring_nearer({.key = load.piece.key,
                       .sections = {parts.begin(), parts.end()},
                       .owner = load.bytes,
                       .created_ms = load.load.created_ms(),
                       .saves_ms = load.ms_per_token() * (load.piece.end - load.piece.begin)},
                      *load.from);
  // Reading a record of this machine has counted its use.
  if (load.from->tier->answers_at_once()) return;
  load.from->worker->erase([key = load.piece.key](KvTier& tier) { tier.used(key); });
}

PrefixStore::Loaded PrefixStore::load_all(std::span<const Piece> pieces, KvCache& cache, Deadline deadline) {
  Loaded loaded{.n = pieces.empty() ? 0 : pieces.front().begin};
  for (const Piece& piece : pieces) {
    ChainedTier* const from = chain_.find(piece.key, deadline);
    if (from == nullptr) break;
    const Load coming = load(piece, *from, deadline);
    if (coming.wait(deadline) != RecordLoad::State::kReady) break;
    append(coming, cache);
    loaded.n = piece.end;
    loaded.ms_per_token = std::max(loaded.ms_per_token, coming.ms_per_token());
  }
  return loaded;
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
