#include "reuse/prefix/prefix_store.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <optional>
#include <set>

#include "ops/factory.h"
#include "reuse/kv_layout.h"
#include "reuse/prefix/coded_prefixes_testing.h"
#include "reuse/prefix/prefix_places.h"
#include "store/disk/tier.h"
#include "store/fake_tier_testing.h"

namespace vlcache {
namespace {

class PrefixPieces : public testing::Test {
 protected:
  static std::vector<Sha256Digest> elements(int32_t n, uint8_t first = 0) {
    std::vector<Sha256Digest> elements(static_cast<size_t>(n));
    for (int32_t i = 0; i < n; ++i) std::memcpy(elements[static_cast<size_t>(i)].data(), &i, sizeof(i));
    if (n > 0) elements[0][31] = first;
    return elements;
  }
  static std::vector<std::pair<int32_t, int32_t>> bounds(const std::vector<PrefixStore::Piece>& pieces) {
    std::vector<std::pair<int32_t, int32_t>> bounds;
    for (const PrefixStore::Piece& piece : pieces) bounds.emplace_back(piece.begin, piece.end);
    return bounds;
  }

  using Bounds = std::vector<std::pair<int32_t, int32_t>>;
  const std::unique_ptr<Backend> backend_ = make_backend("ref", DType::kF32, {});
  const KvShape shape_ = KvShape::uniform(2, 1, 4, KvCodec::kF32);
  PagePools pools_{*backend_, shape_, 1 << 20};
  TierChain chain_{{}, 1 << 20};
  PrefixStore store_{chain_, ModelFingerprint{}, shape_, pools_};
};

TEST_F(PrefixPieces, EndAfterFourPagesAtImagesAndAtTheEnd) {
  EXPECT_EQ(bounds(store_.pieces(elements(600), {})), (Bounds{{0, 256}, {256, 512}, {512, 576}, {576, 600}}));
  const auto image = [](int32_t begin, int32_t end, uint8_t key) {
    return PrefixStore::Image{begin, end, Sha256Digest{key}};
  };
  const std::vector images{image(280, 300, 1), image(301, 310, 2), image(330, 590, 3)};
  EXPECT_EQ(bounds(store_.pieces(elements(600), images)), (Bounds{{0, 256}, {256, 512}, {512, 576}, {576, 600}}));
  const auto cut = store_.pieces(elements(600), images);
  EXPECT_EQ(cut[0].images, std::vector<Sha256Digest>{});
  EXPECT_EQ(cut[1].images, (std::vector<Sha256Digest>{{1}, {2}, {3}}));  // everything after an image depends on it
  EXPECT_EQ(cut[3].images, cut[1].images);
  const std::vector early{image(5, 40, 1), image(50, 100, 2)};
  EXPECT_EQ(bounds(store_.pieces(elements(400), early)), (Bounds{{0, 64}, {64, 320}, {320, 384}, {384, 400}}));
  EXPECT_EQ(bounds(store_.pieces(elements(0), early)), Bounds{});
  EXPECT_EQ(bounds(store_.pieces(elements(256), {})), (Bounds{{0, 256}}));
}

TEST_F(PrefixPieces, PrefixesWithTheSameBeginningShareTheirRecords) {
  const std::vector image{PrefixStore::Image{10, 200, Sha256Digest{9}}};
  const auto a = store_.pieces(elements(500), image), b = store_.pieces(elements(700), image);
  ASSERT_EQ(bounds(a), (Bounds{{0, 192}, {192, 448}, {448, 500}}));
  EXPECT_EQ(a[0].key, b[0].key);
  EXPECT_EQ(a[1].key, b[1].key);
  EXPECT_FALSE(a[2].key == b[2].key);
  // Everything before a record is part of its key.
  const auto other = store_.pieces(elements(500, /*first=*/1), image);
  for (size_t i = 0; i < a.size(); ++i) EXPECT_FALSE(a[i].key == other[i].key);
  const auto salted = store_.pieces(elements(500), image, Sha256Digest{1});
  for (size_t i = 0; i < a.size(); ++i) EXPECT_FALSE(a[i].key == salted[i].key);
}

// ---- pages that become codes ------------------------------------------------------------------------------------

// Prefixes of keys whose elements name their tokens, in a tier.
class CodedRecords : public CodedPrefixFixture {
 protected:
  CodedRecords() { start(); }
  static std::shared_ptr<FakeTier> new_tier() { return std::make_shared<FakeTier>(nullptr, "fake", /*near=*/true); }
  // As another process would: nothing in memory.
  void start() {
    store_.reset();
    chain_ = std::make_unique<TierChain>(std::vector<std::shared_ptr<KvTier>>{tier_}, int64_t{1} << 30);
    set_budget(int64_t{64} << 20);
    store_ = std::make_unique<PrefixStore>(*chain_, ModelFingerprint{}, shape_, *pools_);
  }
  void set_codec(std::optional<KvCodec> codec) {
    for (KvLayerShape& layer : shape_.layers) layer.coded = codec;
    start();
  }
  void use(const KvShape& shape) {
    shape_ = shape;
    start();
  }
  static std::vector<Sha256Digest> elements(const Key& key) {
    std::vector<Sha256Digest> elements(key.size());
    for (size_t i = 0; i < key.size(); ++i) std::memcpy(elements[i].data(), &key[i], sizeof(Element));
    return elements;
  }
  std::vector<PrefixStore::Piece> pieces_of(const Key& key) const { return store_->pieces(elements(key), {}); }
  // Stores the pieces that `kv` holds. Returns how many.
  int save(const Key& key, PrefixKv& kv) {
    const int32_t end = kv.end_at(static_cast<int32_t>(key.size()));
    int n = 0;
    for (const PrefixStore::Piece& piece : pieces_of(key)) {
      if (piece.end > end || !kv.holds(piece) || store_->is_near(piece)) continue;
      kv.save(piece, {.ms_per_token = 2});
      ++n;
    }
    EXPECT_TRUE(store_->flush(kNoDeadline));
    return n;
  }
  KvCache computed(const Key& key, bool places = true) {
    KvCache cache = make();
    if (places) keep_places(cache, key);
    compute(cache, key, 0);
    return cache;
  }
  // Tokens of the key that tiers have; rows after them see the same as if all had been computed.
  int32_t load(const Key& key) {
    KvCache loaded = make();
    const PrefixStore::Loaded found = store_->load_all(pieces_of(key), loaded, kNoDeadline);
    EXPECT_EQ(loaded.n_slots(0, 0), found.n);
    EXPECT_EQ(found.ms_per_token, found.n > 0 ? 2 : 0);
    Key longer = first(key, found.n);
    longer.resize(longer.size() + 70, 3);
    const KvCache expected = computed(longer);
    compute(loaded, longer, found.n);
    expect_equal(loaded, expected);
    return found.n;
  }

