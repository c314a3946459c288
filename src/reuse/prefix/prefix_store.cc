// A chain of digests names the records; pages are copied in and out.
#include "reuse/prefix/prefix_store.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "reuse/kv_layout.h"

namespace vlcache {
namespace {

// Bumped if a backend changes the layout of a page: pages are stored as they are. The second is of pages that become
// codes, with records in two forms; the third of models with windowed layers, which have records of their own.
constexpr int kPageFormat = 2, kCodesFormat = 3, kWindowFormat = 4;
constexpr int32_t kRecordTokens = PrefixStore::kRecordPages * kPageSlots;
static_assert(PrefixStore::kRecordPages == kCodedBlockPages);
constexpr int32_t kPlacePages = kPlaceTokens / kPageSlots;
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

// The name of another record of the same tokens: as codes, of windowed layers, or both. That of the others as values is
// the digest itself.
enum class Variant : int64_t { kCodes = 1, kWindowed = 2 };
Sha256Digest as(Variant variant, const Sha256Digest& values) {
  Sha256 hash;
  hash.add(std::as_bytes(std::span(values)));
  hash.add(static_cast<int64_t>(variant));
  return hash.finish();
}

std::string format_name(int format) { return "pages" + std::to_string(format) + " "; }

// Where a piece that begins with a page ends at the latest.
int32_t last_page_end(int32_t page, bool has_codes) {
  if (!has_codes) return page + PrefixStore::kRecordPages;
  do ++page;
  while (page % kCodedBlockPages != coded_end(kRecordTokens) % kCodedBlockPages && page % kPlacePages != 0);
  return page;
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
    : PrefixStore(chain, model, shape) {
  for (int32_t layer = 0; layer < shape.n_layers(); ++layer) pools_.push_back(pools.of(shape, layer));
}

PrefixStore::PrefixStore(TierChain& chain, const ModelFingerprint& model, const KvShape& shape)
    : chain_(chain),
      model_(model),
      shape_(shape),
      window_(shape.largest_window()),
      has_others_(!shape.all_windowed()),
      old_layout_("pages1 " + kv_layout(shape)) {
  for (int32_t layer = 0; layer < shape.n_layers(); ++layer) {
    windowed_.push_back(shape.is_windowed(layer));
  }
  const int format = window_ > 0 ? kWindowFormat : shape.has_codes() ? kCodesFormat : kPageFormat;
  const std::string layout = kv_layout(shape) + (window_ > 0 ? " window " + std::to_string(window_) : "");
  layout_ = format_name(format) + layout;
  codes_layout_ = format_name(format) + "codes " + layout;
}

std::vector<int32_t> PrefixStore::ends(int32_t n, std::span<const Image> images, bool has_codes) {
  std::vector<int32_t> ends;
  size_t next = 0;  // the image whose end may cut the next piece
  const int32_t whole = n / kPageSlots * kPageSlots;
  for (int32_t begin = 0; begin < n; begin = ends.back()) {
    // What fills no page is a piece of its own: memory evicts it first.
    int32_t end = n;
    if (begin < whole) end = std::min(last_page_end(begin / kPageSlots, has_codes) * kPageSlots, whole);
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
  for (const int32_t end : ends(static_cast<int32_t>(elements.size()), images, has_codes())) {
    before = chained(before, part_of(elements, begin, end));
    Piece piece{.begin = begin,
                .end = end,
                .key = {.kind = RecordKind::kPrefix, .model = model_, .content = before, .layout = layout_},
                .images = {}};
    for (const Image& image : images) {
      if (image.begin >= end) continue;
      piece.images.push_back(image.key);
      piece.images_end = std::max(piece.images_end, image.end / kPageSlots * kPageSlots);
    }
    for (const bool windowed : {false, true}) {
      if (windowed ? window_ == 0 : !has_others_ && window_ > 0) continue;
      Piece& own = pieces.emplace_back(piece);
      own.windowed = windowed;
      if (windowed) own.key.content = as(Variant::kWindowed, before);
      if (windowed) own.key.layout += " windowed";
      if (!has_codes() || end % kPageSlots != 0) continue;
      const Piece values = own;
      own.key.content = as(Variant::kCodes, values.key.content);
      own.key.layout = codes_layout_ + (windowed ? " windowed" : "");
      own.codes = true;
      pieces.push_back(values);
    }
    begin = end;
  }
  return pieces;
}

std::string PrefixStore::other_codes(std::span<const Sha256Digest> elements, std::span<const Image> images,
                                     const std::optional<Sha256Digest>& salt, std::span<const KvShape> shapes) {
  for (const KvShape& shape : shapes) {
    if (kv_layout(shape) == kv_layout(shape_)) continue;
    const std::vector<Piece> pieces = PrefixStore(chain_, model_, shape).pieces(elements, images, salt);
    // Where every layer has a window, tiers may lack the first pages.
    const int32_t end = pieces.empty() ? 0 : shape.all_windowed() ? pieces.back().end : pieces[0].end;
    for (const Piece& piece : pieces) {
      if (piece.end > end || !is_near(piece)) continue;
      return shape.has_codes()
                 ? "the prompt's beginning is stored, but computed with KV codec " +
                       std::string(kv_codec_name(shape.full_codec()))
                 : "the prompt's beginning is stored, but computed without KV codes, as by earlier releases";
    }
  }
  return "";
}

bool PrefixStore::is_coded(const Piece& piece, int32_t layer, int32_t page) const {
  return piece.codes && page > 0 && pools_[static_cast<size_t>(layer)].codes != nullptr;
}

int64_t PrefixStore::page_bytes(const Piece& piece, int32_t layer, int32_t page) const {
  const TablePools& pools = pools_[static_cast<size_t>(layer)];
  return (is_coded(piece, layer, page) ? pools.codes : pools.values)->page_bytes();
}

int64_t PrefixStore::layer_bytes(const Piece& piece, int32_t layer) const {
  const int64_t n_heads = has_layer(piece, layer) ? shape_.n_own_heads(layer) : 0;
  int64_t bytes = 0;
  for (int32_t page = piece.begin_page(); page < piece.end_page() && n_heads > 0; ++page) {
    bytes += n_heads * page_bytes(piece, layer, page);
  }
  return bytes;
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
  if (!has_layer(piece, layer)) return;
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

namespace {

// The pages of a cache, for save() and holds().
class ListedPages {
 public:
  explicit ListedPages(const KvCache& cache) : cache_(cache), pages_(static_cast<size_t>(cache.n_columns())) {}
  std::span<const PageForms> operator()(int32_t page) {
    cache_.list_pages(page, pages_);
    return pages_;
  }

 private:
  const KvCache& cache_;
  std::vector<PageForms> pages_;
};

}  // namespace

int64_t PrefixStore::save(const Piece& piece, const KvCache& cache, const Worth& worth) {
  ListedPages pages_of(cache);
  return save(piece, pages_of, worth);
}

bool PrefixStore::holds(const Piece& piece, const KvCache& cache) const {
  ListedPages pages_of(cache);
  return holds(piece, pages_of);
}

bool PrefixStore::holds(const Piece& piece, PagesOf pages_of) const {
  for (int32_t page = piece.begin_page(); page < piece.end_page(); ++page) {
    const std::span<const PageForms> columns = pages_of(page);
    if (columns.empty()) return false;
    size_t column = 0;
    for (int32_t layer = 0; layer < shape_.n_layers(); ++layer) {
      for (int32_t head = 0; head < shape_.n_own_heads(layer); ++head, ++column) {
        const int32_t id = is_coded(piece, layer, page) ? columns[column].coded : columns[column].born;
        if (has_layer(piece, layer) && id < 0) return false;
      }
    }
  }
  return true;
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
    const TablePools& pools = pools_[static_cast<size_t>(layer)];
    const bool coded = is_coded(piece, layer, page);
    const KvPool pool = (coded ? pools.codes : pools.values)->view();
    const auto at = static_cast<size_t>(page - piece.begin_page()) * n_columns + static_cast<size_t>(column);
    const int32_t id = coded ? pages[at].coded : pages[at].born;
    std::memcpy(to, pool.base + id * pool.page_bytes, static_cast<size_t>(pool.page_bytes));
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
                           std::ranges::any_of(std::array{kPageFormat, kCodesFormat, kWindowFormat}, [&](int format) {
                             return record.key.layout.starts_with(format_name(format));
                           });
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

void PrefixStore::fill(const Load& load, int32_t layer, int32_t n_tokens, KvCache& cache) const {
  const std::byte* from = load.bytes->data();
  for (int32_t before = 0; before < layer; ++before) from += layer_bytes(load.piece, before);
  for_each_page_of(load.piece, layer, [&](int32_t column, int32_t i) {
    if (i >= pages_for(n_tokens)) return;
    const int64_t bytes = page_bytes(load.piece, layer, i);
    if (!load.piece.windowed || i >= whole_window_begin(n_tokens, window_)) {
      const std::span<std::byte> page = cache.page(column, i);
      CHECK(std::ssize(page) == bytes);
      std::memcpy(page.data(), from, page.size());
    }
    from += bytes;
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

PrefixStore::Plan PrefixStore::plan(std::span<const Piece> pieces, FunctionRef<bool(size_t)> there, int32_t n_begin,
                                    int32_t n_most) const {
  if (has_places()) return plan_place(pieces, there, n_begin, n_most);
  Plan plan;
  for (size_t i = 0; i < pieces.size() && pieces[i].begin < n_most; ++i) {
    if (pieces[i].end <= n_begin) continue;
    if (!there(i)) break;
    plan.pieces.push_back(i);
    plan.to.n = std::min(pieces[i].end, n_most);
  }
  return plan;
}

PrefixStore::Plan PrefixStore::plan_place(std::span<const Piece> pieces, FunctionRef<bool(size_t)> there,
                                          int32_t n_begin, int32_t n_most) const {
  if (pieces.empty()) return {};
  // Of no layer: both forms, if there are codes.
  const CachedForms none{.values = !has_others_, .codes = !has_others_ && has_codes()};
  std::vector<CachedForms> forms(static_cast<size_t>(pieces.back().end_page()), none);
  for (int32_t page = 0; page < n_begin / kPageSlots; ++page) {
    const bool values = !has_codes() || page == 0 || page >= coded_end(n_begin), codes = has_codes() && page > 0;
    const bool held = page >= window_begin(n_begin, window_);
    forms[static_cast<size_t>(page)] = {.values = none.values || values,
                                        .codes = none.codes || codes,
                                        .window_values = held && values,
                                        .window_codes = held && codes};
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].begin < n_begin || !there(i)) continue;
    for (int32_t page = pieces[i].begin_page(); page < pieces[i].end_page(); ++page) {
      CachedForms& form = forms[static_cast<size_t>(page)];
      const bool codes = pieces[i].codes && page > 0;
      (pieces[i].windowed ? (codes ? form.window_codes : form.window_values) : (codes ? form.codes : form.values)) =
          true;
    }
  }
  const auto form = [&](int32_t page) { return forms[static_cast<size_t>(page)]; };
  for (int32_t n = std::min(n_most, pieces.back().end); n > n_begin;) {
    Plan plan{.to = continuation_place(n, window_, form), .pieces = {}};
    if (plan.to.n <= n_begin) return {};
    if (take_pieces(pieces, there, n_begin, plan)) return plan;
    n = plan.to.n - 1;
  }
  return {};
}

// Adds the pieces that give a cache the plan's tokens. False: pages of windowed layers are not there in the forms that
// the other layers have.
bool PrefixStore::take_pieces(std::span<const Piece> pieces, FunctionRef<bool(size_t)> there, int32_t n_begin,
                              Plan& plan) const {
  const int32_t n = plan.to.n;
  int32_t taken[2] = {-1, -1};  // where the last piece begins, of windowed layers or not
  // The first page of the window that does not come so far.
  int32_t next = std::max(whole_window_begin(n, window_), n_begin / kPageSlots);
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    if (piece.begin < n_begin || piece.begin >= n || !there(i)) continue;
    if (piece.windowed && piece.end_page() <= held_begin(n, window_)) continue;
    const int32_t n_pages = std::min(piece.end_page(), pages_for(n));
    const bool as_values = !piece.windowed || plan.to.n_codes == 1 || piece.begin_page() >= plan.to.n_codes;
    const bool fits = piece.codes ? n_pages <= plan.to.n_codes : as_values;
    if (taken[piece.windowed ? 1 : 0] == piece.begin || !fits) continue;
    taken[piece.windowed ? 1 : 0] = piece.begin;
    plan.pieces.push_back(i);
    if (piece.windowed && piece.begin_page() <= next) next = std::max(next, n_pages);
  }
  return window_ == 0 || next == pages_for(n);
}

PrefixStore::Loaded PrefixStore::load_all(std::span<const Piece> pieces, KvCache& cache, Deadline deadline) {
  CHECK(cache.n_pages() == 0);
  TierSearch found = search(pieces, deadline);
  std::vector<ChainedTier*> from;
  for (size_t i = 0; i < pieces.size(); ++i) {
    found.wait(i, deadline);
    from.push_back(found.tier(i));
  }
  Loaded loaded;
  while (true) {
    const Plan plan = this->plan(
        pieces, [&](size_t i) { return from[i] != nullptr; }, 0, INT32_MAX);
    if (load_planned(pieces, plan, from, cache, loaded, deadline)) return loaded;
    cache.clear();
  }
}

// False: a piece could not be read, and its tier is forgotten.
bool PrefixStore::load_planned(std::span<const Piece> pieces, const Plan& plan, std::vector<ChainedTier*>& from,
                               KvCache& cache, Loaded& loaded, Deadline deadline) {
  loaded = {.n = plan.to.n};
  for (int32_t layer = 0; layer < shape_.n_layers() && loaded.n > 0; ++layer) {
    cache.append_coming(layer, plan.to.n, plan.to.n_codes);
  }
  for (const size_t i : plan.pieces) {
    const Load coming = load(pieces[i], *from[i], deadline);
    if (coming.wait(deadline) != RecordLoad::State::kReady) {
      from[i] = nullptr;
      return false;
    }
    for (int32_t layer = 0; layer < shape_.n_layers(); ++layer) fill(coming, layer, plan.to.n, cache);
    bring_nearer(coming);
    loaded.ms_per_token = std::max(loaded.ms_per_token, coming.ms_per_token());
  }
  return true;
}

int32_t PrefixStore::load_old(std::span<const Sha256Digest> elements, KvCache& cache, Deadline deadline) {
  CHECK(cache.n_pages() == 0);
  if (window_ > 0) return 0;  // it had the pages of all layers in one record
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
