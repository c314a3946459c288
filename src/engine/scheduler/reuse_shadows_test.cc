// Shadow requests: what they count, and that nothing shows they ran.
#include "engine/scheduler/reuse_shadows.h"

#include <filesystem>

#include "engine/engine_caches.h"
#include "engine/engine_testing.h"
#include "engine/image_catalog.h"

namespace vlcache {
namespace {

class Shadows : public testing::Test {
 protected:
  explicit Shadows(const char* model = "llava-next-llama")
      : dir_(std::filesystem::path(VLCACHE_SOURCE_DIR) / "tests/fixtures/models" / model) {
    EngineOptions options;
    options.dtype = DType::kF32;
    options.kv_memory_bytes = options.cache_bytes = 64 << 20;
    engine_ = Engine::load(Checkpoint(dir_), options);
    const std::vector<double> shares(static_cast<size_t>(engine_->kv_shape().n_layers()), 0.1);
    plan_ = {.model = "m", .shares = shares};
    shadows_ = std::make_unique<ReuseShadows>(*engine_, by_codec_);
    counts_ = &by_codec_.of(engine_->kv_codec());
  }

  Request request(const std::string& text, const std::vector<int>& numbers, bool open = false) {
    std::vector<Image> images;
    for (const int number : numbers) {
      images.push_back(load_image(dir_ / ("image-" + std::to_string(number) + ".png")));
    }
    Request request;
    request.prompt = engine_->prepare_raw(text, std::move(images));
    request.policy = parse_policy("full");
    request.reuse.prefix = request.reuse.compared = true;
    (open ? request.reuse.chooser : request.reuse.measured) = counts_->chooser();
    request.options.max_tokens = 6;
    request.options.ignore_eos = true;
    request.callbacks.on_answered = [this](AnsweredPrompt answered) {
      answered_.push_back(answered.reuse.shadow->images);
      shadows_->add(std::move(answered));
    };
    return request;
  }
  GenerateResult ask(const std::string& text, const std::vector<int>& numbers, bool open = false) {
    return generate(*engine_, request(text, numbers, open));
  }
  void compare() {
    for (int i = 0; i < 10'000 && !shadows_->idle(); ++i) shadows_->step();
    EXPECT_TRUE(shadows_->idle());
  }

  std::filesystem::path dir_;
  std::unique_ptr<Engine> engine_;
  ReusePlan plan_;
  ReuseCountsByCodec by_codec_{[this](KvCodec) { return std::make_unique<ReuseCounts>(plan_, GateRule(), ""); }};
  ReuseCounts* counts_ = nullptr;  // under the default codec
  std::unique_ptr<ReuseShadows> shadows_;
  std::vector<std::vector<size_t>> answered_;  // images that could have been reused, or were
};

TEST_F(Shadows, OnlyPromptsThatCouldHaveReusedAnImageAreCompared) {
  const GenerateResult first = ask("First: <image>. What is it?", {0});
  EXPECT_EQ(first.cache.images[0].reason, "reuse is being measured");
  EXPECT_FALSE(first.cache.images[0].reusable);
  EXPECT_TRUE(answered_.empty());
  EXPECT_EQ(ask("First: <image>. What is it?", {0}).cache.images[0].source, CacheReport::Image::Source::kPrefix);
  EXPECT_TRUE(answered_.empty()) << "an exact prefix has it";
  EXPECT_TRUE(ask("Look here: <image>. What is it?", {0}).cache.images[0].reusable);
  ask("One <image> and another <image>?", {1, 0});
  EXPECT_EQ(answered_, (std::vector<std::vector<size_t>>{{0}, {1}}));
  compare();
  const ReuseCounts::State state = counts_->state();
  EXPECT_EQ(state.one.evidence.answers.n, 1);
  EXPECT_EQ(state.several.evidence.answers.n, 1);
  EXPECT_GT(state.one.evidence.kl, 0);
  EXPECT_EQ(state.n_given_up, 0);
}

TEST_F(Shadows, CountForTheCodecOfTheRequest) {
  for (const char* before : {"First:", "Look here:"}) {
    Request coded = request(std::string(before) + " <image>. What is it?", {0});
    coded.kv_codec = KvCodec::kInt8;
    generate(*engine_, std::move(coded));
  }
  compare();
  EXPECT_EQ(by_codec_.of(KvCodec::kInt8).state().one.evidence.answers.n, 1);
  EXPECT_EQ(counts_->state().one.evidence.answers.n, 0);
}

// The counts are those of a program that computes all answers twice.
TEST_F(Shadows, CountWhatReuseWouldChange) {
  ask("First: <image>. What is it?", {0});
  ask("Another: <image>. What is it?", {1});
  int64_t n = 0, n_changed = 0;
  for (const std::string before : {"Look:", "Here are", "Say what you see in", "The first time,", "Quickly,", "Now,"}) {
    for (const int image : {0, 1}) {
      const GenerateResult exact = ask(before + " <image>. Describe it.", {image});
      std::vector<int32_t> likeliest;
      Request reused = request(before + " <image>. Describe it.", {image}, /*open=*/true);
      reused.reuse.compared = false;
      reused.reuse.prefix = false;
      reused.callbacks.choose = [&](std::span<float> logits) {
        likeliest.push_back(static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin()));
        return exact.tokens[likeliest.size() - 1].id;
      };
      generate(*engine_, std::move(reused));
      ++n;
      if (n % 4 == 0) continue;  // for the noise floor
      n_changed += likeliest == ids_of(exact) ? 0 : 1;
    }
    compare();
  }
  const ReuseEvidence found = counts_->state().one.evidence;
  EXPECT_EQ(found.answers.n, 9);
  EXPECT_EQ(found.answers.n_changed, n_changed);
  EXPECT_EQ(noise_floor(found).n, 3);
  EXPECT_EQ(noise_floor(found).n_changed, 0);
}

TEST_F(Shadows, LeaveNoTrace) {
  ask("First: <image>. What is it?", {0});
  const std::vector<int32_t> answer = ids_of(ask("Look here: <image>. What is it?", {0}));
  const CacheTotals before = engine_->kv().totals();
  const int64_t pages = engine_->pools().used_bytes(), prefixes = engine_->caches().usual().prefixes().version();
  compare();
  const CacheTotals after = engine_->kv().totals();
  EXPECT_EQ(engine_->pools().used_bytes(), pages);
  EXPECT_EQ(engine_->caches().usual().prefixes().version(), prefixes);
  for (const auto& [a, b] : {std::pair(after.prefix, before.prefix), std::pair(after.image_kv, before.image_kv),
                             std::pair(after.encoder, before.encoder)}) {
    EXPECT_EQ(a.n_hits, b.n_hits);
    EXPECT_EQ(a.n_misses, b.n_misses);
    EXPECT_EQ(a.bytes, b.bytes);
  }
  const GenerateResult again = ask("Look here: <image>. What is it?", {0});
  EXPECT_EQ(ids_of(again), answer);
  EXPECT_EQ(again.cache.n_prefix_tokens, again.n_prompt - 1);
}

TEST_F(Shadows, AreAbandonedAndBeginAgain) {
  ask("First: <image>. What is it?", {0});
  ask("Look here: <image>. What is it?", {0});
  const int64_t pages = engine_->pools().used_bytes();
  for (int i = 0; i < 3; ++i) {
    for (int step = 0; step <= i; ++step) shadows_->step();
    EXPECT_FALSE(shadows_->idle());
    shadows_->abandon();
    EXPECT_EQ(engine_->pools().used_bytes(), pages);
  }
  compare();
  EXPECT_EQ(counts_->state().one.evidence.answers.n, 1);
  // One that never comes to its end is given up.
  ask("Look there: <image>. What is it?", {0});
  for (int i = 0; i < 100 && !shadows_->idle(); ++i) {
    shadows_->step();
    shadows_->abandon();
  }
  EXPECT_TRUE(shadows_->idle());
  EXPECT_EQ(counts_->state().n_given_up, 1);
}

TEST_F(Shadows, AreGivenUpWhereMemoryLacksWhatTheyTake) {
  ask("First: <image>. What is it?", {0});
  ask("Look here: <image>. What is it?", {0});
  engine_->kv().forget_images();
  compare();
  EXPECT_EQ(counts_->state().one.evidence.answers.n, 0);
  EXPECT_EQ(counts_->state().n_given_up, 1);
}

// Answers that were given under reuse.
TEST_F(Shadows, CompareReusedAnswers) {
  ask("First: <image>. What is it?", {0});
  const GenerateResult reused = ask("Look here: <image>. What is it?", {0}, /*open=*/true);
  EXPECT_TRUE(reused.cache.images[0].loaded());
  EXPECT_EQ(answered_, (std::vector<std::vector<size_t>>{{0}}));
  compare();
  EXPECT_EQ(counts_->state().one.evidence.answers.n, 1);
  EXPECT_GT(counts_->state().one.evidence.kl, 0);
}

// Prompts longer than the model's sliding window of 64 and four pages, of which the first pages were freed.
class WindowedShadows : public Shadows {
 protected:
  WindowedShadows() : Shadows("llava-next-mistral") {}
};

TEST_F(WindowedShadows, CompareAndLeaveNoTrace) {
  std::string question = ": <image>. What is it?";
  while (request("Look here" + question, {0}).prompt.n_tokens() < 430) question += " Look again.";
  ask("First" + question, {0});
  const GenerateResult answer = ask("Look here" + question, {0});
  EXPECT_EQ(answered_.size(), 1u);
  const int64_t pages = engine_->pools().used_bytes();
  compare();
  EXPECT_EQ(engine_->pools().used_bytes(), pages);
  EXPECT_EQ(counts_->state().one.evidence.answers.n, 1);
  EXPECT_EQ(ids_of(ask("Look here" + question, {0})), ids_of(answer));
}

}  // namespace
}  // namespace vlcache
