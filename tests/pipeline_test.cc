// Runs every fixture model from text and images to tokens, through the engine: token ids as in transformers' processor,
// and its greedy answer.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "api/request_builder.h"
#include "base/json.h"
#include "engine/scheduler/scheduler.h"
#include "io/chat/chat_template.h"
#include "io/safetensors.h"
#include "ops/factory.h"
#include "policy/registry.h"
#include "tests/fixture_cases.h"
#include "tests/testing.h"

namespace vlcache {
namespace {

class Pipeline : public testing::TestWithParam<std::string> {
 protected:
  Pipeline()
      : dir_(fixtures() / GetParam()), case_(parse_ordered_json(read_text_file(dir_ / "case.json"), "case.json")) {
    EngineOptions options;
    options.dtype = DType::kF32;
    options.kv_memory_bytes = 256 << 20;
    options.cache_bytes = 256 << 20;
    engine_ = Engine::load(Checkpoint(dir_), options);
  }

  std::vector<Image> images() const {
    std::vector<Image> images;
    for (const auto& name : case_.value("images", nlohmann::ordered_json::array()))
      images.push_back(load_image(dir_ / name.get<std::string>()));
    return images;
  }

  // The first tokens of transformers' answer; by default, all that are known.
  std::vector<int32_t> greedy(int32_t n = INT32_MAX) const {
    auto tokens = case_["greedy"].get<std::vector<int32_t>>();
    tokens.resize(std::min(tokens.size(), static_cast<size_t>(n)));
    return tokens;
  }

  Request request(ReuseOptions reuse, int32_t max_tokens = INT32_MAX) const {
    Request request;
    request.prompt = engine_->prepare_raw(case_["prompt"].get<std::string>(), images());
    request.policy = parse_policy("full");
    request.reuse = std::move(reuse);
    request.options.max_tokens = static_cast<int32_t>(greedy(max_tokens).size());
    request.options.ignore_eos = true;
    return request;
  }

  static std::vector<int32_t> ids(const GenerateResult& result) {
    std::vector<int32_t> ids;
    for (const GeneratedToken& token : result.tokens) ids.push_back(token.id);
    return ids;
  }

