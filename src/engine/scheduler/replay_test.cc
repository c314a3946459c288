// A preempted request goes on as if it had not been: after its prompt and its answer so far are computed again, every
// layer and head has the same slots, hidden ones, biases, sums and values, and the rest of the answer is the same. For
// every policy, preempted at several places, with and without reuse.
#include <cstdlib>
#include <cstring>
#include <map>
#include <span>

#include "engine/engine_caches.h"
#include "engine/engine_testing.h"
#include "engine/policies_testing.h"
#include "engine/scheduler/accounting_testing.h"
#include "engine/sequence/sequence.h"

namespace vlcache {
namespace {

constexpr int32_t kReplayedAnswer = 80;

// What a sequence has in a head.
struct HeadState {
  std::vector<int32_t> tokens, places;
  std::vector<float> bias;
  int32_t n_hidden = 0, n_at_prompt_end = 0;
  std::vector<std::vector<float>> planes;
  std::vector<float> k, v;
};
struct SequenceState {
  int32_t n_tokens = 0, n_done = 0, next_position = 0;
  bool acts_later = false;
  std::vector<HeadState> heads;  // of all layers
};

SequenceState state_of(const Sequence& sequence) {
  auto& s = const_cast<Sequence&>(sequence);  // planes are read through the policy's own access
  SequenceState state{.n_tokens = s.n_tokens(),
                      .n_done = s.n_done(),
                      .next_position = s.next_position(),
                      .acts_later = s.acts_later(),
                      .heads = {}};
  const PolicySlots& slots = s.slots();
  const auto copy = [](const auto& span) { return std::vector(span.begin(), span.end()); };
  for (int32_t layer = 0; layer < slots.n_layers(); ++layer) {
    for (int32_t head = 0; head < slots.n_kv_heads(layer); ++head) {
      HeadState& h = state.heads.emplace_back();
      h.tokens = copy(slots.tokens(layer, head));
      h.places = copy(slots.places(layer, head));
      h.bias = copy(slots.bias(layer, head));
      h.n_hidden = s.cache().n_hidden(layer, head);
      h.n_at_prompt_end = slots.n_visible_at_prompt_end(layer, head);
      for (int32_t i = 0; i < s.policy().n_planes(); ++i) h.planes.push_back(copy(s.cache().plane(layer, head, i)));
      const auto n = std::ssize(h.tokens), d = static_cast<int64_t>(slots.head_dim(layer));
      h.k.resize(static_cast<size_t>(n * d)), h.v.resize(h.k.size());
      slots.read(layer, head, Tensor(h.k.data(), DType::kF32, {n, d}), Tensor(h.v.data(), DType::kF32, {n, d}));
    }
  }
  return state;
}

// -inf equals -inf.
void expect_near(const std::vector<float>& a, const std::vector<float>& b, const char* what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;
    ASSERT_NEAR(a[i], b[i], 1e-4f * std::max(1.0f, std::abs(b[i]))) << what << " " << i;
  }
}

void expect_same(const SequenceState& a, const SequenceState& b) {
  EXPECT_EQ(a.n_tokens, b.n_tokens);
  EXPECT_EQ(a.n_done, b.n_done);
  EXPECT_EQ(a.next_position, b.next_position);
  EXPECT_EQ(a.acts_later, b.acts_later);
  ASSERT_EQ(a.heads.size(), b.heads.size());
  for (size_t i = 0; i < a.heads.size(); ++i) {
    const HeadState &found = a.heads[i], &expected = b.heads[i];
    SCOPED_TRACE("head " + std::to_string(i) + " of all layers");
    ASSERT_EQ(found.tokens, expected.tokens);
    ASSERT_EQ(found.places, expected.places);
    EXPECT_EQ(found.n_hidden, expected.n_hidden);
    EXPECT_EQ(found.n_at_prompt_end, expected.n_at_prompt_end);
    expect_near(found.bias, expected.bias, "bias");
    ASSERT_EQ(found.planes.size(), expected.planes.size());
    for (size_t p = 0; p < found.planes.size(); ++p) expect_near(found.planes[p], expected.planes[p], "plane");
    expect_near(found.k, expected.k, "K");
    expect_near(found.v, expected.v, "V");
  }
}

// Where a request is preempted.
enum class Place : uint8_t { kPrompt, kDraft, kActing, kToken1, kToken20, kToken70, kTwice, kNoPages };
constexpr std::array kPreemptedAt{Place::kPrompt, Place::kToken1, Place::kToken20, Place::kToken70,
                                  Place::kTwice,  Place::kDraft,  Place::kActing,  Place::kNoPages};

enum class ReuseWay : uint8_t { kOff, kPrefix, kImages };
constexpr std::array kReuseWays{ReuseWay::kPrefix, ReuseWay::kOff, ReuseWay::kImages};

struct PreemptedOutcome {
  GenerateResult result;
  std::map<int32_t, SequenceState> states;  // after so many tokens of the answer
};

class Preempted : public testing::Test {
 protected:
  static constexpr int32_t kChunk = 40;

