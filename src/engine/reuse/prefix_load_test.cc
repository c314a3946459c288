// Exact prefixes that another process has left in a folder: found, bit for bit, and shorter where a record is missing.
#include <fstream>
#include <thread>

#include "engine/engine_caches.h"
#include "engine/reuse/stored_images_testing.h"
#include "engine/scheduler/scheduler.h"

namespace vlcache {
namespace {

using Encoder = CacheReport::Image::Encoder;

constexpr const char* kQuestion = "What is the total amount that stands at the end of the page?";

class StoredPrefixes : public StoredImages {
 protected:
  std::unique_ptr<Engine> process(PrefixSaving saving = PrefixSaving::kAuto, DType dtype = DType::kF32,
                                  double deadline_ms = 60'000) const {
    EngineOptions options = engine_options();
    options.cache_deadline_ms = deadline_ms;
    options.save_prefixes = saving;
    options.dtype = dtype;
    return Engine::load(Checkpoint(fixture_), options);
  }
  // The case's images, then `question`: beyond two pages.
  Request ask(Engine& engine, const std::string& question, bool other_image = false) const {
    Request with_images = request(engine, nullptr, other_image);
    std::vector<Image> images;
    for (const auto& name : case_["images"]) images.push_back(load_image(fixture_ / name.get<std::string>()));
    if (other_image) {
      for (uint8_t& value : images.back().rgb) value ^= 0x80;
    }
    std::string text = "Read this slowly and carefully, please, from the beginning to the end of it: ";
    text += "what stands there, what does not stand there, and what could stand there if there were room for it. ";
    for (size_t i = 0; i < images.size(); ++i) text += "<image>\n";
    with_images.prompt = engine.prepare_raw(with_placeholders(text + question), std::move(images));
    with_images.reuse = {.prefix = true};
    with_images.options.sampling.n_logprobs = 0;
    with_images.options.max_tokens = 8;
    return with_images;
  }
  // Of two pages and more, another for each first letter.
  Request text(Engine& engine, char first) const {
    Request request = ask(engine, kQuestion);
    std::string text(1, first);
    for (int i = 0; i < 60; ++i) text += " a b c";
    request.prompt = engine.prepare_raw(text, {});
    return request;
  }
  std::unique_ptr<Engine> process_with_pages(int64_t n) const {
    EngineOptions options = engine_options();
    options.save_prefixes = PrefixSaving::kAuto;
    options.cache_bytes = n * process()->caches().usual().prefixes().group_bytes();
    return Engine::load(Checkpoint(fixture_), options);
  }
  static void end(Engine& engine) { engine.kv().save_prefixes(kNoDeadline); }
  static int32_t from_disk(const GenerateResult& result) {
    const auto at = result.cache.prefix_sources.find("disk");
    return at == result.cache.prefix_sources.end() ? 0 : at->second;
  }
  static std::vector<float> logprobs(const GenerateResult& result) {
    std::vector<float> values;
    for (const GeneratedToken& token : result.tokens) values.push_back(token.logprob);
    return values;
  }
  // The largest difference of log probabilities; 1 if tokens differ.
  static double difference(const GenerateResult& a, const GenerateResult& b) {
    if (ids(a) != ids(b)) return 1;
    double most = 0;
    for (size_t i = 0; i < a.tokens.size(); ++i) {
      most = std::max<double>(most, std::abs(a.tokens[i].logprob - b.tokens[i].logprob));
    }
    return most;
  }
  static constexpr double kNothing = 1e-4;
  int64_t n_prefix_records() const {
    return std::ranges::count(disk_->list(), RecordKind::kPrefix, [](const ListedRecord& r) { return r.key.kind; });
  }
};

TEST_F(StoredPrefixes, AnotherProcessFindsThePromptBitForBit) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const auto first = process(PrefixSaving::kAuto, dtype);
    const GenerateResult computed = generate(*first, ask(*first, kQuestion));
    EXPECT_EQ(computed.cache.n_prefix_tokens, 0);
    const GenerateResult in_memory = generate(*first, ask(*first, kQuestion));
    EXPECT_EQ(in_memory.cache.n_prefix_tokens, in_memory.n_prompt - 1);
    end(*first);
    const auto second = process(PrefixSaving::kAuto, dtype);
    const GenerateResult found = generate(*second, ask(*second, kQuestion));
    EXPECT_EQ(found.cache.n_prefix_tokens, found.n_prompt - 1);
    EXPECT_EQ(from_disk(found), found.n_prompt - 1);
    for (const CacheReport::Image& image : found.cache.images) EXPECT_EQ(image.encoder, Encoder::kSkipped);
    EXPECT_EQ(ids(found), ids(computed));
    EXPECT_EQ(logprobs(found), logprobs(in_memory));
    // From then on it is in memory.
    EXPECT_EQ(from_disk(generate(*second, ask(*second, kQuestion))), 0);
  }
}

