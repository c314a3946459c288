// KV pages that become codes, seen from sequences: the slot of a row alone decides which pages it sees as codes.
#include "base/byte_size.h"
#include "engine/engine_testing.h"
#include "engine/hooks/capture_hooks.h"
#include "tests/testing.h"

namespace vlcache {
namespace {

std::unique_ptr<Engine> coded_engine(KvCodec codec, std::string_view backend = "ref",
                                     std::string_view model_type = "llama", int64_t kv_memory_bytes = 64 << 20,
                                     int64_t cache_bytes = 0) {
  Json config = parse_json(
      R"({"vocab_size": 61, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 16, "torch_dtype": "float32", "num_hidden_layers": 2,
    "sliding_window": 400, "max_position_embeddings": 4096})",
      "test");
  config["model_type"] = model_type;
  if (model_type.ends_with("_vl_text")) config["rope_scaling"] = {{"mrope_section", {2, 3, 3}}};
  EngineOptions options;
  options.backend = backend;
  options.kv_memory_bytes = kv_memory_bytes;
  options.cache_bytes = cache_bytes;
  options.kv_codec = codec;
  return Engine::random(parse_model_config(config, "test"), options, /*seed=*/5);
}

int64_t n_coded_pages(const Sequence& sequence) {
  int64_t n = 0;
  for (int32_t layer = 0; layer < sequence.cache().shape().n_layers(); ++layer) {
    const KvView view = sequence.cache().view(layer);
    for (int32_t h = 0; h < view.n_kv_heads; ++h) {
      for (int32_t i = 0; i < pages_for(view.n_slots[h]); ++i) n += is_coded(view.page_codec(h, i)) ? 1 : 0;
    }
  }
  return n;
}

TEST(CodedKv, LogitsDoNotDependOnPieces) {
  for (const KvCodec codec : {KvCodec::kInt8, KvCodec::kInt4}) {
    for (const char* model_type : {"llama", "mistral", "qwen2_vl_text"}) {
      if (codec == KvCodec::kInt4 && model_type != std::string_view("llama")) continue;
      SCOPED_TRACE(std::string(kv_codec_name(codec)) + " " + model_type);
      const auto engine = coded_engine(codec, "ref", model_type),
                 plain = coded_engine(KvCodec::kF32, "ref", model_type);
      const std::vector<int32_t> tokens = random_tokens(700);
      const auto whole = make_sequence(*engine, tokens);
      const std::vector<float> expected = compute(*engine, *whole, 1000);
      EXPECT_EQ(n_coded_pages(*whole), 2 * kKvHeads * 5);
      for (const int32_t piece : {7, 64, 512}) {
        const auto cut = make_sequence(*engine, tokens);
        EXPECT_EQ(compute(*engine, *cut, piece), expected) << piece;
      }
      // Codes are an approximation, and this is one: neither equal nor far off.
      const auto exact = make_sequence(*plain, tokens);
      const std::vector<float> without = compute(*plain, *exact, 1000);
      EXPECT_NE(expected, without);
      expect_close(expected, without, codec == KvCodec::kInt8 ? 0.02f : 0.3f);
    }
  }
}

// As Qwen2's first layers have them: 4 bits would leave nothing of K beside them.
TEST(CodedKv, LayersWithLargeBiasesOfKKeepItIn8Bits) {
  const auto engine = coded_engine(KvCodec::kF32, "ref", "qwen2");
  const Tensor& bias = engine->model().weights().text.layers[0].qkv_bias;
  ASSERT_EQ(bias.numel(), 3 * kKvHeads * 16);
  bias.as<float>()[kKvHeads * 16 + 17] = -100.0f;  // of the second head of K
  for (const KvCodec codec : {KvCodec::kInt8, KvCodec::kK8V4, KvCodec::kInt4}) {
    SCOPED_TRACE(kv_codec_name(codec));
    const KvShape shape = kv_shape_of(engine->model(), codec);
    EXPECT_EQ(shape.full_codec(), codec);
    EXPECT_EQ(shape.layers[0].coded, codec == KvCodec::kInt4 ? KvCodec::kK8V4 : codec);
    EXPECT_EQ(shape.layers[1].coded, codec);
  }
  const Prompt prompt = engine->prepare_tokens(random_tokens(700));
  const auto exact = engine->new_sequence(prompt, parse_policy("full"));
  const auto coded = engine->new_sequence(prompt, parse_policy("full"), KvCodec::kInt4);
  const std::vector<float> expected = compute(*engine, *exact, 1000);
  expect_close(compute(*engine, *coded, 64), expected, 0.3f);
  EXPECT_EQ(coded->codec(), KvCodec::kInt4);
  EXPECT_EQ(coded->cache().view(0).page_codec(0, 1), KvCodec::kK8V4);
  EXPECT_EQ(coded->cache().view(1).page_codec(0, 1), KvCodec::kInt4);
  EXPECT_EQ(n_coded_pages(*coded), 2 * kKvHeads * 5);
}

