// How far a request is on the way to its first token: by layers of the encoder and of steps, never back, to the end.
#include <gtest/gtest.h>

#include "engine/policies_testing.h"
#include "engine/reuse/stored_images_testing.h"
#include "engine/scheduler/progress_meter.h"
#include "engine/scheduler/scheduler.h"

namespace vlcache {
namespace {

using std::chrono::milliseconds;

// ---- the meter ------------------------------------------------------------------------------------------------------

TEST(ProgressMeter, NeverGoesBackAndEndsWithTheFirstToken) {
  ProgressMeter meter;
  EXPECT_EQ(meter.share(), 0);
  meter.set_left({.images = 300, .prompt = 100});
  EXPECT_EQ(meter.share(), 0);
  meter.set_under_way({.images = 100});
  EXPECT_EQ(meter.share(), 0.25);
  meter.set_under_way({});
  EXPECT_EQ(meter.share(), 0.25);
  meter.add({.images = 200});
  meter.set_left({.prompt = 200});  // an image was found in a cache, the prompt has become longer
  EXPECT_EQ(meter.share(), 0.5);
  meter.set_left({.prompt = 1000});
  EXPECT_EQ(meter.share(), 0.5);
  meter.add({.prompt = 1000});
  meter.set_left({});
  EXPECT_LT(meter.share(), 1);
  EXPECT_GT(meter.share(), 0.95);
  meter.finish();
  EXPECT_EQ(meter.share(), 1);
}

TEST(ProgressMeter, TimeLeftIsThatOfTheMachine) {
  ComputePace pace;
  ProgressMeter meter;
  const Clock::time_point begin{};
  const auto left = [&](int ms) { return meter.seconds_left(pace, begin + milliseconds(ms)).value_or(-1); };
  meter.run(begin);
  EXPECT_EQ(left(0), -1);  // the work is not known
  meter.set_left({.images = 1000, .prompt = 1000});
  EXPECT_EQ(left(100), -1);  // nothing is done yet, and the machine not known
  meter.add({.images = 500});
  meter.set_left({});
  EXPECT_EQ(left(100), 0);
  meter.set_left({.images = 500, .prompt = 1000});
  EXPECT_DOUBLE_EQ(left(1000), 3);    // at the request's own pace
  pace.took({.images = 2000}, 4000);  // 2 ms each; prompts likewise, as far as is known
  EXPECT_DOUBLE_EQ(left(1000), 3);    // as long as expected
  EXPECT_DOUBLE_EQ(left(2000), 6);    // others compute beside it
  pace.took({.prompt = 1000}, 500);   // 0.5 ms each
  EXPECT_DOUBLE_EQ(left(1000), 1 + 0.5);
  meter.pause(begin + milliseconds(1000));
  EXPECT_DOUBLE_EQ(left(9000), 1.5);
  meter.run(begin + milliseconds(9000));
  EXPECT_DOUBLE_EQ(meter.running_ms(begin + milliseconds(9250)), 1250);
  meter.finish();
  static_cast<void>(meter.share());
  EXPECT_EQ(left(9250), 0);
}

TEST(ComputePace, RecentTimesCountForMore) {
  ComputePace pace;
  EXPECT_FALSE(pace.ms({.prompt = 1}));
  pace.took({}, 100);
  EXPECT_FALSE(pace.ms({.prompt = 1}));
  for (int i = 0; i < 100; ++i) pace.took({.prompt = 10}, 10);
  EXPECT_NEAR(*pace.ms({.images = 5, .prompt = 5}), 10, 1e-9);
  for (int i = 0; i < 300; ++i) pace.took({.prompt = 10}, 20);
  EXPECT_NEAR(*pace.ms({.prompt = 10}), 20, 0.1);
}

// ---- requests -------------------------------------------------------------------------------------------------------

// The reports that a client has got.
struct Told {
  std::vector<PromptProgress> all;

  void listen(Request& request) {
    request.callbacks.on_progress = [this](const PromptProgress& p) { all.push_back(p); };
  }
  // The share moves, never back, to the first token, by no more than `largest` at a time.
  void expect_complete(double largest = 0.34) const {
    ASSERT_GE(all.size(), 5u);
    EXPECT_LE(all[0].share, 0.2);
    double last = 0;
    int32_t n_done = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_GE(all[i].share, last) << i;
      EXPECT_LE(all[i].share - last, largest) << i;
      EXPECT_EQ(all[i].share == 1, i + 1 == all.size()) << i;
      EXPECT_GE(all[i].n_done, n_done) << i;
      EXPECT_LE(all[i].n_done, all[i].n_total) << i;
      EXPECT_GE(all[i].n_done, all[i].n_cached) << i;
      EXPECT_GE(all[i].seconds_left.value_or(0), 0) << i;
      last = all[i].share, n_done = all[i].n_done;
    }
    EXPECT_EQ(all.back().n_done, all.back().n_total);
    EXPECT_EQ(all.back().seconds_left, 0);
  }
};

class ImageProgress : public StoredImages {
 protected:
  ImageProgress() { tiers_.clear(); }

