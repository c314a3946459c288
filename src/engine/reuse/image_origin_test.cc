// Images that occur twice in a prompt, or only ever after reused ones: computed once, where and when.
#include <cmath>

#include "base/json.h"
#include "engine/engine_caches.h"
#include "engine/engine_testing.h"
#include "engine/scheduler/scheduler.h"
#include "reuse/prefix/prefix_cache.h"

namespace vlcache {
namespace {

using Source = CacheReport::Image::Source;
using Encoder = CacheReport::Image::Encoder;

constexpr int32_t kAnswerTokens = 6;

class ImageOrigin : public testing::Test {
 protected:
  ImageOrigin() : dir_(std::filesystem::path(VLCACHE_SOURCE_DIR) / "tests/fixtures/models/llava-next-llama") {
    restart();
  }

  void restart(const ImageKvForm& form = {}) {
    EngineOptions options;
    options.cache_form = form;
    options.dtype = DType::kF32;
    options.kv_memory_bytes = options.cache_bytes = 64 << 20;
    options.prefill_chunk = 50;
    engine_ = Engine::load(Checkpoint(dir_), options);
  }

  // `text` has a placeholder for each of the images of these numbers.
  Request request(const std::string& text, const std::vector<int>& numbers, ReuseOptions reuse) const {
    std::vector<Image> images;
    for (const int number : numbers) {
      images.push_back(load_image(dir_ / ("image-" + std::to_string(number) + ".png")));
    }
    Request request;
    request.prompt = engine_->prepare_raw(text, std::move(images));
    request.policy = parse_policy("full");
    request.reuse = std::move(reuse);
    request.options.max_tokens = kAnswerTokens;
    request.options.ignore_eos = true;
    request.options.sampling.n_logprobs = 0;
    return request;
  }
  GenerateResult ask(const std::string& text, const std::vector<int>& numbers, ReuseOptions reuse) const {
    return generate(*engine_, request(text, numbers, std::move(reuse)));
  }
  static ReuseOptions reuse(ReuseOrigin origin = ReuseOrigin::kFirst, const char* chooser = "static:r=0.1") {
    return {.prefix = true, .chooser = parse_reuse_chooser(chooser), .required = true, .origin = origin};
  }

