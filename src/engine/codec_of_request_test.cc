// Requests of one engine under different KV codecs: each answers as in an engine of its codec, finds KV of its codec
// alone, and all of them share one budget.
#include "engine/engine_testing.h"
#include "engine/reuse/prefix_reuse.h"
#include "store/fake_tier_testing.h"
#include "tests/testing.h"

namespace vlcache {
namespace {

constexpr std::array kCodecs{KvCodec::kF32, KvCodec::kInt8, KvCodec::kBF16, KvCodec::kInt4, KvCodec::kK8V4};

EngineOptions small_options(std::optional<KvCodec> codec = {}) {
  EngineOptions options;
  options.backend = "ref";
  options.kv_memory_bytes = options.cache_bytes = 64 << 20;
  options.kv_codec = codec;
  return options;
}

std::unique_ptr<Engine> small_engine(const EngineOptions& options) {
  const Json config = parse_json(
      R"({"vocab_size": 61, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 16, "torch_dtype": "float32", "num_hidden_layers": 2,
    "max_position_embeddings": 4096, "model_type": "llama"})",
      "test");
  return Engine::random(parse_model_config(config, "test"), options, /*seed=*/5);
}

Request request_under(const Engine& engine, std::optional<KvCodec> codec, const std::vector<int32_t>& tokens) {
  Request request = prefix_request(engine, tokens);
  request.kv_codec = codec;
  return request;
}

GenerateResult ask(Engine& engine, std::optional<KvCodec> codec, const std::vector<int32_t>& tokens) {
  return generate(engine, request_under(engine, codec, tokens));
}

// Records the logits that each token of the answer is chosen from.
void record_logits(Request& request, std::vector<float>& logits) {
  request.callbacks.choose = [&logits](std::span<float> row) {
    logits.insert(logits.end(), row.begin(), row.end());
    return static_cast<int32_t>(std::ranges::max_element(row) - row.begin());
  };
}

TEST(CodecOfRequest, MixedBatchesGiveEachItsOwnLogits) {
  const auto mixed = small_engine(small_options());
  std::vector<std::vector<float>> expected(kCodecs.size()), found(kCodecs.size());
  std::vector<Request> requests;
  for (size_t i = 0; i < kCodecs.size(); ++i) {
    const std::vector<int32_t> tokens = random_tokens(500 + 30 * static_cast<int32_t>(i));
    const auto own = small_engine(small_options(kCodecs[i]));
    Request alone = request_under(*own, {}, tokens), together = request_under(*mixed, kCodecs[i], tokens);
    alone.reuse.prefix = together.reuse.prefix = false;
    record_logits(alone, expected[i]);
    record_logits(together, found[i]);
    generate(*own, std::move(alone));
    requests.push_back(std::move(together));
  }
  const std::vector<GenerateResult> results = generate(*mixed, std::move(requests));
  for (size_t i = 0; i < kCodecs.size(); ++i) {
    EXPECT_EQ(found[i], expected[i]) << kv_codec_name(kCodecs[i]);
    EXPECT_EQ(results[i].kv.codec, kCodecs[i]);
    EXPECT_EQ(results[i].kv.coded_bytes_read > 0, is_coded(kCodecs[i]));
    const KvCodec values = kCodecs[i] == KvCodec::kBF16 ? KvCodec::kBF16 : KvCodec::kF32;
    EXPECT_GT(results[i].kv.bytes_by_codec.at(values), 0);
    EXPECT_EQ(results[i].kv.bytes_by_codec.size(), is_coded(kCodecs[i]) ? 2u : 1u);
  }
  EXPECT_NE(found[0], found[1]);
  EXPECT_NE(found[1], found[3]);
  EXPECT_EQ(mixed->pools().used_bytes(), 0);
}