  std::unique_ptr<Engine> ref_engine() const {
    EngineOptions options = engine_options();
    options.backend = "ref";
    return Engine::load(Checkpoint(fixture_), options);
  }
  // A question about the first of the case's images.
  Request about_one(Engine& engine, const char* chooser = nullptr) const {
    std::vector<Image> images;
    images.push_back(load_image(fixture_ / case_["images"][0].get<std::string>()));
    Request request;
    request.prompt = engine.prepare_raw(with_placeholders("<image>\nWhat is the TOTAL?"), std::move(images));
    request.policy = parse_policy("full");
    if (chooser != nullptr) request.reuse = {.prefix = true, .chooser = parse_reuse_chooser(chooser), .required = true};
    request.options.max_tokens = 4;
    request.options.ignore_eos = true;
    return request;
  }
};

TEST_F(ImageProgress, CountsLayersOfOneImage) {
  const std::unique_ptr<Engine> e = ref_engine();
  const std::vector<int32_t> expected = ids(generate(*e, about_one(*e)));
  e->kv().reset();
  Request request = about_one(*e);
  Told told;
  told.listen(request);
  bool answered = false;
  request.callbacks.on_token = [&](const GeneratedToken&) {
    EXPECT_EQ(told.all.back().share, 1);
    answered = true;
  };
  EXPECT_EQ(ids(generate(*e, std::move(request))), expected);
  EXPECT_TRUE(answered);
  told.expect_complete();
  // One for each of the layers, the beginning, the end of the step, and the first token.
  const ModelConfig& config = e->model().config();
  EXPECT_EQ(std::ssize(told.all), config.vision->n_layers + config.text.n_layers + 3);
  EXPECT_TRUE(told.all[1].seconds_left);  // a layer is enough
  EXPECT_EQ(told.all[1].n_done, 0);       // tokens are none yet
}

// All images and the prompt are one way; where caches have them, it is shorter.
TEST_F(ImageProgress, OfSeveralImagesAndOfKnownOnes) {
  const std::unique_ptr<Engine> e = ref_engine();
  Told first, second, third;
  Request all = request(*e, nullptr);
  first.listen(all);
  generate(*e, std::move(all));
  first.expect_complete();
  const auto n_images = std::ssize(case_["images"]);
  EXPECT_GE(std::ssize(first.all), n_images * e->model().config().vision->n_layers);
  Request known = request(*e, nullptr);  // embeddings are hits
  second.listen(known);
  generate(*e, std::move(known));
  second.expect_complete();
  EXPECT_EQ(std::ssize(second.all), e->model().config().text.n_layers + 3);
  Request prefix = request(*e, nullptr);
  prefix.reuse.prefix = true;
  generate(*e, std::move(prefix));
  prefix = request(*e, nullptr);
  prefix.reuse.prefix = true;
  third.listen(prefix);
  generate(*e, std::move(prefix));
  third.expect_complete();
  EXPECT_GT(third.all[0].n_cached, 0);
}

// Reused KV, also where a preview or an image computed by itself comes before.
TEST_F(ImageProgress, OfReusedImages) {
  for (const ReuseOrigin origin : {ReuseOrigin::kFirst, ReuseOrigin::kNeutral}) {
    const bool previews = origin == ReuseOrigin::kFirst;
    const std::unique_ptr<Engine> e = ref_engine();
    for (int turn = 0; turn < 2; ++turn) {
      SCOPED_TRACE(std::string(previews ? "preview " : "neutral ") + std::to_string(turn));
      Request asked = request(*e, previews ? "cacheblend:r=0.2" : "vlcache:r=0.2");
      asked.reuse.origin = origin;
      Told told;
      told.listen(asked);
      EXPECT_FALSE(generate(*e, std::move(asked)).error);
      told.expect_complete();
      const ModelConfig& config = e->model().config();
      // Images that are computed by themselves count, and so do the rows of a preview.
      const int64_t n_layers = turn == 0 ? std::ssize(case_["images"]) * config.vision->n_layers + config.text.n_layers
                                         : (previews ? 2 : 1) * config.text.n_layers;
      EXPECT_GE(std::ssize(told.all) - 3, n_layers);
    }
  }
}

TEST_F(ImageProgress, OfBatchesOfRequestsThatWaitAndThatLeave) {
  const std::unique_ptr<Engine> e = ref_engine();
  const std::vector<int32_t> expected = ids(generate(*e, about_one(*e)));
  e->kv().reset();
  Scheduler scheduler(*e, {.max_running = 2});
  std::vector<Told> told(4);
  std::vector<RequestId> requests;
  for (size_t i = 0; i < told.size(); ++i) {
    Request one = i == 1 ? request(*e, nullptr) : about_one(*e);
    if (i != 2) told[i].listen(one);  // one client does not listen
    requests.push_back(scheduler.add(std::move(one)));
  }
  while (told[1].all.size() < 3) scheduler.step();
  const size_t n_before = told[1].all.size();
  EXPECT_EQ(scheduler.remove(requests[1]).finish_reason, FinishReason::kCancelled);
  while (scheduler.step()) {
  }
  EXPECT_EQ(told[1].all.size(), n_before);
  EXPECT_LT(told[1].all.back().share, 1);
  told[0].expect_complete();
  EXPECT_TRUE(told[3].all[0].waiting);
  EXPECT_EQ(told[3].all.back().share, 1);
  for (const size_t i : {0, 2, 3}) EXPECT_EQ(ids(scheduler.remove(requests[i])), expected) << i;
}

// A client's error ends its own request alone, wherever it occurs.
TEST_F(ImageProgress, ThrowingClientEndsItsRequest) {
  for (const size_t at : {0, 1, 5, 8, 10, 99}) {
    SCOPED_TRACE(at);
    const std::unique_ptr<Engine> e = ref_engine();
    const std::vector<int32_t> expected = ids(generate(*e, about_one(*e)));
    Scheduler scheduler(*e, {});
    Request fails = about_one(*e);
    size_t n = 0;
    fails.reuse.encoder = false;
    fails.callbacks.on_progress = [&](const PromptProgress&) {
      if (n++ == at) throw Error(ErrorCode::kIo, "gone");
    };
    const RequestId failing = scheduler.add(std::move(fails)), other = scheduler.add(about_one(*e));
    while (scheduler.step()) {
    }
    const GenerateResult result = scheduler.remove(failing);
    EXPECT_EQ(result.finish_reason, n > at ? FinishReason::kError : FinishReason::kLength);
    EXPECT_EQ(ids(scheduler.remove(other)), expected);
  }
}

// Drafts and replays of a policy, prompts computed layer by layer, and image tokens that are chosen first count, too.
TEST(Progress, OfPolicies) {
  const PolicyModel model;
  const std::unique_ptr<Engine> e = model.engine("ref");
  for (const std::string policy : {"pointer@draft+global", "kvzip+uniform", "snapkv:ahead=4", "fastv:k=1,r=0.5",
                                   "hired", "streaming", "pointer@answer+global", "none"}) {
    const bool looks_ahead =
        policy.starts_with("pointer@draft") || policy.starts_with("kvzip") || policy.ends_with("ahead=4");
    SCOPED_TRACE(policy);
    std::string text = "Read all of it. <image>\n";
    for (int i = 0; i < 14; ++i) text += "What is the total of line " + std::to_string(i) + "? ";
    const auto asked = [&] {
      Request request;
      std::vector<Image> images;
      images.push_back(load_image(model.dir() / "image-0.png"));
      request.prompt = e->prepare_raw(text, std::move(images));
      request.policy = parse_policy(policy, budget_for(policy, &model.checkpoint()), &model.checkpoint());
      request.reuse.encoder = false;
      request.options.max_tokens = 3;
      request.options.ignore_eos = true;
      return request;
    };
    Request silent = asked(), listened = asked();
    Told told;
    told.listen(listened);
    EXPECT_EQ(ids_of(generate(*e, std::move(listened))), ids_of(generate(*e, std::move(silent))));
    told.expect_complete(/*largest=*/0.45);
    // Little is left when the first token comes; but lookahead tokens are left when the prompt ends.
    EXPECT_GT(told.all[told.all.size() - 2].share, 0.8);
    const auto end = std::ranges::find_if(told.all, [](const PromptProgress& p) { return p.n_done == p.n_total; });
    EXPECT_EQ(end->share < 0.95, looks_ahead);
  }
}

// Preempted in the middle of its prompt by one of higher priority.
TEST(Progress, StaysWhereItWasWhilePreempted) {
  const std::unique_ptr<Engine> e = make_engine(3, "ref");
  Scheduler scheduler(*e, {.max_running = 1, .prefill_chunk = 40});
  Request long_one = prefix_request(*e, random_tokens(400));
  long_one.reuse.prefix = false;  // all of it is computed again
  Told told;
  told.listen(long_one);
  const RequestId id = scheduler.add(std::move(long_one));
  while (told.all.empty() || told.all.back().share < 0.5) scheduler.step();
  const size_t n_before = told.all.size();
  Request urgent = prefix_request(*e, random_tokens(20, 5));
  urgent.priority = 1;
  const RequestId passes = scheduler.add(std::move(urgent));
  while (!scheduler.done(passes)) scheduler.step();
  EXPECT_TRUE(told.all[n_before].waiting);
  while (scheduler.step()) {
  }
  told.expect_complete();
  EXPECT_GT(std::ssize(told.all), 10 * 3 + static_cast<int64_t>(n_before));
  EXPECT_EQ(ids_of(scheduler.remove(id)), answer_alone(*e, random_tokens(400)));
}

}  // namespace
}  // namespace vlcache