  std::filesystem::path dir_;
  std::unique_ptr<Engine> engine_;
};

// The largest difference between the log probabilities of both answers; 1 if their tokens differ.
double difference(const GenerateResult& a, const GenerateResult& b) {
  double most = 0;
  for (size_t i = 0; i < kAnswerTokens; ++i) {
    if (a.tokens[i].id != b.tokens[i].id) return 1;
    most = std::max<double>(most, std::abs(a.tokens[i].logprob - b.tokens[i].logprob));
  }
  return most;
}
constexpr double kNothing = 1e-5;

std::vector<Source> sources(const GenerateResult& result) {
  std::vector<Source> sources;
  for (const CacheReport::Image& image : result.cache.images) sources.push_back(image.source);
  return sources;
}

TEST_F(ImageOrigin, RepeatedImageOfAPromptIsComputedOnce) {
  const std::string text = "First <image>, another <image>\nand once more <image>. Which one?";
  const GenerateResult at_once = ask(text, {0, 1, 0}, reuse());
  EXPECT_EQ(sources(at_once), (std::vector{Source::kComputed, Source::kComputed, Source::kRam}));
  const auto& images = at_once.cache.images;
  EXPECT_EQ(images[0].n_recomputed, images[0].n_tokens);
  EXPECT_EQ(images[1].n_recomputed, images[1].n_tokens);
  EXPECT_LT(images[2].n_recomputed, 0.2 * images[2].n_tokens);
  EXPECT_EQ(images[2].encoder, Encoder::kHit);
  // As if another prompt had recorded them.
  restart();
  ask("First <image>, another <image>\nand once", {0, 1}, reuse());
  const GenerateResult after = ask(text, {0, 1, 0}, reuse());
  EXPECT_EQ(sources(after), (std::vector{Source::kPrefix, Source::kPrefix, Source::kRam}));
  EXPECT_LT(difference(at_once, after), kNothing);
  // Without reuse: both are computed.
  restart();
  const GenerateResult exact = ask(text, {0, 1, 0}, {.prefix = true, .chooser = nullptr});
  EXPECT_GT(difference(at_once, exact), kNothing);
  EXPECT_EQ(exact.cache.images[2].encoder, Encoder::kHit);
  EXPECT_LT(difference(exact, ask(text, {0, 1, 0}, {.encoder = false, .chooser = nullptr})), kNothing);
}

TEST_F(ImageOrigin, SecondUseComputesTheImageByItself) {
  ask("Look: <image>.", {0}, reuse());
  const GenerateResult first = ask("Here <image>\nand <image>. So?", {0, 1}, reuse());
  EXPECT_EQ(sources(first), (std::vector{Source::kRam, Source::kComputed}));
  EXPECT_EQ(first.cache.images[1].reason, "no exact origin");
  const GenerateResult second = ask("Now <image>\nwith <image>. So?", {0, 1}, reuse());
  EXPECT_EQ(sources(second), (std::vector{Source::kRam, Source::kComputed}));
  EXPECT_EQ(second.cache.images[1].reason, "computed by itself, then reused");
  EXPECT_GT(second.cache.images[1].n_recomputed, second.cache.images[1].n_tokens);
  const GenerateResult third = ask("There <image>\nwith <image>. So?", {0, 1}, reuse());
  EXPECT_EQ(sources(third), (std::vector{Source::kRam, Source::kRam}));
  EXPECT_EQ(engine_->pools().used_bytes(), engine_->caches().usual().prefixes().stats().bytes);
}

// An origin that is missing in the middle of a prompt, after an image has been recorded for its second occurrence.
TEST_F(ImageOrigin, IsComputedByItselfInTheMiddleOfAPrompt) {
  ask("Look: <image>.", {0}, reuse());
  ask("Here <image>\nand <image>. So?", {0, 1}, reuse());
  const GenerateResult result = ask("One <image>\nagain <image>\nother <image>. So?", {2, 2, 1}, reuse());
  EXPECT_EQ(sources(result), (std::vector{Source::kComputed, Source::kRam, Source::kComputed}));
  EXPECT_EQ(result.cache.images[2].reason, "computed by itself, then reused");
  restart();
  ask("By itself <image>.", {1}, reuse());
  const GenerateResult after = ask("One <image>\nagain <image>\nother <image>. So?", {2, 2, 1}, reuse());
  EXPECT_EQ(sources(after), (std::vector{Source::kComputed, Source::kRam, Source::kRam}));
}

// Which tokens are kept is decided while the image is repeated: by itself, each image once.
TEST_F(ImageOrigin, IsRepeatedWhereTheRepetitionScoresTokens) {
  restart({.share = 0.2, .scorer = "kvzip"});
  const GenerateResult first = ask("Here <image>\nand <image>. So?", {0, 1}, reuse(ReuseOrigin::kFirst, "static:r=0"));
  EXPECT_EQ(sources(first), (std::vector{Source::kComputed, Source::kComputed}));
  const GenerateResult second = ask("Now <image>\nwith <image>.", {1, 0}, reuse(ReuseOrigin::kFirst, "static:r=0"));
  EXPECT_EQ(sources(second), (std::vector{Source::kRam, Source::kRam}));
  for (const CacheReport::Image& image : second.cache.images) {
    EXPECT_EQ(image.form, "exact, 0.2:kvzip");
    EXPECT_EQ(image.n_kept, (image.n_tokens + 4) / 5);
  }
  for (const CacheReport::Image& image : first.cache.images) {
    EXPECT_EQ(image.reason, "computed by itself, then reused");
    EXPECT_EQ(image.n_recomputed, image.n_tokens);
  }
  EXPECT_EQ(engine_->pools().used_bytes(), engine_->caches().usual().prefixes().stats().bytes);
}

TEST_F(ImageOrigin, NeutralAnswersDoNotDependOnEarlierRequests) {
  const std::string text = "Here <image>\nand <image>. So?";
  for (const ReuseOrigin origin : {ReuseOrigin::kNeutral, ReuseOrigin::kFirst}) {
    for (const char* chooser : {"static:r=0.1", "asked:r=0.1"}) {
      SCOPED_TRACE(chooser);
      const auto ask_after = [&](const std::vector<std::string>& before) {
        restart();
        for (const std::string& other : before) ask(other, {1}, reuse(origin, chooser));
        ask("Here <image>\nthen", {0}, {.prefix = true, .chooser = nullptr});  // now cached exactly
        return ask(text, {0, 1}, reuse(origin, chooser));
      };
      const GenerateResult fresh = ask_after({});
      const GenerateResult later = ask_after({"Something quite different before it: <image>.", "Look: <image>."});
      if (origin == ReuseOrigin::kFirst) {
        EXPECT_GT(difference(fresh, later), kNothing);
        continue;
      }
      EXPECT_LT(difference(fresh, later), kNothing);
      const GenerateResult again = ask(text, {0, 1}, reuse(origin, chooser));
      EXPECT_EQ(sources(again), (std::vector{Source::kPrefix, Source::kPrefix}));
      EXPECT_LT(difference(fresh, again), kNothing);
    }
  }
}

// Requests that arrive together wait for the same origin.
TEST_F(ImageOrigin, ConcurrentRequestsShareOneOrigin) {
  std::vector<Request> requests;
  for (const char* name : {"Ann", "Bob", "Cid", "Dot"}) {
    requests.push_back(
        request(name + std::string(" asks: <image>\nand <image>. So?"), {0, 1}, reuse(ReuseOrigin::kNeutral)));
  }
  const std::vector<GenerateResult> results = generate(*engine_, std::move(requests));
  EXPECT_EQ(sources(results[0]), (std::vector{Source::kComputed, Source::kComputed}));
  for (size_t i = 1; i < results.size(); ++i) EXPECT_EQ(sources(results[i]), (std::vector{Source::kRam, Source::kRam}));
}

// Origin requests belong to no caller: they are added and removed with the requests that need them.
TEST_F(ImageOrigin, WaitingRequestCanBeRemoved) {
  const std::string text = "Here <image>\nand <image>. So?";
  const GenerateResult alone = ask(text, {0, 1}, reuse(ReuseOrigin::kNeutral));
  for (int n_steps = 0; n_steps < 12; ++n_steps) {
    SCOPED_TRACE(n_steps);
    restart();
    Scheduler scheduler(*engine_);
    const RequestId leaves = scheduler.add(request(text, {0, 1}, reuse(ReuseOrigin::kNeutral)));
    const RequestId stays = scheduler.add(request("Also <image>\n" + text, {2, 0, 1}, reuse(ReuseOrigin::kNeutral)));
    for (int i = 0; i < n_steps; ++i) scheduler.step();
    EXPECT_EQ(scheduler.size(), 2u);
    scheduler.remove(leaves);
    while (scheduler.step()) {
    }
    EXPECT_EQ(scheduler.size(), 1u);
    const GenerateResult result = scheduler.remove(stays);
    EXPECT_FALSE(result.error);
    EXPECT_EQ(result.tokens.size(), size_t{kAnswerTokens});
    EXPECT_TRUE(engine_->caches().usual().images_in_work().empty());
    EXPECT_EQ(engine_->pools().used_bytes(), engine_->caches().usual().prefixes().stats().bytes);
    EXPECT_LT(difference(alone, ask(text, {0, 1}, reuse(ReuseOrigin::kNeutral))), kNothing);
  }
}

}  // namespace
}  // namespace vlcache