TEST(CodecOfRequest, MemoryGivesKvOfTheSameCodecAlone) {
  const auto engine = small_engine(small_options(KvCodec::kInt8));
  const std::vector<int32_t> tokens = random_tokens(400), longer = random_tokens(450);
  EXPECT_EQ(ask(*engine, {}, tokens).cache.prefix_reason, "no cached prompt continues like this");
  for (const KvCodec codec : {KvCodec::kF32, KvCodec::kBF16}) {
    const GenerateResult missed = ask(*engine, codec, tokens);
    EXPECT_EQ(missed.cache.n_prefix_tokens, 0);
    EXPECT_EQ(missed.cache.prefix_reason, "399 more tokens are in the cache, but computed with KV codec int8");
  }
  for (const std::optional<KvCodec> codec : {std::optional<KvCodec>(), {KvCodec::kInt8}, {KvCodec::kF32}}) {
    const GenerateResult found = ask(*engine, codec, tokens);
    EXPECT_EQ(found.cache.n_prefix_tokens, 399);
    EXPECT_EQ(found.cache.prefix_reason, "");
    EXPECT_EQ(found.kv.codec, codec.value_or(KvCodec::kInt8));
  }
  // A codec may have the beginning, and another one more.
  EXPECT_EQ(ask(*engine, {}, longer).cache.n_prefix_tokens, 400);
  EXPECT_EQ(ask(*engine, KvCodec::kF32, longer).cache.prefix_reason,
            "49 more tokens are in the cache, but computed with KV codec int8");
  // Totals and drops are of all codecs.
  int64_t bytes = 0;
  for (const auto& kv : engine->caches().all()) {
    EXPECT_GT(kv->prefixes().bytes(), 0);
    bytes += kv->prefixes().bytes();
  }
  EXPECT_EQ(engine->kv().totals().prefix.bytes, bytes);
  EXPECT_EQ(engine->kv().reset(), bytes);
  EXPECT_EQ(engine->pools().used_bytes(), 0);
}

// A request waits for a prefix that another computes under the same codec, not under another one.
TEST(CodecOfRequest, WaitsForKvOfTheSameCodecAlone) {
  const auto engine = small_engine(small_options());
  const std::vector<int32_t> tokens = random_tokens(300);
  Scheduler scheduler(*engine);
  std::vector<RequestId> ids;
  for (const KvCodec codec : {KvCodec::kF32, KvCodec::kInt8, KvCodec::kF32})
    ids.push_back(scheduler.add(request_under(*engine, codec, tokens)));
  scheduler.step();
  EXPECT_EQ(scheduler.n_running(), 2u);
  EXPECT_EQ(scheduler.n_waiting(), 1u);
  while (!std::ranges::all_of(ids, [&](RequestId id) { return scheduler.done(id); })) scheduler.step();
  EXPECT_EQ(scheduler.remove(ids[1]).cache.n_prefix_tokens, 0);
  EXPECT_GT(scheduler.remove(ids[2]).cache.n_prefix_tokens, 0);
}

// Prefixes of every codec make room for requests of every codec.
TEST(CodecOfRequest, OneBudgetForAllCodecs) {
  const auto large = small_engine(small_options());
  EngineOptions options = small_options();
  options.kv_memory_bytes = large->kv_bytes(900);
  const auto engine = small_engine(options);
  for (uint32_t seed = 0; seed < 12; ++seed) {
    const KvCodec codec = kCodecs[seed % kCodecs.size()];
    const std::vector<int32_t> tokens = random_tokens(400, seed);
    Request request = request_under(*engine, codec, tokens);
    request.callbacks.on_text = [&](auto) { EXPECT_LE(engine->pools().used_bytes(), engine->pools().max_bytes()); };
    const GenerateResult result = generate(*engine, std::move(request));
    ASSERT_FALSE(result.error) << result.error->what();
    EXPECT_EQ(ids_of(result), ids_of(ask(*large, codec, tokens)));
    EXPECT_LE(engine->pools().used_bytes(), engine->pools().max_bytes());
    EXPECT_EQ(ask(*engine, codec, tokens).cache.n_prefix_tokens, 399);  // the newest is there still
  }
  for (const auto& kv : engine->caches().all()) EXPECT_GT(kv->prefixes().stats().n_evictions, 0);
  expect_no_page_lost(*engine);
}