  std::shared_ptr<KvTier> tier_ = new_tier();
  std::unique_ptr<TierChain> chain_;
  std::unique_ptr<PrefixStore> store_;
};

TEST_F(CodedRecords, EndWhereCodesMayEndAndAtRegularPlaces) {
  using Bounds = std::vector<std::pair<int32_t, int32_t>>;
  const std::vector<PrefixStore::Piece> pieces = pieces_of(Key(700, 1));
  Bounds codes, values;
  for (const PrefixStore::Piece& piece : pieces) {
    (piece.codes ? codes : values).emplace_back(piece.begin / 64, (piece.end + 63) / 64);
  }
  EXPECT_EQ(codes, (Bounds{{0, 2}, {2, 6}, {6, 10}}));
  EXPECT_EQ(values, (Bounds{{0, 2}, {2, 6}, {6, 10}, {10, 11}}));
  const std::vector<int32_t> ends = PrefixStore::ends(2500, {}, /*has_codes=*/true);
  EXPECT_EQ(std::vector(ends.end() - 5, ends.end()), (std::vector{32 * 64, 34 * 64, 38 * 64, 39 * 64, 2500}));
  EXPECT_EQ(PrefixStore::ends(500, std::vector<PrefixStore::Image>{{70, 330, {}}}, true),
            (std::vector{2 * 64, 5 * 64, 6 * 64, 7 * 64, 500}));
}

TEST_F(CodedRecords, NameTheCodec) {
  EXPECT_EQ(kv_layout(shape_), "f32:int8/4 2x2x16");
  KvShape mixed = shape_;
  mixed.layers.push_back(mixed.layers[0]);
  mixed.layers[0].coded.reset();
  EXPECT_EQ(kv_layout(mixed), "f32 1x2x16 2x2x16:int8/4");
  for (KvLayerShape& layer : mixed.layers) layer.coded.reset();
  EXPECT_EQ(kv_layout(mixed), "f32 3x2x16");
  std::set<std::string> layouts;
  for (const PrefixStore::Piece& piece : pieces_of(Key(700, 1))) layouts.insert(piece.key.layout);
  EXPECT_EQ(layouts, (std::set<std::string>{"pages3 codes f32:int8/4 2x2x16", "pages3 f32:int8/4 2x2x16"}));
}

// Of a prompt that a sequence has computed, tiers have its end and the regular places before it.
TEST_F(CodedRecords, ComeBackInTheFormsThatTheNextRowSees) {
  for (const auto& [n, n_whole] : {std::pair(50, 0), {128, 128}, {255, 128}, {700, 640}, {2100, 2048}}) {
    const Key key(static_cast<size_t>(n), 1);
    EXPECT_GT(save(key, *prefix_kv(*store_, computed(key))), 0);
    start();
    EXPECT_EQ(load(key), n);
    EXPECT_EQ(load(key_of(n + 100, n, 2)), n_whole);  // whole pieces that both have
    EXPECT_EQ(load(key_of(n, std::max(0, n - 500), 4)), n > 500 ? 64 : 0) << n;
    tier_ = new_tier();
    start();
  }
}

// A damaged or missing record costs the tokens that need it.
TEST_F(CodedRecords, WithoutARecordThePrefixEndsAtAPlaceBefore) {
  const Key key(2500, 1);
  save(key, *prefix_kv(*store_, computed(key)));
  std::vector<PrefixStore::Piece> pieces = pieces_of(key);
  const auto erase = [&](int32_t page, bool codes) {
    for (const PrefixStore::Piece& piece : pieces) {
      if (piece.codes == codes && piece.begin_page() <= page && page < piece.end_page())
        tier_->erase(tier_->id_of(piece.key));
    }
  };
  EXPECT_EQ(load(key), 2500);
  erase(39, false);
  EXPECT_EQ(load(key), 39 * 64);
  erase(38, false);
  EXPECT_EQ(load(key), 38 * 64);
  erase(37, false);
  EXPECT_EQ(load(key), 2048);
  erase(10, true);
  EXPECT_EQ(load(key), 64);
}

// The same in files.
class CodedFiles : public CodedRecords {
 protected:
  CodedFiles() {
    std::filesystem::remove_all(dir_);
    tier_ = disk_ = std::make_shared<DiskTier>(DiskTierOptions{.dir = dir_, .max_bytes = int64_t{1} << 30});
    start();
  }
  ~CodedFiles() override { std::filesystem::remove_all(dir_); }