  std::vector<Image> page() const {
    std::vector<Image> images;
    images.push_back(load_image(model_.dir() / "image-0.png"));
    return images;
  }

  Request request(const std::string& policy, const std::string& budget, ReuseWay reuse) const {
    std::string text = "Read all of it. <image>\n";
    for (int i = 0; i < 14; ++i) text += "What is the total of line " + std::to_string(i) + "? ";
    Request request;
    request.prompt = engine_->prepare_raw(text, page());
    request.policy = parse_policy(policy, budget, &model_.checkpoint());
    request.reuse.prefix = reuse != ReuseWay::kOff;
    request.reuse.encoder = reuse != ReuseWay::kOff;
    if (reuse == ReuseWay::kImages) request.reuse.chooser = parse_reuse_chooser("static:r=0.2");
    request.options.max_tokens = kReplayedAnswer;
    request.options.ignore_eos = true;
    request.options.sampling.n_logprobs = 0;
    return request;
  }

  Request words(int32_t n, int32_t n_answer, int32_t priority) const {
    std::vector<int32_t> tokens = random_tokens(n, 3);
    for (int32_t& t : tokens) t += 10;
    Request request;
    request.prompt = engine_->prepare_tokens(std::move(tokens));
    request.policy = parse_policy("full", "");
    request.options.max_tokens = n_answer;
    request.options.ignore_eos = true;
    request.priority = priority;
    return request;
  }

  void forget() const {
    engine_->caches().usual().prefixes().clear();
    engine_->caches().usual().image_kv().clear();
  }

  // The caches are as the first request finds them.
  PreemptedOutcome run(Request asked, std::optional<Place> place) const {
    PreemptedOutcome outcome;
    const bool beside = place == Place::kActing || place == Place::kNoPages;
    Scheduler scheduler(*engine_, {.max_running = beside ? 2 : 1, .prefill_chunk = kChunk});
    int32_t n_tokens = 0;
    asked.callbacks.on_token = [&](const GeneratedToken&) { ++n_tokens; };
    const RequestId id = scheduler.add(std::move(asked));
    if (place == Place::kNoPages) scheduler.add(words(20, 1500, 1));
    if (place == Place::kActing) scheduler.add(words(20, 400, 1));
    int n_urgent = 0, n_steps = 0;
    RequestId urgent = 0;  // 0: none runs
    while (!scheduler.done(id)) {
      scheduler.step();
      ++n_steps;
      const Sequence* own = nullptr;
      scheduler.for_each_sequence([&](const Sequence& s) {
        if (s.prompt_shape().n_tokens > 100) own = &s;
      });
      if (urgent != 0 && scheduler.done(urgent)) urgent = 0;
      if (scheduler.done(id) || own == nullptr || urgent != 0) continue;
      const bool resumed = own->n_tokens() - own->prompt_shape().n_tokens != n_tokens;
      if (!resumed && own->n_pending() == 1 && !own->looks_ahead()) outcome.states[n_tokens] = state_of(*own);
      if (place && n_urgent < (place == Place::kTwice ? 2 : 1) && is_at(*place, n_urgent, n_steps, n_tokens, *own)) {
        ++n_urgent;
        urgent = scheduler.add(words(30, 2, 2));
      }
    }
    outcome.result = scheduler.remove(id);
    return outcome;
  }

  static bool is_at(Place place, int n_before, int n_steps, int32_t n_tokens, const Sequence& own) {
    switch (place) {
      case Place::kPrompt:
        return n_steps == 2;
      case Place::kDraft:
        return own.looks_ahead();
      case Place::kActing:  // in parts, as another request decodes
        return !own.in_prompt() && !own.looks_ahead() && own.n_pending() == 0;
      case Place::kToken1:
        return n_tokens == 1;
      case Place::kToken20:
        return n_tokens == 20;
      case Place::kToken70:
        return n_tokens == 70;
      case Place::kTwice:
        return n_tokens == (n_before == 0 ? 20 : 70);
      case Place::kNoPages:
        return false;  // the other request takes them
    }
    return false;
  }