// One by one from the middle of a page on, across two switches.
TEST(CodedKv, DecodingAgreesWithPrefill) {
  const auto engine = coded_engine(KvCodec::kInt8);
  const std::vector<int32_t> tokens = random_tokens(780);
  const auto whole = make_sequence(*engine, tokens),
             decoded = make_sequence(*engine, {tokens.begin(), tokens.begin() + 500});
  const std::vector<float> expected = compute(*engine, *whole, 2000);
  compute(*engine, *decoded, 2000);
  std::vector<float> found;
  for (size_t i = 500; i < tokens.size(); ++i) {
    decoded->add_token(tokens[i]);
    found = compute(*engine, *decoded, 1);
  }
  EXPECT_EQ(found, expected);
}

// Of the pages that the newest row of each layer attends to, a window of 400 slots included; a step counts a page once.
TEST(CodedKv, CountsTheBytesOfCodesThatAreRead) {
  for (const char* model_type : {"llama", "mistral"}) {
    const auto engine = coded_engine(KvCodec::kInt8, "ref", model_type);
    const int32_t window = model_type == std::string_view("mistral") ? 400 : 4096;
    const int64_t page_bytes = engine->backend().kv_page_bytes(KvCodec::kInt8, 16);
    const auto sequence = make_sequence(*engine, random_tokens(250));
    const auto seen = [&] {
      int64_t n = 0;
      for (int32_t layer = 0; layer < sequence->cache().shape().n_layers(); ++layer) {
        const KvView view = sequence->cache().view(layer);
        for (int32_t h = 0; h < view.n_kv_heads; ++h) {
          for (int32_t slot = std::max(0, view.n_slots[h] - window), page = -1; slot < view.n_slots[h]; ++slot) {
            if (slot / kPageSlots == page) continue;
            page = slot / kPageSlots;
            n += is_coded(view.page_codec(h, page)) ? page_bytes : 0;
          }
        }
      }
      return n;
    };
    compute(*engine, *sequence, 1000);
    EXPECT_EQ(sequence->coded_bytes_read(), 0);
    int64_t expected = 0;
    const auto read = [&](int32_t n) {
      for (int32_t i = 0; i < n; ++i) sequence->add_token(i % 61);
      compute(*engine, *sequence, n);
      expected += seen();
      EXPECT_EQ(sequence->coded_bytes_read(), expected) << model_type << " " << sequence->n_tokens();
    };
    for (int i = 0; i < 8; ++i) read(1);  // to the first codes
    EXPECT_GT(expected, 0);
    for (const int32_t n : {500, 1, 300, 1}) read(n);
    std::vector<int32_t> next;
    for (const TokenInfo& token : sequence->tokens()) next.push_back(token.id);
    next.push_back(1);
    sequence->continue_with(engine->prepare_tokens(next));  // another prompt
    EXPECT_EQ(sequence->coded_bytes_read(), 0);
    compute(*engine, *sequence, 1);
    EXPECT_EQ(sequence->coded_bytes_read(), seen());
  }
}

// The next turn continues where it can: its logits equal a sequence's that computes all of it.
TEST(CodedKv, ContinuesAtPlaces) {
  const auto engine = coded_engine(KvCodec::kInt8);
  const std::vector<int32_t> first = random_tokens(900), more = random_tokens(60, 3);
  struct Turn {
    int32_t n_common, n_kept;
  };
  for (const auto& [n_common, n_kept] : {Turn{900, 900}, Turn{760, 576}, Turn{530, 530}, Turn{500, 64}}) {
    const auto sequence = make_sequence(*engine, first);
    sequence->cache().keep_place(530);
    compute(*engine, *sequence, 512);
    std::vector<int32_t> tokens(first.begin(), first.begin() + n_common);
    tokens.push_back(n_common < 900 ? (first[static_cast<size_t>(n_common)] + 1) % kVocab : 5);
    tokens.insert(tokens.end(), more.begin(), more.end());
    EXPECT_EQ(sequence->continue_with(engine->prepare_tokens(tokens)), n_kept);
    const auto alone = make_sequence(*engine, tokens);
    EXPECT_EQ(compute(*engine, *sequence, 100), compute(*engine, *alone, 1000)) << n_common;
  }
}

