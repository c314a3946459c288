// Images that another process has left in a tier: found, and done without when they turn out to be damaged or late.
#include <unistd.h>

#include <array>
#include <filesystem>
#include <set>
#include <thread>

#include "base/json.h"
#include "engine/batch.h"
#include "engine/engine_testing.h"
#include "reuse/prefix_cache.h"
#include "store/disk_tier.h"

namespace vlcache {
namespace {

using Source = CacheReport::Image::Source;
using Encoder = CacheReport::Image::Encoder;

// A tier between which and us something goes wrong.
class FaultyTier final : public KvTier {
 public:
  explicit FaultyTier(std::shared_ptr<KvTier> tier) : tier_(std::move(tier)) {}

  std::set<int32_t> bad_sections;       // of KV records
  std::optional<Sha256Digest> only_of;  // these contents' alone
  std::chrono::milliseconds delay{0};   // of every section
  bool gone = false;                    // opens nothing

  std::string_view name() const override { return tier_->name(); }
  RecordId id_of(const RecordKey& key) const override { return tier_->id_of(key); }
  std::vector<bool> exists(std::span<const RecordKey> keys, Deadline deadline) override {
    return tier_->exists(keys, deadline);
  }
  OpenedRecord open(const RecordKey& key, Deadline deadline) override {
    if (gone) return {nullptr, {MissReason::kIo, "gone"}};
    OpenedRecord opened = tier_->open(key, deadline);
    if (opened.reader == nullptr || !key.layout.starts_with("kv") || (only_of && *only_of != key.content))
      return opened;
    opened.reader = std::make_unique<Reader>(*this, std::move(opened.reader));
    return opened;
  }
  PutResult put(const Record& record, Deadline deadline) override { return tier_->put(record, deadline); }
  bool erase(const RecordId& id) override { return tier_->erase(id); }
  std::vector<ListedRecord> list() override { return tier_->list(); }
  TierStats stats() const override { return tier_->stats(); }

 private:
  class Reader final : public RecordReader {
   public:
    Reader(FaultyTier& tier, std::unique_ptr<RecordReader> reader) : tier_(tier), reader_(std::move(reader)) {}
    const RecordHeader& header() const override { return reader_->header(); }
    std::optional<Miss> read(int32_t section, std::span<std::byte> to, Deadline deadline) override {
      std::this_thread::sleep_for(tier_.delay);
      if (tier_.bad_sections.contains(section)) {
        std::ranges::fill(to, std::byte{0x7f});  // as it may look
        return Miss{MissReason::kChecksum, "section " + std::to_string(section)};
      }
      return reader_->read(section, to, deadline);
    }

   private:
    FaultyTier& tier_;
    std::unique_ptr<RecordReader> reader_;
  };
  std::shared_ptr<KvTier> tier_;
};

class StoredImages : public testing::Test {
 protected:
  StoredImages()
      : fixture_(std::filesystem::path(VLCACHE_SOURCE_DIR) / "tests/fixtures/models/llava-next-llama"),
        case_(parse_ordered_json(read_text_file(fixture_ / "case.json"), "case.json")),
        dir_(std::filesystem::temp_directory_path() / ("vlcache-stored-images-" + std::to_string(getpid()))),
        disk_(std::make_shared<DiskTier>(DiskTierOptions{.dir = dir_, .max_bytes = 64 << 20, .ttl_ms = 0, .salt = ""})),
        tier_(std::make_shared<FaultyTier>(disk_)) {}
  ~StoredImages() override { std::filesystem::remove_all(dir_); }

  // A process of its own, as far as memory goes.
  std::unique_ptr<Engine> engine(double deadline_ms = 60'000, int32_t admit = 1) const {
    EngineOptions options;
    options.dtype = DType::kF32;
    options.kv_memory_bytes = 64 << 20;
    options.cache_bytes = 64 << 20;
    options.tiers = {tier_};
    options.cache_deadline_ms = deadline_ms;
    options.cache_admit = admit;
    return Engine::load(fixture_, options);
  }