TEST_F(StoredPrefixes, AnotherQuestionFindsTheImages) {
  const auto first = process();
  generate(*first, ask(*first, kQuestion));
  end(*first);
  const auto second = process(), without = process(PrefixSaving::kOff);
  Request other = ask(*second, "How many words are there?");
  const int32_t image_end = other.prompt.spans.back().end;
  const GenerateResult found = generate(*second, std::move(other));
  EXPECT_GE(from_disk(found), image_end - 63);
  EXPECT_LT(difference(found, generate(*without, ask(*without, "How many words are there?"))), kNothing);
}

TEST_F(StoredPrefixes, AnotherImageOfTheSameSizeIsNotTheSamePrompt) {
  const auto first = process();
  generate(*first, ask(*first, kQuestion));
  end(*first);
  const auto second = process(), without = process(PrefixSaving::kOff);
  Request asked = ask(*second, kQuestion, /*other_image=*/true);
  const int32_t changed_begins = asked.prompt.spans.back().begin;
  const GenerateResult other = generate(*second, std::move(asked));
  EXPECT_LE(other.cache.n_prefix_tokens, changed_begins);
  EXPECT_LT(difference(other, generate(*without, ask(*without, kQuestion, /*other_image=*/true))), kNothing);
}

TEST_F(StoredPrefixes, SaltsShareNothing) {
  const auto with_salt = [&](Engine& engine, uint8_t salt) {
    Request request = ask(engine, kQuestion);
    request.prompt.salt = Sha256Digest{salt};
    request.prompt.keys.clear();
    return generate(engine, std::move(request));
  };
  const auto first = process();
  with_salt(*first, 1);
  end(*first);
  const auto second = process();
  EXPECT_EQ(from_disk(with_salt(*second, 2)), 0);
  EXPECT_EQ(from_disk(generate(*second, ask(*second, kQuestion))), 0);
  EXPECT_GT(from_disk(with_salt(*second, 1)), 64);
}

TEST_F(StoredPrefixes, AreWrittenAtTheirSecondUse) {
  const auto once = process();
  generate(*once, ask(*once, kQuestion));
  EXPECT_EQ(n_prefix_records(), 0);
  generate(*once, ask(*once, kQuestion));
  once->kv().tiers()->flush(kNoDeadline);
  EXPECT_GT(n_prefix_records(), 0);
  const auto off = process(PrefixSaving::kOff);
  EXPECT_EQ(from_disk(generate(*off, ask(*off, kQuestion))), 0);
}

// Of two servers, the other is asked the same once the first is idle.
TEST_F(StoredPrefixes, OfImagesAreWrittenAfterTheirFirstUseWhileIdle) {
  const auto server = [&](int64_t bytes_an_hour = 1 << 30) {
    EngineOptions options = engine_options();
    options.save_prefixes = PrefixSaving::kAuto;
    options.first_use_bytes = bytes_an_hour;
    return Engine::load(Checkpoint(fixture_), options);
  };
  const auto idle = [](Engine& engine) {
    int n_saved = 0;
    while (engine.kv().save_first_use()) ++n_saved;
    engine.kv().tiers()->flush(kNoDeadline);
    return n_saved;
  };
  const auto first = server(), none = server(0);
  generate(*first, text(*first, 'a'));  // no image
  Request salted = ask(*first, kQuestion, /*other_image=*/true);
  salted.prompt.salt = Sha256Digest{1};
  salted.prompt.keys.clear();
  generate(*first, std::move(salted));
  generate(*none, ask(*none, kQuestion));
  EXPECT_EQ(idle(*first) + idle(*none), 0);
  EXPECT_EQ(n_prefix_records(), 0);
  generate(*first, ask(*first, kQuestion));
  EXPECT_TRUE(first->kv().has_first_uses());
  EXPECT_GT(idle(*first), 0);
  EXPECT_FALSE(first->kv().has_first_uses());
  EXPECT_GT(first->kv().totals().first_use.queued, 0);
  const auto second = server();  // the first one may be killed now
  const GenerateResult found = generate(*second, ask(*second, kQuestion));
  EXPECT_GE(from_disk(found), found.n_prompt * 9 / 10);
  EXPECT_EQ(idle(*second), 0);  // it is there
  // Not where a policy evicts and memory keeps nothing: that is stored at once, as before.
  Request compressed = ask(*second, "And the first word?");
  compressed.policy = parse_policy("snapkv:w=4", "0.3");
  generate(*second, std::move(compressed));
  EXPECT_FALSE(second->kv().has_first_uses());
  // Memory has forgotten it before there was time.
  generate(*second, ask(*second, kQuestion, /*other_image=*/true));
  second->kv().reset();
  EXPECT_EQ(idle(*second), 0);
  EXPECT_GT(second->kv().totals().first_use.evicted, 0);
}