  // Fills the caches with the image after another beginning, as far as the request may use it.
  void know_image(ReuseWay reuse) const {
    if (reuse != ReuseWay::kImages) return;
    Request first = request("full", "", reuse);
    first.prompt = engine_->prepare_raw("Another <image>\nbeginning and another end of it.", page());
    first.options.max_tokens = 1;
    generate(*engine_, std::move(first));
    ASSERT_GT(engine_->kv().totals().image_kv.bytes, 0);
    engine_->caches().usual().prefixes().clear();
  }

  // False: the request never was at the place.
  bool check(const std::string& policy, Place place, ReuseWay reuse) {
    const std::string budget = budget_for(policy, &model_.checkpoint());
    SCOPED_TRACE("--kv '" + policy + "' --kv-budget '" + budget + "', preempted at place " +
                 std::to_string(static_cast<int>(place)) + ", reuse " + std::to_string(static_cast<int>(reuse)));
    if (alone_.policy != policy || alone_.reuse != reuse) {
      forget();
      know_image(reuse);
      alone_ = {policy, reuse, run(request(policy, budget, reuse), {})};
      EXPECT_FALSE(alone_.outcome.result.error) << alone_.outcome.result.error->what();
    }
    const PreemptedOutcome& expected = alone_.outcome;
    if (place == Place::kNoPages) {
      // What it needs at most, and a page of each head, which the other request outgrows.
      engine_ = model_.engine(kBackend, expected.result.kv.peak_bytes + engine_->kv_bytes(kPageSlots));
    }
    forget();
    know_image(reuse);
    const PreemptedOutcome found = run(request(policy, budget, reuse), place);
    EXPECT_FALSE(found.result.error) << found.result.error->what();
    EXPECT_EQ(ids_of(found.result), ids_of(expected.result));
    EXPECT_EQ(found.result.text, expected.result.text);
    EXPECT_EQ(found.result.preemptions.n_different, 0);
    EXPECT_EQ(found.result.kv.slots, expected.result.kv.slots);
    EXPECT_EQ(found.result.kv.n_before_acting, expected.result.kv.n_before_acting);
    EXPECT_EQ(found.result.kv.acts_after_tokens, expected.result.kv.acts_after_tokens);
    for (size_t i = 0; i < found.result.tokens.size() && i < expected.result.tokens.size(); ++i) {
      EXPECT_NEAR(found.result.tokens[i].logprob, expected.result.tokens[i].logprob, 1e-3f) << "token " << i;
    }
    for (const auto& [n_tokens, state] : found.states) {
      const auto same = expected.states.find(n_tokens);
      if (same == expected.states.end()) continue;
      SCOPED_TRACE("after " + std::to_string(n_tokens) + " tokens");
      expect_same(state, same->second);
      if (HasFatalFailure()) break;
    }
    if (place == Place::kNoPages) engine_ = model_.engine(kBackend);
    return found.result.preemptions.n_times >= (place == Place::kTwice ? 2 : 1);
  }