  Request request(Engine& engine, const char* chooser, bool other_picture = false) const {
    std::vector<Image> images;
    for (const auto& name : case_["images"]) images.push_back(load_image(fixture_ / name.get<std::string>()));
    if (other_picture) {
      for (uint8_t& value : images.back().rgb) value ^= 0x80;
    }
    Request request;
    request.prompt = engine.prepare_raw(case_["prompt"].get<std::string>(), std::move(images));
    request.policy = parse_policy("full");
    if (chooser != nullptr) request.reuse = {.chooser = parse_reuse_chooser(chooser), .required = true};
    request.options.max_tokens = static_cast<int32_t>(greedy().size());
    request.options.ignore_eos = true;
    return request;
  }

  std::vector<int32_t> greedy() const { return case_["greedy"].get<std::vector<int32_t>>(); }
  static std::vector<int32_t> ids(const GenerateResult& result) {
    std::vector<int32_t> ids;
    for (const GeneratedToken& token : result.tokens) ids.push_back(token.id);
    return ids;
  }
  // Leaves the case's image in the tier.
  void store() const {
    const std::unique_ptr<Engine> e = engine();
    EXPECT_EQ(ids(generate(*e, request(*e, "static:r=0"))), greedy());
  }

  std::filesystem::path fixture_;
  nlohmann::ordered_json case_;
  std::filesystem::path dir_;
  std::shared_ptr<DiskTier> disk_;
  std::shared_ptr<FaultyTier> tier_;
};

TEST_F(StoredImages, AnotherProcessFindsThem) {
  store();
  for (const char* chooser : {"static:r=0", "static:r=0.3", "cacheblend:r=0.1", "kvshare:r=0.1", "asked:r=0.1"}) {
    SCOPED_TRACE(chooser);
    const std::unique_ptr<Engine> e = engine();
    GenerateResult result = generate(*e, request(*e, chooser));
    EXPECT_EQ(ids(result), greedy());
    for (const CacheReport::Image& image : result.cache.images) {
      EXPECT_EQ(image.source, Source::kTier);
      EXPECT_EQ(image.tier, "disk");
      EXPECT_EQ(image.encoder, image.n_recomputed > 0 ? Encoder::kHit : Encoder::kSkipped);
    }
    result = generate(*e, request(*e, chooser));  // what was loaded is in memory now
    for (const CacheReport::Image& image : result.cache.images) EXPECT_EQ(image.source, Source::kRam);
  }
  // Who computes all of it takes the embeddings.
  const std::unique_ptr<Engine> e = engine();
  const GenerateResult exact = generate(*e, request(*e, nullptr));
  EXPECT_EQ(ids(exact), greedy());
  for (const CacheReport::Image& image : exact.cache.images) EXPECT_EQ(image.encoder, Encoder::kHit);
  // Another picture is another image.
  const GenerateResult other = generate(*e, request(*e, "static:r=0", true));
  EXPECT_EQ(other.cache.images.back().source, Source::kComputed);
  EXPECT_EQ(other.cache.images.back().encoder, Encoder::kComputed);
}

TEST_F(StoredImages, ABadLayerCostsItsStep) {
  store();
  const int32_t n_layers = engine()->kv_shape().n_layers();
  for (int32_t i = 0; i < 3 * n_layers; ++i) {
    const int32_t layer = i / 3;
    const char* chooser = std::array{"static:r=0.3", "cacheblend:r=0.1", "asked:r=0.1"}[static_cast<size_t>(i % 3)];
    SCOPED_TRACE(chooser);
    tier_->bad_sections = {layer};
    const std::unique_ptr<Engine> e = engine();
    const GenerateResult result = generate(*e, request(*e, chooser));
    EXPECT_EQ(ids(result), greedy());
    for (const CacheReport::Image& image : result.cache.images) {
      EXPECT_EQ(image.source, Source::kComputed);
      EXPECT_EQ(image.reason, "disk: checksum: section " + std::to_string(layer));
      EXPECT_EQ(image.n_recomputed, image.n_tokens);
    }
    EXPECT_EQ(result.cache.n_prefix_tokens, 0);
    EXPECT_EQ(e->cache_totals().image_kv.n_hits, 0);
    EXPECT_EQ(e->pools().used_bytes(), 0);
  }
}

TEST_F(StoredImages, WhatComesLateOrNotAtAllIsComputed) {
  store();
  tier_->delay = std::chrono::milliseconds(100);
  {
    const std::unique_ptr<Engine> e = engine(/*deadline_ms=*/20);
    const GenerateResult result = generate(*e, request(*e, "static:r=0"));
    EXPECT_EQ(ids(result), greedy());
    for (const CacheReport::Image& image : result.cache.images) {
      EXPECT_NE(image.reason.find("disk: late"), std::string::npos) << image.reason;
    }
  }
  tier_->gone = true;
  const std::unique_ptr<Engine> e = engine();
  const GenerateResult result = generate(*e, request(*e, "static:r=0"));
  EXPECT_EQ(ids(result), greedy());
  for (const CacheReport::Image& image : result.cache.images) {
    EXPECT_NE(image.reason.find("gone"), std::string::npos) << image.reason;
    EXPECT_EQ(image.encoder, Encoder::kComputed);
  }
}

// Nor are images that are always computed by themselves computed elsewhere then.
TEST_F(StoredImages, ABadLayerOfAnImageThatIsNeutralCostsAnotherOrigin) {
  const auto ask = [&] {
    const std::unique_ptr<Engine> e = engine();
    Request neutral = request(*e, "static:r=0.1");
    neutral.reuse.origin = ReuseOrigin::kNeutral;
    return generate(*e, std::move(neutral));
  };
  const GenerateResult never_stored = ask();
  tier_->bad_sections = {1};
  const GenerateResult damaged = ask();
  EXPECT_EQ(ids(damaged), ids(never_stored));
  for (const CacheReport::Image& image : damaged.cache.images) {
    EXPECT_EQ(image.reason, "computed by itself, then reused");
  }
  tier_->bad_sections = {};
  for (const CacheReport::Image& image : ask().cache.images) EXPECT_EQ(image.source, Source::kTier) << image.reason;
}

// Two in one step, of which one loads what is damaged: the other one does not notice.
TEST_F(StoredImages, ABadRecordIsOneSequencesAffair) {
  std::vector<int32_t> other;
  {
    const std::unique_ptr<Engine> e = engine();
    generate(*e, request(*e, "static:r=1"));
    other = ids(generate(*e, request(*e, "static:r=1", true)));
  }
  for (const char* chooser : {"static:r=0.3", "kvshare:r=0.1", "asked:r=0.1"}) {
    SCOPED_TRACE(chooser);
    const std::unique_ptr<Engine> e = engine();
    Request bad = request(*e, chooser), good = request(*e, chooser, true);
    tier_->bad_sections = {1};
    tier_->only_of = image_key(bad.prompt.images.back());
    std::vector<Request> both;
    both.push_back(std::move(bad));
    both.push_back(std::move(good));
    const std::vector<GenerateResult> results = generate(*e, std::move(both));
    EXPECT_EQ(ids(results[0]), greedy());
    EXPECT_EQ(ids(results[1]), other);
    EXPECT_EQ(results[0].cache.images.back().source, Source::kComputed);
    EXPECT_EQ(results[1].cache.images.back().source, Source::kTier);
    EXPECT_EQ(e->pools().used_bytes(), 0);
  }
}

TEST_F(StoredImages, AreKeptFromTheUseOnThatIsAskedFor) {
  const std::unique_ptr<Engine> e = engine(60'000, /*admit=*/3);
  for (int use = 1; use <= 4; ++use) {
    generate(*e, request(*e, "static:r=0"));
    e->tiers()->flush(kNoDeadline);
    int64_t n_kv = 0;
    for (const ListedRecord& record : disk_->list()) n_kv += record.key.layout.starts_with("kv") ? 1 : 0;
    EXPECT_EQ(n_kv > 0, use >= 3) << use;
  }
}

}  // namespace
}  // namespace vlcache