// What fills whole pages of prompts seen once.
TEST_F(StoredPrefixes, AreWrittenBeforeMemoryEvictsThem) {
  const auto small = process_with_pages(6);
  const int32_t n = text(*small, 'a').prompt.n_tokens();
  ASSERT_GE(n, 2 * kPageSlots);
  for (const char first : {'a', 'b', 'c', 'd'}) generate(*small, text(*small, first));
  ASSERT_TRUE(small->kv().tiers()->flush(kNoDeadline));
  // Which prompts are evicted depends on what they cost; at most two have room.
  const auto second = process(PrefixSaving::kAlways), off = process(PrefixSaving::kOff);
  int32_t n_found = 0;
  for (const char first : {'a', 'b', 'c', 'd'}) {
    const GenerateResult result = generate(*second, text(*second, first));
    if (from_disk(result) == n / kPageSlots * kPageSlots) ++n_found;
    EXPECT_EQ(ids(result), ids(generate(*off, text(*off, first))));
  }
  EXPECT_GE(n_found, 2);
}

TEST_F(StoredPrefixes, AreNotWrittenWhereTheTierWouldEvictWhatSavesMore) {
  const std::vector<std::byte> bytes((64 << 20) / 5 - 1000);
  for (uint8_t i = 0; i < 5; ++i) {
    ASSERT_TRUE(
        disk_->put({.key = {.content = {i}, .layout = "filler"}, .sections = {bytes}, .saves_ms = 1e6}, kNoDeadline)
            .there());
  }
  const auto small = process_with_pages(6);
  for (const char first : {'a', 'b', 'c', 'd'}) generate(*small, text(*small, first));
  ASSERT_TRUE(small->kv().tiers()->flush(kNoDeadline));
  EXPECT_EQ(n_prefix_records(), 0);
  EXPECT_GT(disk_->stats().n_put[static_cast<size_t>(PutOutcome::kOutranked)], 0);
  for (int use = 0; use < 2; ++use) generate(*small, text(*small, 'e'));  // asked for twice, it is written
  ASSERT_TRUE(small->kv().tiers()->flush(kNoDeadline));
  EXPECT_GT(n_prefix_records(), 0);
}

// Forgetting what memory holds is no reason to write it.
TEST_F(StoredPrefixes, AreNotWrittenByReset) {
  const auto e = process();
  generate(*e, text(*e, 'a'));
  e->kv().reset();
  ASSERT_TRUE(e->kv().tiers()->flush(kNoDeadline));
  EXPECT_EQ(n_prefix_records(), 0);
}

// A policy that evicts leaves memory nothing to write later.
TEST_F(StoredPrefixes, OfPoliciesThatEvictAreWrittenAtTheFirstUse) {
  const auto first = process();
  Request request = text(*first, 'a');
  request.policy = parse_policy("snapkv:w=4", "0.3");
  generate(*first, std::move(request));
  ASSERT_TRUE(first->kv().tiers()->flush(kNoDeadline));
  const auto second = process();
  const GenerateResult found = generate(*second, text(*second, 'a'));
  EXPECT_EQ(from_disk(found), found.n_prompt - 1);
}

TEST_F(StoredPrefixes, ThatLoadMoreSlowlyThanTheyAreComputedAreNotLoaded) {
  const auto first = process();
  generate(*first, text(*first, 'a'));
  generate(*first, text(*first, 'b'));
  end(*first);
  const auto second = process();
  EXPECT_GT(from_disk(generate(*second, text(*second, 'a'))), 0);  // the tier's speed is not known yet
  second->caches().prompt_computed(1'000'000, 1e-3);
  const GenerateResult computed = generate(*second, text(*second, 'b'));
  EXPECT_EQ(from_disk(computed), 0);
  EXPECT_NE(computed.cache.prefix_reason.find("disk has"), std::string::npos) << computed.cache.prefix_reason;
  const auto always = process(PrefixSaving::kAlways);
  generate(*always, text(*always, 'a'));
  always->caches().prompt_computed(1'000'000, 1e-3);
  EXPECT_GT(from_disk(generate(*always, text(*always, 'b'))), 0);
}