// Sequences that share a step have the answers that each has alone.
TEST(CodedKv, BatchesAgree) {
  const auto engine = coded_engine(KvCodec::kInt8);
  std::vector<std::vector<int32_t>> answers;
  std::vector<Request> requests;
  for (const int32_t n : {900, 250, 513}) {
    answers.push_back(answer_alone(*engine, random_tokens(n, static_cast<uint32_t>(n))));
    Request request = prefix_request(*engine, random_tokens(n, static_cast<uint32_t>(n)));
    request.reuse.prefix = false;
    requests.push_back(std::move(request));
  }
  const std::vector<GenerateResult> results = generate(*engine, std::move(requests));
  for (size_t i = 0; i < answers.size(); ++i) EXPECT_EQ(ids_of(results[i]), answers[i]);
  EXPECT_EQ(engine->pools().used_bytes(), 0);
}

// A hit equals computing its tokens, and ends where it can be continued.
TEST(CodedKv, HitsAreWhatWouldBeComputed) {
  const auto engine = coded_engine(KvCodec::kInt8, "ref", "llama", 64 << 20, 32 << 20);
  const std::vector<int32_t> shared = random_tokens(700);
  const auto prompt = [&](int32_t n_shared, int32_t n_own, uint32_t seed) {
    std::vector<int32_t> tokens(shared.begin(), shared.begin() + n_shared);
    const std::vector<int32_t> own = random_tokens(n_own, seed);
    tokens.insert(tokens.end(), own.begin(), own.end());
    return tokens;
  };
  struct Case {
    std::vector<int32_t> tokens;
    int32_t n_found;
  };
  // The first page is values always; then the second prompt keeps the place where they part, and the first its end.
  for (const Case& c : {Case{prompt(700, 200, 2), 0}, Case{prompt(700, 150, 3), 64}, Case{prompt(700, 90, 4), 700},
                        Case{prompt(700, 0, 4), 699}, Case{prompt(700, 200, 2), 899}, Case{prompt(60, 300, 5), 60}}) {
    const std::vector<int32_t> alone = answer_alone(*engine, c.tokens);
    const GenerateResult found = generate(*engine, prefix_request(*engine, c.tokens));
    EXPECT_EQ(ids_of(found), alone);
    EXPECT_EQ(found.cache.n_prefix_tokens, c.n_found) << c.tokens.size();
  }
  expect_no_page_lost(*engine);
}

// Two requests that do not fit together: one is preempted, and both have the answers they have alone.
TEST(CodedKv, PreemptedRequestsGoOn) {
  const auto large = coded_engine(KvCodec::kInt8);
  const int64_t bytes = 3 * large->kv_bytes(511) / 2;  // the most that one needs, and half of it
  for (const int64_t cache : {int64_t{0}, int64_t{32} << 20}) {
    const auto engine = coded_engine(KvCodec::kInt8, "ref", "llama", bytes, cache);
    std::vector<Request> requests;
    std::vector<std::vector<int32_t>> alone;
    for (const uint32_t seed : {1u, 2u}) {
      Request request = prefix_request(*engine, random_tokens(300, seed));
      request.options.max_tokens = 300;
      Request same = prefix_request(*large, random_tokens(300, seed));
      same.options.max_tokens = 300;
      alone.push_back(ids_of(generate(*large, std::move(same))));
      requests.push_back(std::move(request));
    }
    const std::vector<GenerateResult> results = generate(*engine, std::move(requests));
    int32_t n_preempted = 0;
    for (size_t i = 0; i < results.size(); ++i) {
      ASSERT_FALSE(results[i].error) << results[i].error->what();
      EXPECT_EQ(ids_of(results[i]), alone[i]) << static_cast<int>(results[i].finish_reason);
      n_preempted += results[i].preemptions.n_times;
    }
    EXPECT_GT(n_preempted, 0);
    expect_no_page_lost(*engine);
  }
}