  std::filesystem::path dir_;
  nlohmann::ordered_json case_;
  std::unique_ptr<Engine> engine_;
};

TEST_P(Pipeline, RawTextBecomesTheProcessorsIds) {
  const Prompt prompt = engine_->prepare_raw(case_["prompt"].get<std::string>(), images());
  EXPECT_EQ(prompt.tokens, case_["input_ids"].get<std::vector<int32_t>>());
}

TEST_P(Pipeline, ChatBecomesTheProcessorsIds) {
  if (!case_.contains("chat")) GTEST_SKIP() << "this checkpoint has no chat template";
  const Prompt prompt = prepare_chat(*engine_, case_["chat"]["messages"], images());
  EXPECT_EQ(prompt.tokens, case_["chat"]["input_ids"].get<std::vector<int32_t>>());
}

// Texts, images and tools in several orders, and a text that looks like tokens.
TEST_P(Pipeline, OrdersBecomeTheProcessorsIds) {
  if (!std::filesystem::exists(dir_ / "orders.json")) GTEST_SKIP() << "no orders.json";
  for (const auto& order : parse_ordered_json(read_text_file(dir_ / "orders.json"), "orders.json")) {
    SCOPED_TRACE(order["order"].get<std::string>());
    std::vector<Image> images;
    for (const auto& name : order["images"]) images.push_back(load_image(dir_ / name.get<std::string>()));
    const auto* tools = order["tools"].is_null() ? nullptr : &order["tools"];
    const Prompt prompt = prepare_chat(*engine_, order["messages"], std::move(images), {.tools = tools});
    EXPECT_EQ(prompt.tokens, order["input_ids"].get<std::vector<int32_t>>());
  }
}

// M-RoPE: time, row and column of every token, and where the answer begins.
TEST_P(Pipeline, PositionsAreTransformers) {
  const Safetensors expected = Safetensors::open(dir_ / case_["expected"].get<std::string>());
  const Prompt prompt = engine_->prepare_raw(case_["prompt"].get<std::string>(), images());
  if (expected.find("position_ids") == nullptr) {
    EXPECT_TRUE(prompt.positions.empty());
    return;
  }
  const Tensor ids = expected.get("position_ids");
  const auto n = static_cast<size_t>(ids.row_size());
  ASSERT_EQ(prompt.positions.size(), n);
  int32_t last = 0;
  for (size_t i = 0; i < n; ++i) {
    const auto* p = ids.as<int32_t>() + i;
    EXPECT_EQ(prompt.positions[i], (Position{p[0], p[n], p[2 * n]})) << "token " << i;
    last = std::max({last, p[0], p[n], p[2 * n]});
  }
  EXPECT_EQ(prompt.n_positions(), last + 1);
}

TEST_P(Pipeline, GreedyAnswerIsTransformers) { EXPECT_EQ(ids(generate(*engine_, request({}))), greedy()); }

// After the same beginning, KV is the same, whichever tokens are recomputed, for images in one piece or in tiles.
TEST_P(Pipeline, RepeatedImagesGiveTheSameAnswer) {
  if (images().empty()) GTEST_SKIP() << "no images";
  const auto reuse = [](const char* chooser) {
    return ReuseOptions{.chooser = parse_reuse_chooser(chooser), .required = true};
  };
  for (const CacheReport::Image& image : generate(*engine_, request(reuse("static:r=0"))).cache.images) {
    EXPECT_EQ(image.source, CacheReport::Image::Source::kComputed) << image.reason;
  }
  for (const std::string chooser :
       {"static:r=0", "vlcache:r=0.3", "mpic:k=2", "static:r=1", "cacheblend:r=0", "cacheblend:r=0.1", "cacheblend:r=1",
        "kvshare:r=0.2", "kvshare:r=1", "asked:r=0.1", "asked:r=0.1,looks=2", "asked:r=1"}) {
    SCOPED_TRACE(chooser);
    const GenerateResult result = generate(*engine_, request(reuse(chooser.c_str())));
    EXPECT_EQ(ids(result), greedy());
    double n_tokens = 0, n_recomputed = 0;
    for (const CacheReport::Image& image : result.cache.images) {
      n_tokens += image.n_tokens;
      n_recomputed += image.n_recomputed;
      const bool all = chooser.ends_with("r=1");
      EXPECT_EQ(image.source, all ? CacheReport::Image::Source::kComputed : CacheReport::Image::Source::kRam)
          << image.reason;
      // A preview of two layers is all of some fixtures.
      const bool looks = chooser.starts_with("cacheblend") || chooser.starts_with("kvshare");
      EXPECT_TRUE(looks || (image.n_recomputed == image.n_tokens) == all);
    }
    if (chooser == "asked:r=0.1") {
      const auto n_layers = static_cast<int32_t>(engine_->model().config().text.n_layers);
      const RecomputePlan plan = parse_reuse_chooser(chooser)->plan(n_layers, static_cast<int32_t>(n_tokens));
      double planned = 0;
      for (int32_t layer = 0; layer < n_layers; ++layer)
        planned += plan.n_tokens(layer, static_cast<int32_t>(n_tokens));
      EXPECT_DOUBLE_EQ(n_recomputed, planned / n_layers);
    }
  }
}

// The text before an image is cached, the image's KV comes from another context: which of its tokens are computed is
// decided only after the question.
TEST_P(Pipeline, ChoosersCanActAfterTheQuestion) {
  if (images().empty()) GTEST_SKIP() << "no images";
  const auto ask = [&](const std::string& prompt, std::vector<Image> images, const char* chooser) {
    Request request = this->request({.prefix = true, .chooser = parse_reuse_chooser(chooser), .required = true});
    request.prompt = engine_->prepare_raw(prompt, std::move(images));
    return generate(*engine_, std::move(request));
  };
  const std::string prompt = case_["prompt"].get<std::string>();
  ask("But first. " + prompt, images(), "static:r=1");
  ask(prompt.substr(0, prompt.find(engine_->model().config().family->image_placeholder)) + "No picture.", {},
      "static:r=1");
  for (const char* chooser : {"cacheblend:r=0.1", "kvshare:r=0.1", "asked:r=0.1", "asked:r=0.1,looks=2"}) {
    SCOPED_TRACE(chooser);
    for (const CacheReport::Image& image : ask(prompt, images(), chooser).cache.images) {
      EXPECT_EQ(image.source, CacheReport::Image::Source::kRam) << image.reason;
    }
    for (const CacheReport::Image& image : ask(prompt, images(), chooser).cache.images) {
      EXPECT_EQ(image.source, CacheReport::Image::Source::kPrefix) << image.reason;
    }
  }
}

// A request that is cancelled during a preview leaves nothing of the preview in the caches. Previews end before the
// answer begins, and its first tokens tell whether the KV is right.
TEST_P(Pipeline, PreviewsCanBeCancelledAtAnyStep) {
  if (images().empty()) GTEST_SKIP() << "no images";
  EngineOptions options;
  options.dtype = DType::kF32;
  options.kv_memory_bytes = options.cache_bytes = 256 << 20;
  options.prefill_chunk = 50;
  engine_ = Engine::load(Checkpoint(dir_), options);
  for (const char* chooser : {"cacheblend:r=0.1", "asked:r=0.1,looks=2"}) {
    const ReuseOptions reuse{.prefix = true, .chooser = parse_reuse_chooser(chooser), .required = true};
    bool answers = false;
    for (int n_steps = 1; !answers; n_steps += shortened() ? 5 : 1) {
      SCOPED_TRACE(chooser + std::string(", steps: ") + std::to_string(n_steps));
      engine_->kv().reset();
      generate(*engine_, request({.chooser = parse_reuse_chooser("static:r=1"), .required = true}, 0));
      Scheduler scheduler(*engine_);
      const RequestId id = scheduler.add(request(reuse));
      for (int i = 0; i < n_steps; ++i) scheduler.step();
      answers = !scheduler.remove(id).tokens.empty();
      EXPECT_EQ(ids(generate(*engine_, request(reuse, 6))), greedy(6));
      ASSERT_LT(n_steps, 100);
    }
  }
}

// A repeated prompt is cached to its last token; with another image, up to the image.
TEST_P(Pipeline, RepeatedPromptsAreNotRecomputed) {
  const ReuseOptions prefix{.prefix = true, .chooser = nullptr};
  EXPECT_EQ(generate(*engine_, request(prefix)).cache.n_prefix_tokens, 0);
  const GenerateResult again = generate(*engine_, request(prefix));
  EXPECT_EQ(ids(again), greedy());
  EXPECT_EQ(again.cache.n_prefix_tokens, again.n_prompt - 1);
  if (images().empty()) return;
  const auto other_image = [&](ReuseOptions reuse) {
    Request other = request(std::move(reuse));
    const size_t last = other.prompt.images.size() - 1;
    std::vector<Image> changed = images();
    for (uint8_t& value : changed[last].rgb) value ^= 0x80;
    other.prompt = engine_->prepare_raw(case_["prompt"].get<std::string>(), std::move(changed));
    return other;
  };
  Request other = other_image(prefix);
  const auto is_last = [&](const ImageSpan& span) { return span.image + 1 == std::ssize(other.prompt.images); };
  const int32_t begin = std::ranges::find_if(other.prompt.spans, is_last)->begin;
  const GenerateResult found = generate(*engine_, std::move(other));
  EXPECT_EQ(found.cache.n_prefix_tokens, begin);
  EXPECT_EQ(ids(found), ids(generate(*engine_, other_image({}))));
}

// Images whose rows hold more than embeddings, or whose positions are not indices: chunks end inside an image, beside
// another prompt's, and prefixes of cancelled requests end there too.
TEST_P(Pipeline, ChunksOfSeveralPromptsMayEndInsideImages) {
  if (!case_.contains("grids")) GTEST_SKIP() << "no grids";
  const auto changed = [&] {
    Request other = request({});
    std::vector<Image> images = this->images();
    for (uint8_t& value : images[0].rgb) value ^= 0x80;
    other.prompt = engine_->prepare_raw("And: " + case_["prompt"].get<std::string>(), std::move(images));
    return other;
  };
  const std::vector<int32_t> others = ids(generate(*engine_, changed()));
  for (const int32_t chunk : {7, 20}) {
    Scheduler scheduler(*engine_, {.prefill_chunk = chunk});
    const RequestId first = scheduler.add(request({})), second = scheduler.add(changed());
    while (scheduler.step()) {
    }
    EXPECT_EQ(ids(scheduler.remove(first)), greedy()) << "chunks of " << chunk;
    EXPECT_EQ(ids(scheduler.remove(second)), others) << "chunks of " << chunk;
  }
}

TEST_P(Pipeline, PrefixesMayEndInsideImages) {
  if (!case_.contains("grids")) GTEST_SKIP() << "no grids";
  const ReuseOptions prefix{.prefix = true, .chooser = nullptr};
  const std::vector<ImageSpan> spans = request(prefix).prompt.spans;
  int n_inside = 0;
  for (int n_steps = 1; n_steps < 8; ++n_steps) {
    engine_->kv().reset();
    Scheduler scheduler(*engine_, {.prefill_chunk = 11});
    const RequestId id = scheduler.add(request(prefix));
    for (int i = 0; i < n_steps; ++i) scheduler.step();
    scheduler.remove(id);
    const GenerateResult found = generate(*engine_, request(prefix, 6));
    EXPECT_EQ(ids(found), greedy(6)) << "after " << n_steps << " steps";
    const int32_t n = found.cache.n_prefix_tokens;
    if (std::ranges::any_of(spans, [&](const ImageSpan& s) { return s.begin < n && n < s.end; })) ++n_inside;
  }
  EXPECT_GT(n_inside, 0);
}

// With the slow backend alone (sanitized builds), the first fixture of each family.
std::vector<std::string> pipeline_cases() {
  std::vector<std::string> names = case_names();
  if (backend_names().size() > 1) return names;
  std::set<std::string> seen;
  std::erase_if(names, [&](const std::string& name) {
    return !seen.insert(load_json(fixtures() / name / "case.json")["family"].get<std::string>()).second;
  });
  return names;
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Pipeline, testing::ValuesIn(pipeline_cases()), fixture_test_name<std::string>);

// The fixture models' prompts, computed under a policy in chunks of 50.
class FixturePrompts {
 public:
  std::unique_ptr<Sequence> compute(const std::string& model, std::string_view kv, std::string_view budget) {
    const Json described = load_json(fixtures() / model / "case.json");
    std::unique_ptr<Engine>& engine = engines_[model];
    if (engine == nullptr) {
      EngineOptions options;
      options.dtype = DType::kF32;
      options.kv_memory_bytes = 64 << 20;
      options.prefill_chunk = 50;
      engine = Engine::load(Checkpoint(fixtures() / model), options);
    }
    std::vector<Image> images;
    for (const Json& name : described["images"])
      images.push_back(load_image(fixtures() / model / name.get<std::string>()));
    Request request;
    request.prompt = engine->prepare_raw(described["prompt"].get<std::string>(), std::move(images));
    auto sequence = engine->new_sequence(request.prompt, parse_policy(kv, budget));
    request.sequence = sequence.get();
    request.options.max_tokens = 1;
    generate(*engine, std::move(request));
    return sequence;
  }