// Layers arrive while the rest is computed: slowly, or so slowly that the step is repeated when all have arrived.
TEST_F(StoredPrefixes, LayersArriveWhileOthersAreComputed) {
  const auto first = process();
  const GenerateResult computed = generate(*first, ask(*first, kQuestion));
  end(*first);
  for (const int delay : {0, 5, 60}) {
    tier_->page_delay = std::chrono::milliseconds(delay);
    const auto second = process(PrefixSaving::kAlways);
    const GenerateResult found = generate(*second, ask(*second, kQuestion));
    EXPECT_EQ(from_disk(found), found.n_prompt - 1) << delay;
    EXPECT_EQ(ids(found), ids(computed)) << delay;
    tier_->page_delay = {};
    const GenerateResult again = generate(*second, ask(*second, kQuestion));
    EXPECT_EQ(again.cache.n_prefix_tokens, again.n_prompt - 1) << "it is in memory";
    EXPECT_EQ(from_disk(again), 0);
    EXPECT_EQ(ids(again), ids(computed));
  }
}

// Of a record with a bad layer, the prefix ends before it, also where the first layers have been used already.
TEST_F(StoredPrefixes, ABadLayerEndsThePrefixBeforeItsRecord) {
  const auto first = process();
  const GenerateResult computed = generate(*first, ask(*first, kQuestion));
  end(*first);
  const int32_t n_layers = first->kv_shape().n_layers();
  const auto n_records = static_cast<int32_t>(n_prefix_records());
  ASSERT_GE(n_records, 3);
  int32_t n_before = -1;
  for (int32_t record = 0; record < n_records; ++record) {
    for (const int32_t layer : {0, n_layers - 1}) {
      tier_->n_page_records = 0;
      tier_->bad_pages = {{record, layer}};
      const auto second = process(PrefixSaving::kAlways);
      const GenerateResult found = generate(*second, ask(*second, kQuestion));
      EXPECT_EQ(ids(found), ids(computed)) << record << ", layer " << layer;
      EXPECT_LT(difference(found, computed), kNothing);
      if (layer == 0) {
        EXPECT_GT(from_disk(found), n_before) << "longer, the later the record";
        n_before = from_disk(found);
      }
      EXPECT_EQ(from_disk(found), n_before);
      EXPECT_LT(from_disk(found), found.n_prompt - 1);
      // Nothing of the bad record is in memory.
      tier_->bad_pages.clear();
      EXPECT_EQ(ids(generate(*second, ask(*second, kQuestion))), ids(computed));
    }
  }
}

// A request that is cancelled, or preempted, while layers are missing leaves no page that was not filled.
TEST_F(StoredPrefixes, RequestsThatEndWhileLayersArriveLeaveNothing) {
  const auto first = process();
  const GenerateResult computed = generate(*first, ask(*first, kQuestion));
  end(*first);
  tier_->page_delay = std::chrono::milliseconds(20);
  for (int n_steps = 1; n_steps < 5; ++n_steps) {
    const auto second = process(PrefixSaving::kAlways);
    Scheduler scheduler(*second);
    const RequestId id = scheduler.add(ask(*second, kQuestion));
    while (scheduler.n_running() == 0) scheduler.step();
    for (int i = 1; i < n_steps; ++i) scheduler.step();
    scheduler.cancel(id);
    scheduler.remove(id);
    EXPECT_EQ(ids(generate(*second, ask(*second, kQuestion))), ids(computed)) << n_steps;
  }
}

// The tiers' time limit does not run while a request waits for its turn.
TEST_F(StoredPrefixes, RequestsThatWaitedLongFindThem) {
  const auto first = process();
  generate(*first, ask(*first, kQuestion));
  end(*first);
  constexpr double kDeadlineMs = 500;
  const auto second = process(PrefixSaving::kAuto, DType::kF32, kDeadlineMs);
  Scheduler scheduler(*second);
  const RequestId id = scheduler.add(ask(*second, kQuestion));
  std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(1.2 * kDeadlineMs));
  while (scheduler.step()) {
  }
  const GenerateResult result = scheduler.remove(id);
  EXPECT_EQ(from_disk(result), result.n_prompt - 1);
}