// Every way to evict, with lookahead tokens and without, acts on codes as on values: whatever the pieces.
TEST(CodedKv, PoliciesAgreeWhateverThePieces) {
  const auto engine = coded_engine(KvCodec::kInt8);
  const std::vector<int32_t> tokens = random_tokens(600);
  for (const char* policy : {"vl-cache", "draft", "h2o", "streaming", "am"}) {
    SCOPED_TRACE(policy);
    const auto whole = make_sequence(*engine, tokens, policy, "0.3"),
               cut = make_sequence(*engine, tokens, policy, "0.3");
    std::vector<float> a = compute(*engine, *whole, 1000), b = compute(*engine, *cut, 90);
    expect_close(a, b);
    for (int32_t i = 0; i < 120; ++i) {
      whole->add_token(i % kVocab), cut->add_token(i % kVocab);
      a = compute(*engine, *whole, 1), b = compute(*engine, *cut, 1);
    }
    expect_close(a, b);
    EXPECT_EQ(kept_tokens(*whole), kept_tokens(*cut));
  }
}

// Rows of a window see values that have become codes when the prompt ends: they are summed before, whatever the pieces.
TEST(CodedKv, WindowsAgreeWhateverThePieces) {
  const auto engine = coded_engine(KvCodec::kInt4);
  const std::vector<int32_t> tokens = random_tokens(600);
  const auto n = static_cast<int32_t>(tokens.size());
  const auto sums = [&](int32_t piece) {
    Capture capture{.request = {.window = 400, .window_queries = true, .window_sums = true, .window_counts = true},
                    .layers = {}};
    for (int32_t i = 0; i < 400; ++i) capture.request.window_weights.push_back(1.0f + static_cast<float>(i % 7));
    const auto sequence = make_sequence(*engine, tokens);
    CaptureHooks hooks(engine->backend(), 2, n, capture);
    compute(*engine, *sequence, piece, &hooks);
    std::vector<float> found;
    for (const LayerCapture& layer : capture.layers) {
      EXPECT_EQ(layer.window_queries.rows(), 400);
      for (const Tensor& t : {layer.window_sums, layer.seen_counts}) {
        found.insert(found.end(), t.as<float>(), t.as<float>() + t.numel());
      }
    }
    return found;
  };
  const std::vector<float> whole = sums(1000);
  for (const int32_t piece : {256, 90}) {
    SCOPED_TRACE(piece);
    expect_close(sums(piece), whole, 1e-5f);
  }
}

// A budget in bytes counts the pages as they are: more slots than values would have, never more bytes.
TEST(CodedKv, BudgetsInBytes) {
  const auto engine = coded_engine(KvCodec::kInt8), plain = coded_engine(KvCodec::kF32);
  const std::vector<int32_t> tokens = random_tokens(900);
  for (const char* budget : {"100KiB", "260KiB"}) {
    const auto codes = make_sequence(*engine, tokens, "snapkv", budget),
               values = make_sequence(*plain, tokens, "snapkv", budget);
    compute(*engine, *codes, 1000), compute(*plain, *values, 1000);
    const int64_t limit = *parse_bytes(budget);
    EXPECT_LE(codes->cache().bytes(), limit);
    EXPECT_LE(values->cache().bytes(), limit);
    EXPECT_GE(n_slots(kept_tokens(*codes)), n_slots(kept_tokens(*values)));
    if (budget == std::string_view("260KiB")) {
      EXPECT_GT(n_slots(kept_tokens(*codes)), 3 * n_slots(kept_tokens(*values)) / 2);
    }
  }
}

TEST(CodedKv, HeadSizesWithoutPages) {
  Json config = parse_json(
      R"({"vocab_size": 61, "hidden_size": 48, "intermediate_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 30, "torch_dtype": "float32", "num_hidden_layers": 2,
    "model_type": "llama"})",
      "test");
  EngineOptions options;
  options.kv_codec = KvCodec::kInt8;
  try {
    Engine::random(parse_model_config(config, "test"), options, 5);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("multiple of 4, and this model's is 30"), std::string::npos);
  }
}

// A policy that reserves its slots, as a request, and as a caller's own sequence.
TEST(CodedKv, IsRefusedWithReservedSlots) {
  const auto engine = coded_engine(KvCodec::kInt8);
  const std::string refusal =
      "KV policy static reserves slots of values, which cannot become int8; allowed with it are --kv-codec bf16 and "
      "f32";
  Request request;
  request.prompt = engine->prepare_tokens({1, 2, 3});
  request.policy = parse_policy("static:capacity=64");
  EXPECT_EQ(error_of([&] { engine->new_sequence(request.prompt, request.policy); }), refusal);
  Scheduler scheduler(*engine);
  EXPECT_EQ(error_of([&] { scheduler.add(std::move(request)); }), refusal);
}

}  // namespace
}  // namespace vlcache