// Requests of all codecs that do not fit together, of which one is cancelled.
TEST(CodecOfRequest, PreemptedRequestsGoOn) {
  const auto large = small_engine(small_options());
  EngineOptions options = small_options();
  options.kv_memory_bytes = 3 * large->kv_bytes(420) / 2;
  const auto engine = small_engine(options);
  std::vector<Request> requests;
  std::vector<std::vector<int32_t>> alone;
  for (size_t i = 0; i < kCodecs.size(); ++i) {
    const std::vector<int32_t> tokens = random_tokens(250, static_cast<uint32_t>(i));
    Request request = request_under(*engine, kCodecs[i], tokens), same = request_under(*large, kCodecs[i], tokens);
    request.options.max_tokens = same.options.max_tokens = 160;
    if (i == 2) {
      request.callbacks.cancelled = [n = 0]() mutable { return ++n > 30; };
    }
    alone.push_back(ids_of(generate(*large, std::move(same))));
    requests.push_back(std::move(request));
  }
  const std::vector<GenerateResult> results = generate(*engine, std::move(requests));
  int32_t n_preempted = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    ASSERT_FALSE(results[i].error) << results[i].error->what();
    n_preempted += results[i].preemptions.n_times;
    if (i == 2) {
      EXPECT_EQ(results[i].finish_reason, FinishReason::kCancelled);
    } else {
      EXPECT_EQ(ids_of(results[i]), alone[i]) << kv_codec_name(kCodecs[i]);
    }
  }
  EXPECT_GT(n_preempted, 0);
  expect_no_page_lost(*engine);
}

// KV that a process has stored under several codecs is found under each.
TEST(CodecOfRequest, TiersGiveKvOfTheSameCodecAlone) {
  EngineOptions options = small_options();
  options.tiers = {std::make_shared<FakeTier>(nullptr, "fake", /*near=*/true)};
  options.save_prefixes = PrefixSaving::kAuto;
  const std::vector<int32_t> tokens = random_tokens(450);
  {
    const auto engine = small_engine(options);
    for (const KvCodec codec : {KvCodec::kInt8, KvCodec::kBF16}) ask(*engine, codec, tokens);
    engine->kv().save_prefixes(kNoDeadline);
  }
  const auto engine = small_engine(options);
  const GenerateResult missed = ask(*engine, {}, tokens);
  EXPECT_EQ(missed.cache.n_prefix_tokens, 0);
  EXPECT_EQ(missed.cache.prefix_reason, "the prompt's beginning is stored, but computed with KV codec int8");
  for (const KvCodec codec : {KvCodec::kInt8, KvCodec::kBF16}) {
    const GenerateResult found = ask(*engine, codec, tokens);
    EXPECT_EQ(found.cache.prefix_sources.at("fake"), found.cache.n_prefix_tokens) << kv_codec_name(codec);
    EXPECT_GE(found.cache.n_prefix_tokens, 448);
    EXPECT_EQ(ids_of(found), ids_of(ask(*small_engine(small_options(codec)), {}, tokens)));
  }
  expect_no_page_lost(*engine);
}

// A policy that reserves its slots is refused with codes, as that request alone.
TEST(CodecOfRequest, RefusalsAreOfTheRequest) {
  const auto engine = small_engine(small_options());
  Scheduler scheduler(*engine);
  const auto reserves = [&](std::optional<KvCodec> codec) {
    Request request = request_under(*engine, codec, {1, 2, 3});
    request.policy = parse_policy("static:capacity=64");
    return request;
  };
  EXPECT_NE(error_of([&] { scheduler.add(reserves(KvCodec::kInt8)); }).find("cannot become int8"), std::string::npos);
  EXPECT_EQ(generate(*engine, reserves({})).tokens.size(), 6u);
  EXPECT_EQ(generate(*engine, reserves(KvCodec::kBF16)).kv.codec, KvCodec::kBF16);
}