// They would not be asked for.
TEST_F(StoredPrefixes, PromptsOfLessThanAPageAreNotWritten) {
  const auto e = process(PrefixSaving::kAlways);
  Request request = without_image(*e);
  request.reuse = {.prefix = true};
  ASSERT_LT(request.prompt.n_tokens(), kPageSlots);
  generate(*e, std::move(request));
  end(*e);
  EXPECT_EQ(n_prefix_records(), 0);
}

TEST_F(StoredPrefixes, AlwaysWritesAtOnceAndOffNever) {
  const auto off = process(PrefixSaving::kOff);
  generate(*off, ask(*off, kQuestion));
  end(*off);
  EXPECT_EQ(n_prefix_records(), 0);
  const auto always = process(PrefixSaving::kAlways);
  generate(*always, ask(*always, kQuestion));
  always->kv().tiers()->flush(kNoDeadline);
  const int64_t n = n_prefix_records();
  EXPECT_GT(n, 0);
  end(*always);
  EXPECT_EQ(n_prefix_records(), n);  // nothing twice
}

// The exact prompt of a policy that evicts is written before the policy acts, and found by any other.
TEST_F(StoredPrefixes, PoliciesThatEvictShareTheExactPrompt) {
  const auto snapkv = [&](Engine& engine) {
    Request request = ask(engine, kQuestion);
    request.policy = parse_policy("snapkv:w=4", "0.3");
    return request;
  };
  const auto first = process(PrefixSaving::kAlways);
  const GenerateResult computed = generate(*first, snapkv(*first));
  first->kv().tiers()->flush(kNoDeadline);
  const auto second = process();
  EXPECT_GT(from_disk(generate(*second, ask(*second, kQuestion))), 64);
  const auto third = process();
  const GenerateResult found = generate(*third, snapkv(*third));
  EXPECT_GT(from_disk(found), 64);
  EXPECT_EQ(ids(found), ids(computed));
}

// A prompt that continues an approximation is no origin of anything.
TEST_F(StoredPrefixes, NothingAfterAReusedImageIsWritten) {
  store();  // the images' KV
  const auto e = process(PrefixSaving::kAlways);
  generate(*e, request(*e, "static:r=0"));
  end(*e);
  EXPECT_EQ(n_prefix_records(), 0);
}

TEST_F(StoredPrefixes, DroppingAnImageErasesWhatDependsOnIt) {
  const auto e = process(PrefixSaving::kAlways);
  generate(*e, ask(*e, kQuestion));
  generate(*e, ask(*e, kQuestion, /*other_image=*/true));
  e->kv().tiers()->flush(kNoDeadline);
  const int64_t n_all = n_prefix_records();
  const Prompt prompt = ask(*e, kQuestion).prompt;
  e->kv().images().drop(image_keys(prompt).back());
  e->kv().tiers()->flush(kNoDeadline);
  const int64_t n_left = n_prefix_records();
  EXPECT_LT(n_left, n_all);
  EXPECT_GT(n_left, 0);
  const auto after = process();
  EXPECT_LE(from_disk(generate(*after, ask(*after, kQuestion))), prompt.spans.back().begin);
  const auto another = process();
  const GenerateResult other = generate(*another, ask(*another, kQuestion, /*other_image=*/true));
  EXPECT_EQ(from_disk(other), other.n_prompt - 1);
}

TEST_F(StoredPrefixes, DamagedRecordsEndThePrefix) {
  const auto first = process();
  const GenerateResult computed = generate(*first, ask(*first, kQuestion));
  end(*first);
  std::vector<std::filesystem::path> files;
  for (const auto& file : std::filesystem::recursive_directory_iterator(dir_)) {
    if (file.is_regular_file() && file.path().extension() == ".vlr" && file.file_size() > 1000) files.push_back(file);
  }
  ASSERT_GT(files.size(), 1u);
  const auto damage = [](const std::filesystem::path& path, int64_t at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const auto byte = static_cast<char>(file.get() ^ 1);
    file.seekp(at);
    file.put(byte);
  };
  for (const auto& file : files) {
    damage(file, static_cast<int64_t>(file_size(file)) / 2);
    const auto e = process(PrefixSaving::kAuto);
    const GenerateResult result = generate(*e, ask(*e, kQuestion));
    EXPECT_FALSE(result.error);
    EXPECT_LT(difference(result, computed), kNothing);
  }
  const auto last = process();
  EXPECT_EQ(from_disk(generate(*last, ask(*last, kQuestion))), 0);
}

}  // namespace
}  // namespace vlcache