  static constexpr const char* kBackend = "ref";
  PolicyModel model_;
  std::unique_ptr<Engine> engine_ = model_.engine(kBackend);
  struct {
    std::string policy;
    ReuseWay reuse = ReuseWay::kOff;
    PreemptedOutcome outcome;
  } alone_;
};

// VLCACHE_TEST_REPLAYS=all takes every policy at every place under every way of reuse (make soak); else each policy
// once or twice, places and ways one after the other.
TEST_F(Preempted, GoesOnAsIfNothingHadHappened) {
  const std::vector<std::string> policies = all_policies();
  const char* const asked = std::getenv("VLCACHE_TEST_REPLAYS");
  const bool all = asked != nullptr && std::strcmp(asked, "all") == 0;
  std::map<Place, int> n_checked, n_reached;
  size_t turn = 0;
  for (const std::string& policy : policies) {
    if (!all && only_ref() && turn % 19 != 0) {  // sanitizers are slow
      ++turn;
      continue;
    }
    for (const ReuseWay reuse : kReuseWays) {
      if (!all && reuse != kReuseWays[turn % kReuseWays.size()]) continue;
      for (const Place place : kPreemptedAt) {
        if (!all && place != kPreemptedAt[turn % kPreemptedAt.size()]) continue;
        ++n_checked[place];
        n_reached[place] += check(policy, place, reuse) ? 1 : 0;
        if (HasFatalFailure()) return;
      }
    }
    ++turn;
  }
  std::printf("%zu policies:", policies.size());
  for (const Place place : kPreemptedAt)
    std::printf(" place %d %d of %d", static_cast<int>(place), n_reached[place], n_checked[place]);
  std::printf("\n");
  for (const Place place : {Place::kPrompt, Place::kToken1, Place::kToken20, Place::kToken70, Place::kTwice}) {
    EXPECT_EQ(n_reached[place], n_checked[place]) << static_cast<int>(place);
  }
  if (all) {
    EXPECT_GT(n_reached[Place::kDraft], 0);
    EXPECT_GT(n_reached[Place::kActing], 0);
    EXPECT_GT(n_reached[Place::kNoPages], 0);
  }
}

// Fails its own step with every decoded token, and so the step of all that share it.
class FailingPolicy final : public Policy {
 public:
  std::string name() const override { return "failing"; }
  bool wants_scores() const override { return true; }
  void on_scores(int32_t, const StepScores&, PolicySlots&) const override {
    throw Error(ErrorCode::kInput, "a policy that fails");
  }
};

// A step that failed for another request and was rolled back leaves no trace; neither does a prefix of the prompt that
// another request has cached.
TEST_F(Preempted, FailedStepsAndCachedPrefixesChangeNothing) {
  size_t turn = 0;
  for (const std::string& policy : all_policies()) {
    if (turn++ % (only_ref() ? 40 : 16) != 0) continue;
    SCOPED_TRACE(policy);
    const std::string budget = budget_for(policy, &model_.checkpoint());
    forget();
    const PreemptedOutcome expected = run(request(policy, budget, ReuseWay::kOff), {});
    forget();
    Request before = request("full", "", ReuseWay::kPrefix);
    before.prompt.tokens.back() += 1;  // the last page differs
    before.options.max_tokens = 1;
    generate(*engine_, std::move(before));

    Scheduler scheduler(*engine_, {.prefill_chunk = kChunk});
    int32_t n_tokens = 0;
    Request asked = request(policy, budget, ReuseWay::kPrefix);
    asked.callbacks.on_token = [&](const GeneratedToken&) { ++n_tokens; };
    const RequestId id = scheduler.add(std::move(asked));
    std::optional<SequenceState> last;
    int n_failed = 0;
    for (int32_t next_failure = 3; !scheduler.done(id);) {
      if (n_tokens >= next_failure) {
        Request failing = words(5, 3, 0);
        failing.policy = std::make_shared<FailingPolicy>();
        scheduler.add(std::move(failing));
        next_failure += 30;
        ++n_failed;
      }
      scheduler.step();
      scheduler.for_each_sequence([&](const Sequence& s) {
        const bool same = s.prompt_shape().n_tokens > 100 && n_tokens == kReplayedAnswer - 1 && s.n_pending() == 1;
        if (same) last = state_of(s);
      });
    }
    const GenerateResult found = scheduler.remove(id);
    EXPECT_EQ(n_failed, 3);
    EXPECT_EQ(ids_of(found), ids_of(expected.result));
    const auto same = expected.states.find(kReplayedAnswer - 1);
    if (last && same != expected.states.end()) expect_same(*last, same->second);
    if (HasFatalFailure()) return;
  }
}

// Those that make drafts and act in parts, while they do.
TEST_F(Preempted, DraftsAndPlansAreMadeAgain) {
  const std::pair<const char*, Place> cases[] = {{"pointer@draft+global", Place::kDraft},
                                                 {"pointer@answer:fit=0.3+global", Place::kActing},
                                                 {"knorm/h2o", Place::kNoPages},
                                                 {"am:ahead=4", Place::kDraft},
                                                 {"pointer:ahead=8,fit=0.3+global", Place::kDraft},
                                                 {"kvzip", Place::kDraft},
                                                 {"am", Place::kActing},
                                                 {"pointer:ahead=8,fit=0.3+global", Place::kActing},
                                                 {"full", Place::kNoPages},
                                                 {"pointer@draft+global", Place::kNoPages}};
  for (const auto& [policy, place] : std::span(cases).first(only_ref() ? 3 : std::size(cases))) {
    EXPECT_TRUE(check(policy, place, ReuseWay::kPrefix)) << policy << " at place " << static_cast<int>(place);
  }
}

}  // namespace
}  // namespace vlcache
