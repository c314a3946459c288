// Images that another process has left in a tier: hits, and recomputed when they turn out to be damaged or late.
#include <array>
#include <map>
#include <set>

#include "engine/reuse/stored_images_testing.h"

namespace vlcache {
namespace {

using Source = CacheReport::Image::Source;
using Encoder = CacheReport::Image::Encoder;

TEST_F(StoredImages, AreHitsInAnotherProcess) {
  store();
  for (const char* chooser : {"static:r=0", "static:r=0.3", "cacheblend:r=0.1", "kvshare:r=0.1", "asked:r=0.1"}) {
    SCOPED_TRACE(chooser);
    const std::unique_ptr<Engine> e = engine();
    GenerateResult result = generate(*e, request(*e, chooser));
    EXPECT_EQ(ids(result), greedy());
    for (const CacheReport::Image& image : result.cache.images) {
      EXPECT_EQ(image.source, Source::kTier);
      EXPECT_EQ(image.tier, "disk");
      if (image.n_recomputed == 0 && std::string_view(chooser) == "asked:r=0.1") continue;  // it may skip one
      EXPECT_EQ(image.encoder, image.n_recomputed > 0 ? Encoder::kHit : Encoder::kSkipped);
    }
    result = generate(*e, request(*e, chooser));  // what was loaded is in memory now
    for (const CacheReport::Image& image : result.cache.images) EXPECT_EQ(image.source, Source::kRam);
  }
  // A request that computes all of an image takes the embeddings.
  const std::unique_ptr<Engine> e = engine();
  const GenerateResult exact = generate(*e, request(*e, nullptr));
  EXPECT_EQ(ids(exact), greedy());
  for (const CacheReport::Image& image : exact.cache.images) EXPECT_EQ(image.encoder, Encoder::kHit);
  // Other pixels are another image.
  const GenerateResult other = generate(*e, request(*e, "static:r=0", true));
  EXPECT_EQ(other.cache.images.back().source, Source::kComputed);
  EXPECT_EQ(other.cache.images.back().encoder, Encoder::kComputed);
}

TEST_F(StoredImages, DamagedLayerRepeatsItsStep) {
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
    EXPECT_EQ(e->kv().totals().image_kv.n_hits, 0);
    EXPECT_EQ(e->pools().used_bytes(), 0);
  }
}

TEST_F(StoredImages, LateOrMissingRecordsAreRecomputed) {
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

// Images that are always computed by themselves are not computed elsewhere after damage.
TEST_F(StoredImages, DamagedLayerOfANeutralImageNeedsAnotherOrigin) {
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

// Two sequences in one step, of which one loads a damaged record: the other does not notice.
TEST_F(StoredImages, DamagedRecordAffectsOneSequenceOnly) {
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

std::vector<ImageKvForm> forms() {
  using Codec = ImageKvForm::Codec;
  return {{},
          {.codec = Codec::kInt8},
          {.codec = Codec::kInt4},
          {.share = 0.5, .scorer = "key_diff"},
          {.codec = Codec::kInt8, .share = 0.5, .scorer = "key_diff"},
          {.codec = Codec::kInt8, .share = 0.25, .scorer = "key_diff"}};
}

TEST_F(StoredImages, AreHitsInTheFormInWhichTheyWereStored) {
  size_t n_stored = 0;
  std::map<std::string, int64_t> bytes;
  for (const ImageKvForm& form : forms()) {
    SCOPED_TRACE(form.name());
    {
      const std::unique_ptr<Engine> e = engine(60'000, 1, form);
      const GenerateResult first = generate(*e, request(*e, "static:r=0.3"));
      EXPECT_EQ(ids(first), greedy());  // computed: whatever is kept of it
      for (const CacheReport::Image& image : first.cache.images) EXPECT_EQ(image.source, Source::kComputed);
    }
    ++n_stored;
    const std::unique_ptr<Engine> e = engine(60'000, 1, form);
    for (const Source source : {Source::kTier, Source::kRam}) {
      const GenerateResult result = generate(*e, request(*e, "static:r=0.3"));
      for (const CacheReport::Image& image : result.cache.images) {
        EXPECT_EQ(image.source, source);
        EXPECT_EQ(image.form, form.name());
        EXPECT_EQ(image.n_kept, form.n_kept(image.n_tokens));
      }
      if (form.codec == ImageKvForm::Codec::kInt8 && form.keeps_all()) {
        EXPECT_EQ(ids(result), greedy());
      }
      EXPECT_EQ(e->pools().used_bytes(), 0);
    }
    bytes[form.name()] = e->kv().totals().image_kv.bytes;
  }
  std::set<std::string> layouts;
  for (const ListedRecord& record : disk_->list()) {
    if (record.key.layout.starts_with("kv")) layouts.insert(record.key.layout);
  }
  EXPECT_EQ(layouts.size(), n_stored);
  EXPECT_LT(bytes["int8"], 0.3 * static_cast<double>(bytes["exact"]));  // of f32
  EXPECT_LT(bytes["int4"], bytes["int8"]);
  EXPECT_LT(bytes["int8, 0.5:key_diff"], 0.7 * static_cast<double>(bytes["int8"]));
}

// Damage of any form: the tokens before it stay computed, the rest is computed.
TEST_F(StoredImages, DamagedLayerOfAnyFormRepeatsItsStep) {
  for (const ImageKvForm& form : forms()) {
    SCOPED_TRACE(form.name());
    tier_->bad_sections = {};
    store(form);
    for (const int32_t layer : {0, engine()->kv_shape().n_layers() - 1}) {
      tier_->bad_sections = {layer};
      const std::unique_ptr<Engine> e = engine(60'000, 1, form);
      const GenerateResult result = generate(*e, request(*e, "static:r=0.3"));
      EXPECT_EQ(ids(result), greedy());
      for (const CacheReport::Image& image : result.cache.images) {
        EXPECT_EQ(image.source, Source::kComputed);
        EXPECT_EQ(image.reason, "disk: checksum: section " + std::to_string(layer));
      }
      EXPECT_EQ(e->pools().used_bytes(), 0);
    }
  }
}

// A writer to a store without a salt can change answers, but not which memory is read.
TEST_F(StoredImages, InvalidTokenIndicesAreAMiss) {
  const ImageKvForm form{.codec = ImageKvForm::Codec::kInt8, .share = 0.5, .scorer = "key_diff"};
  store(form);
  tier_->lies = true;
  const std::unique_ptr<Engine> e = engine(60'000, 1, form);
  const GenerateResult result = generate(*e, request(*e, "static:r=0.3"));
  EXPECT_EQ(ids(result), greedy());
  for (const CacheReport::Image& image : result.cache.images) {
    EXPECT_EQ(image.source, Source::kComputed);
    EXPECT_NE(image.reason.find("tokens that the image does not have"), std::string::npos) << image.reason;
  }
}

// Choosers and policies that need missing tokens report it.
TEST_F(StoredImages, RequestsThatNeedDroppedTokensReportIt) {
  const ImageKvForm form{.share = 0.5, .scorer = "knorm"};
  store(form);
  for (const char* chooser : {"asked:r=0.1", "cacheblend:r=0.1", "kvshare:r=0.1"}) {
    const std::unique_ptr<Engine> e = engine(60'000, 1, form);
    EXPECT_THROW(generate(*e, request(*e, chooser)), Error) << chooser;
    Request optional = request(*e, chooser);
    optional.reuse.required = false;
    const GenerateResult result = generate(*e, std::move(optional));
    EXPECT_EQ(ids(result), greedy());
    EXPECT_NE(result.cache.images.back().reason.find("looks at all tokens"), std::string::npos);
  }
  const std::unique_ptr<Engine> e = engine(60'000, 1, form);
  Request replays = request(*e, "static:r=0.1");
  replays.policy = parse_policy("kvzip", "0.5");
  EXPECT_THROW(generate(*e, std::move(replays)), Error);
}

TEST_F(StoredImages, AreStoredFromTheAdmittedUseOn) {
  const std::unique_ptr<Engine> e = engine(60'000, /*admit=*/3);
  for (int use = 1; use <= 4; ++use) {
    generate(*e, request(*e, "static:r=0"));
    e->kv().tiers()->flush(kNoDeadline);
    int64_t n_kv = 0;
    for (const ListedRecord& record : disk_->list()) n_kv += record.key.layout.starts_with("kv") ? 1 : 0;
    EXPECT_EQ(n_kv > 0, use >= 3) << use;
  }
}

// A preempted request finds its own images again, and reports that it has computed them.
TEST_F(StoredImages, AreReportedAsComputedAfterPreemption) {
  tiers_.clear();
  const std::unique_ptr<Engine> other = engine();
  const CacheReport alone = generate(*other, request(*other, "static:r=0")).cache;
  for (const int n_steps : {1, 3, 5, 7}) {
    SCOPED_TRACE(n_steps);
    const std::unique_ptr<Engine> e = engine();
    Scheduler scheduler(*e, {.max_running = 1});
    const RequestId first = scheduler.add(request(*e, "static:r=0"));
    for (int i = 0; i < n_steps; ++i) scheduler.step();
    Request urgent = without_image(*e);
    urgent.priority = 1;
    scheduler.add(std::move(urgent));
    EXPECT_FALSE(scheduler.done(first));
    while (scheduler.step()) {
    }
    const GenerateResult result = scheduler.remove(first);
    EXPECT_EQ(ids(result), greedy());
    EXPECT_EQ(result.cache.n_loaded(), alone.n_loaded());
    for (const CacheReport::Image& image : result.cache.images) {
      EXPECT_EQ(image.source, CacheReport::Image::Source::kComputed);
      EXPECT_EQ(image.encoder, CacheReport::Image::Encoder::kComputed);
    }
  }
}

// Two processes on a folder: the other waits for the record of the one that computes the image.
class ClaimedImages : public StoredImages {
 protected:
  struct Process {
    std::unique_ptr<Engine> engine;
    std::unique_ptr<Scheduler> scheduler;
    RequestId id{};
  };
  Process process(double deadline_ms) const {
    EngineOptions options = engine_options();
    options.cache_deadline_ms = deadline_ms;
    options.tiers = {std::make_shared<DiskTier>(DiskTierOptions{.dir = dir_, .max_bytes = 64 << 20})};
    Process p{.engine = Engine::load(Checkpoint(fixture_), options), .scheduler = nullptr};
    p.scheduler = std::make_unique<Scheduler>(*p.engine);
    p.id = p.scheduler->add(request(*p.engine, nullptr));
    return p;
  }
  static GenerateResult finish(Process& p) {
    while (p.scheduler->step()) {
    }
    return p.scheduler->remove(p.id);
  }
  static int n_encoded(const GenerateResult& result) {
    const auto computed = CacheReport::Image::Encoder::kComputed;
    return static_cast<int>(std::ranges::count(result.cache.images, computed, &CacheReport::Image::encoder));
  }
};

TEST_F(ClaimedImages, AreComputedOnce) {
  Process first = process(60'000), second = process(60'000);
  first.scheduler->step();
  for (int i = 0; i < 20; ++i) second.scheduler->step();
  const GenerateResult computed = finish(first);
  EXPECT_GT(n_encoded(computed), 0);
  ASSERT_TRUE(first.engine->kv().tiers()->flush(kNoDeadline));
  const GenerateResult found = finish(second);
  EXPECT_EQ(n_encoded(found), 0);
  EXPECT_EQ(ids(found), ids(computed));
}

TEST_F(ClaimedImages, OfAProcessThatEndsAreComputedByTheOther) {
  Process first = process(60'000), second = process(60'000);
  first.scheduler->step();
  for (int i = 0; i < 20; ++i) second.scheduler->step();
  first.scheduler->cancel(first.id);
  first.scheduler.reset();
  const auto begin = Clock::now();
  EXPECT_EQ(ids(finish(second)), greedy());
  EXPECT_LT(ms_since(begin), 30'000);  // not the limit
}

TEST_F(ClaimedImages, OfAProcessThatHangsAreWaitedForNoLongerThanForTiers) {
  Process first = process(60'000), second = process(300);
  first.scheduler->step();
  const GenerateResult result = finish(second);
  EXPECT_EQ(ids(result), greedy());
  EXPECT_GT(n_encoded(result), 0);
}

}  // namespace
}  // namespace vlcache