// KV of an image is found, pinned and dropped by codec; its embeddings are every codec's.
TEST(CodecOfRequest, ImagesAreReusedUnderTheSameCodecAlone) {
  const std::filesystem::path dir =
      std::filesystem::path(VLCACHE_SOURCE_DIR) / "tests/fixtures/models/llava-next-llama";
  EngineOptions options;
  options.dtype = DType::kF32;
  options.kv_memory_bytes = options.cache_bytes = 64 << 20;
  options.tiers = {std::make_shared<FakeTier>(nullptr, "fake", /*near=*/true)};
  auto engine = Engine::load(Checkpoint(dir), options);
  const auto show = [&](std::optional<KvCodec> codec, const std::string& text) {
    Request request;
    std::vector<Image> images;
    images.push_back(load_image(dir / "image-0.png"));
    request.prompt = engine->prepare_raw(text, std::move(images));
    request.policy = parse_policy("full");
    request.kv_codec = codec;
    request.reuse = {.prefix = true, .chooser = parse_reuse_chooser("static:r=0.1"), .required = true};
    request.options.max_tokens = 2;
    return generate(*engine, std::move(request)).cache.images.at(0);
  };
  using Source = CacheReport::Image::Source;
  const CacheReport::Image first = show({}, "First <image>?");
  EXPECT_EQ(first.reason, "first use");
  engine->kv().images().pin(first.key);
  const CacheReport::Image other = show(KvCodec::kBF16, "Second <image>?");
  EXPECT_EQ(other.source, Source::kComputed);
  EXPECT_EQ(other.reason, "its KV is in the cache, but computed with KV codec f32");
  EXPECT_EQ(other.encoder, CacheReport::Image::Encoder::kHit);
  EXPECT_EQ(show(KvCodec::kBF16, "Third <image>?").source, Source::kRam);
  EXPECT_EQ(show({}, "Fourth <image>?").source, Source::kRam);
  // One entry of both codecs; pins hold the image's KV of later codecs, too.
  const std::vector<ImageEntry> entries = engine->kv().images().list();
  ASSERT_EQ(entries.size(), 1u);
  int64_t bytes = 0;
  for (const auto& kv : engine->caches().all()) {
    bytes += kv->image_kv().bytes();
    EXPECT_EQ(kv->image_kv().least_priority(), std::numeric_limits<double>::infinity()) << "not pinned";
  }
  EXPECT_EQ(entries[0].kv_bytes, bytes);
  EXPECT_GT(engine->kv().images().drop(first.key), bytes);
  engine->kv().tiers()->flush(kNoDeadline);
  EXPECT_EQ(show(KvCodec::kBF16, "Fifth <image>?").reason, "first use");
  // Tiers, too, have it by codec; a drop erases all of them, whether the process has used them or not.
  const auto restart = [&] {
    engine->kv().tiers()->flush(kNoDeadline);
    engine = Engine::load(Checkpoint(dir), options);
  };
  restart();
  EXPECT_EQ(show({}, "Sixth <image>?").reason, "its KV is in the cache, but computed with KV codec bf16");
  EXPECT_EQ(show(KvCodec::kBF16, "Seventh <image>?").source, Source::kTier);
  restart();
  engine->kv().images().drop(first.key);
  restart();  // after the erasure
  const CacheReport::Image erased = show(KvCodec::kBF16, "Eighth <image>?");
  EXPECT_EQ(erased.source, Source::kComputed);
  EXPECT_EQ(erased.encoder, CacheReport::Image::Encoder::kComputed);
}

}  // namespace
}  // namespace vlcache