  const std::filesystem::path dir_ =
      std::filesystem::path(testing::TempDir()) / ("vlcache-coded-" + std::to_string(getpid()));
  std::shared_ptr<DiskTier> disk_;
};

// A bit that flips in a record makes it a miss with a reason: the prefix is what it would be without the record, and
// never other values.
TEST_F(CodedFiles, AFlippedBitIsAMiss) {
  const Key key(500, 1);
  save(key, *prefix_kv(*store_, computed(key)));
  EXPECT_EQ(load(key), 500);
  int n_used = 0;
  for (const PrefixStore::Piece& piece : pieces_of(key)) {
    const std::filesystem::path path = disk_->path_of(piece.key);
    if (!std::filesystem::exists(path)) continue;
    std::ifstream file(path, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    std::filesystem::remove(path);
    const int32_t n_without = load(key);
    n_used += n_without < 500 ? 1 : 0;
    // Bytes of the header, of the codes and scales of a page's K and V, of the names of images, and of the cost.
    const auto n = static_cast<int64_t>(bytes.size());
    const int64_t first = n - store_->piece_bytes(piece) - static_cast<int64_t>(sizeof(RecordId) + sizeof(double));
    const int64_t codes = backend_->kv_page_bytes(KvCodec::kInt8, kDim) / 2, scales = kPageSlots * 2;
    for (const int64_t at : {int64_t{0}, first / 2, first - 1, first, first + codes - scales, first + codes,
                             first + 2 * codes - 1, n - 9, n - 1}) {
      std::string flipped = bytes;
      flipped[static_cast<size_t>(at)] = static_cast<char>(flipped[static_cast<size_t>(at)] ^ (1 << at % 8));
      std::ofstream(path, std::ios::binary) << flipped;
      const int64_t n_failed = disk_->stats().n_failed();
      EXPECT_EQ(load(key), n_without) << "byte " << at << " of " << n;
      EXPECT_EQ(disk_->stats().n_failed() > n_failed, n_without < 500) << disk_->stats().bad_record;
    }
    std::ofstream(path, std::ios::binary) << bytes;
    EXPECT_EQ(load(key), 500);
  }
  EXPECT_GT(n_used, 2);
}

TEST_F(CodedFiles, OfADroppedImageAreErased) {
  const Key key(700, 1);
  const std::vector images{PrefixStore::Image{300, 330, Sha256Digest{1}},
                           PrefixStore::Image{400, 500, Sha256Digest{2}}};
  const KvCache cache = computed(key);
  const std::vector<PrefixStore::Piece> pieces = store_->pieces(elements(key), images);
  for (const PrefixStore::Piece& piece : pieces) {
    if (store_->holds(piece, cache)) store_->save(piece, cache, {});
  }
  EXPECT_TRUE(store_->flush(kNoDeadline));
  const auto n_records = [&](size_t n_images) {
    return std::ranges::count_if(pieces, [&](const PrefixStore::Piece& piece) {
      return piece.images.size() == n_images && std::filesystem::exists(disk_->path_of(piece.key));
    });
  };
  const auto n_free = n_records(0), n_one = n_records(1), n_both = n_records(2);
  EXPECT_TRUE(n_free > 0 && n_one > 0 && n_both > 1);
  EXPECT_EQ(PrefixStore::erase_image(*tier_, Sha256Digest{2}), n_both);
  EXPECT_EQ(n_records(2), 0);
  EXPECT_EQ(n_records(1), n_one);
  EXPECT_EQ(PrefixStore::erase_image(*tier_, Sha256Digest{1}), n_one);
  EXPECT_EQ(n_records(0), n_free);
}

// What memory has in both forms is stored in both, and a prompt that shares 3,000 tokens finds them.
TEST_F(CodedRecords, TiersGetThePlacesOfMemory) {
  const Key shared(3000, 1);
  ask(key_of(3600, 3000, 2));
  ask(key_of(3700, 3000, 3));
  const auto empty = [this] { return make(); };
  const std::unique_ptr<PrefixPlaces> places = make_prefix_places(*store_, *prefixes_, empty);
  for (const Element other : {2, 3}) {
    const Key key = key_of(other == 2 ? 3600 : 3700, 3000, other);
    EXPECT_EQ(places->n_known(key), std::ssize(key));
    save(key, *places->copy(key));
  }
  start();
  EXPECT_EQ(load(key_of(3600, 3000, 2)), 3600);
  EXPECT_EQ(load(key_of(3700, 3000, 3)), 3700);
  EXPECT_EQ(load(key_of(3700, 3000, 4)), 3000 / 64 * 64);
  EXPECT_EQ(load(key_of(3700, 2500, 4)), 2048);
}

// The store of a model with another codec, or none, does not find them, and says so.
TEST_F(CodedRecords, OfAnotherCodecAreAMissWithAReason) {
  const Key key(700, 1);
  std::vector<KvShape> shapes;
  for (const std::optional<KvCodec> codec : {std::optional<KvCodec>(), std::optional(KvCodec::kInt8),
                                             std::optional(KvCodec::kK8V4), std::optional(KvCodec::kInt4)}) {
    set_codec(codec);
    shapes.push_back(shape_);
  }
  shape_.layers[0].coded = KvCodec::kK8V4, shape_.named = KvCodec::kInt4;  // a layer that keeps more bits
  shapes.push_back(shape_);
  for (size_t stored = 0; stored < shapes.size(); ++stored) {
    use(shapes[stored]);
    save(key, *prefix_kv(*store_, computed(key)));
    for (size_t asked = 0; asked < shapes.size(); ++asked) {
      use(shapes[asked]);
      const std::string why = store_->other_codes(elements(key), {}, std::nullopt, shapes);
      if (asked == stored) {
        EXPECT_EQ(load(key), 700);
        EXPECT_EQ(why, "");
        continue;
      }
      EXPECT_EQ(load(key), 0);
      const KvShape& of = shapes[stored];
      EXPECT_NE(why.find(of.has_codes() ? kv_codec_name(of.full_codec()) : "earlier releases"), std::string::npos)
          << why;
    }
    tier_ = new_tier();
    start();
  }
}

// ---- layers with windows ------------------------------------------------------------------------------------------

class WindowedRecords : public CodedRecords, public testing::WithParamInterface<WindowedShape> {
 protected:
  WindowedRecords() {
    set_windows(shape_, GetParam());
    start();
  }
};

TEST_P(WindowedRecords, NameTheWindow) {
  const std::string layout = std::string(GetParam().coded ? "f32:int8/4" : "f32") + " 2x2x16 window 100";
  std::set<std::string> expected{"pages4 " + layout + " windowed"}, layouts;
  if (!GetParam().all) expected.insert("pages4 " + layout);
  if (GetParam().coded) {
    for (const std::string& name : std::set(expected)) expected.insert("pages4 codes " + name.substr(7));
  }
  for (const PrefixStore::Piece& piece : pieces_of(Key(700, 1))) layouts.insert(piece.key.layout);
  EXPECT_EQ(layouts, expected);
}

// Of a prompt that a sequence has computed, tiers have its end and the regular places before it.
TEST_P(WindowedRecords, ComeBackAtPlaces) {
  const bool coded = GetParam().coded;
  // Prompts, and the whole pieces that a longer one has, too.
  for (const auto& [n, n_whole] : {std::pair(50, 0), {300, coded ? 64 : 256}, {900, coded ? 896 : 768}, {2100, 2048}}) {
    const Key key(static_cast<size_t>(n), 1);
    EXPECT_GT(save(key, *prefix_kv(*store_, computed(key))), 0);
    start();
    EXPECT_EQ(load(key), n);
    EXPECT_EQ(load(key_of(n + 100, n, 2)), n_whole);
    if (n == 2100) {
      EXPECT_EQ(load(key_of(n, 1800, 4)), coded ? 0 : 1536);
    }
    tier_ = new_tier();
    start();
  }
}

// A damaged or missing record of windowed layers shortens the prefix to a place before.
TEST_P(WindowedRecords, WithoutARecordThePrefixEndsAtAPlaceBefore) {
  const Key key(2500, 1);
  save(key, *prefix_kv(*store_, computed(key)));
  EXPECT_EQ(load(key), 2500);
  const std::vector<PrefixStore::Piece> pieces = pieces_of(key);
  const auto erase = [&](int32_t page) {
    for (const PrefixStore::Piece& piece : pieces) {
      if (piece.windowed && piece.begin_page() <= page && page < piece.end_page())
        tier_->erase(tier_->id_of(piece.key));
    }
  };
  erase(39);
  EXPECT_EQ(load(key), 39 * kPageSlots);
  erase(38);
  erase(37);
  EXPECT_EQ(load(key), regular_place(GetParam()));
  erase(regular_place(GetParam()) / kPageSlots - 1);
  EXPECT_EQ(load(key), 0);
}

// The store of a model with another codec says so, although the first pages of windowed layers are not stored.
TEST_P(WindowedRecords, OfAnotherCodecAreAMissWithAReason) {
  const Key key(900, 1);
  const KvShape stored = shape_;
  save(key, *prefix_kv(*store_, computed(key)));
  KvShape asked = shape_;
  set_windows(asked, {.all = GetParam().all, .coded = !GetParam().coded});
  use(asked);
  EXPECT_EQ(load(key), 0);
  const std::string why = store_->other_codes(elements(key), {}, std::nullopt, std::vector<KvShape>{stored, asked});
  EXPECT_NE(why.find(GetParam().coded ? "int8" : "without KV codes"), std::string::npos) << why;
}

INSTANTIATE_TEST_SUITE_P(Shapes, WindowedRecords, testing::ValuesIn(kWindowedShapes), [](const auto& info) {
  return std::string(info.param.all ? "all" : "last") + (info.param.coded ? "_int8" : "");
});

}  // namespace
}  // namespace vlcache