 private:
  std::map<std::string, std::unique_ptr<Engine>> engines_;
};

// `vl-cache@paper` keeps what a scalar implementation of the paper keeps, given transformers' own attention maps
// (tools/fixtures/policies/paper.py).
TEST(VlCachePaper, MatchesTheAlgorithmOfThePaper) {
  const Json fixture = load_json(fixtures().parent_path() / "policies/paper.json");
  FixturePrompts prompts;
  int n_heads = 0;
  for (const Json& c : fixture["cases"]) {
    const std::string model = c["model"];
    SCOPED_TRACE(model + " at " + c["budget"].dump());
    const auto sequence = prompts.compute(model, "vl-cache@paper", c["budget"].dump());
    EXPECT_EQ(sequence->prompt_shape().n_after_vision, c["tau"].get<int32_t>());
    for (size_t layer = 0; layer < c["layers"].size(); ++layer) {
      for (size_t head = 0; head < c["layers"][layer].size(); ++head) {
        const Json& expected = c["layers"][layer][head];
        const std::vector<int32_t> kept = expected["kept"], ties = expected["ties"];
        const std::span<const int32_t> ours =
            sequence->cache().slot_tokens(static_cast<int32_t>(layer), static_cast<int32_t>(head));
        EXPECT_EQ(ours.size(), kept.size()) << "layer " << layer << " head " << head;
        std::vector<int32_t> swapped;
        std::ranges::set_symmetric_difference(ours, kept, std::back_inserter(swapped));
        EXPECT_TRUE(std::ranges::includes(ties, swapped)) << "layer " << layer << " head " << head;
        ++n_heads;
      }
    }
  }
  EXPECT_GE(n_heads, 60);
}

// fastv and pyramid_infer keep in each layer what they keep over transformers' own layers, computed from the remaining
// rows (tools/fixtures/policies/row_droppers.py).
TEST(RowDroppers, MatchTheirResultOverTransformersLayers) {
  const Json fixture = load_json(fixtures().parent_path() / "policies/row_droppers.json");
  FixturePrompts prompts;
  int n_cut = 0;
  for (const Json& c : fixture["cases"]) {
    const std::string model = c["model"], kv = c["kv"];
    SCOPED_TRACE(model + " " + kv);
    const auto sequence = prompts.compute(model, kv, "");
    for (size_t layer = 0; layer < c["layers"].size(); ++layer) {
      const std::vector<int32_t> kept = c["layers"][layer];
      n_cut += std::ssize(kept) < sequence->n_tokens();
      for (int32_t head = 0; head < sequence->slots().n_kv_heads(static_cast<int32_t>(layer)); ++head) {
        const auto ours = sequence->slots().tokens(static_cast<int32_t>(layer), head);
        EXPECT_EQ(std::vector<int32_t>(ours.begin(), ours.end()), kept) << "layer " << layer;
      }
    }
  }
  EXPECT_GE(n_cut, 30);
}

}  // namespace
}  // namespace vlcache
