// Scorers, allocators, decode rules, presets and budgets in all their combinations: every request gets an answer or an
// error of its own, the same alone and beside others, and what requests share is as it was.
#include <cstdlib>
#include <set>

#include "engine/engine_caches.h"
#include "engine/policies_testing.h"
#include "engine/scheduler/accounting_testing.h"
#include "engine/sequence/sequence.h"

namespace vlcache {
namespace {

using Kind = PolicyInfo::Kind;

struct Combination {
  std::string policy, budget;
};

// All that parse.
std::vector<Combination> combinations(const Checkpoint& checkpoint) {
  const char* budgets[] = {"",
                           "1",
                           "2",
                           "3",
                           "4",
                           "5",
                           "8",
                           "63",
                           "64",
                           "65",
                           "0.0001",
                           "0.001",
                           "0.01",
                           "0.1",
                           "0.5",
                           "0.99",
                           "2KiB",
                           "16KiB",
                           "128KiB",
                           "error=0.01",
                           "error=0.9",
                           "threshold=-1",
                           "threshold=0.01",
                           "threshold=1"};
  std::vector<std::string> first = names_of(Kind::kPolicy), allocators{""}, rules{""};
  for (const std::string& scorer : names_of(Kind::kScorer)) first.push_back(scorer);
  for (const char* name : {"", "streaming:sinks=2,window=20", "duo:sinks=2,recent=3",
                           "razor:sinks=1,window=2,ratio=100", "fastgen:t=0.1", "static:capacity=2200"}) {
    first.emplace_back(name);
  }
  for (const std::string& allocator : names_of(Kind::kAllocator)) allocators.push_back("+" + allocator);
  for (const std::string& rule : names_of(Kind::kRule)) rules.push_back("/" + rule);
  std::vector<Combination> all;
  for (const std::string& name : first) {
    for (const std::string& allocator : allocators) {
      for (const std::string& rule : rules) {
        for (const char* budget : budgets) {
          try {
            const std::string policy = name.empty() && allocator.empty() && rule.empty() ? "" : name + allocator + rule;
            parse_policy(policy, budget, &checkpoint);
            all.push_back({policy, budget});
          } catch (const Error& e) {
            EXPECT_EQ(e.code(), ErrorCode::kInput) << name << allocator << rule << " " << budget << ": " << e.what();
          }
        }
      }
    }
  }
  return all;
}

struct Outcome {
  std::string error;
  std::vector<int32_t> ids;
  std::vector<std::vector<int32_t>> slots;
  bool operator==(const Outcome&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Outcome& o) {
  out << o.error << " [";
  for (const int32_t id : o.ids) out << id << " ";
  for (const auto& layer : o.slots) {
    out << "|";
    for (const int32_t n : layer) out << " " << n;
  }
  return out << "]";
}

Outcome outcome(const GenerateResult& result) {
  Outcome o{.ids = ids_of(result), .slots = result.kv.slots};
  if (result.error) {
    o.error = result.error->what();
    EXPECT_NE(result.error->code(), ErrorCode::kBug) << o.error;
    EXPECT_NE(result.error->code(), ErrorCode::kMemory) << o.error;
  }
  return o;
}

class EveryCombination : public testing::Test {
 protected:
  static constexpr int kPrompts = 4;
  // Steps are cut by rows, never by time: a failure comes again.
  static constexpr SchedulerOptions kByRows{.max_step_ms = 60000};

  // One token, an image, two images, 2,000 tokens (with the scalar backend, a tenth of that).
  Prompt prompt(int which) const {
    const auto tinted = [&](uint8_t tint) {
      Image image = load_image(models_.dir() / "image-0.png");
      for (uint8_t& value : image.rgb) value ^= tint;
      return image;
    };
    std::vector<Image> images;
    std::string text = "total";
    if (which == 1) text = "Read the first line. <image>\nWhat is the total, and which date?";
    if (which == 2) text = "<image> and <image>: which of them is red?";
    for (int i = 0; i < which && which < 3; ++i) images.push_back(tinted(static_cast<uint8_t>(64 * which + 8 * i)));
    if (which == 3) {
      std::vector<int32_t> tokens = random_tokens(only_ref() ? 200 : 2000);
      for (int32_t& t : tokens) t += 10;
      return engine_->prepare_tokens(std::move(tokens));
    }
    Prompt prompt = engine_->prepare_raw(text, std::move(images));
    if (which == 0) prompt.tokens.resize(1), prompt.classes.resize(1);
    return prompt;
  }

  Request request(const Combination& c, int which, const char* chooser = nullptr) const {
    Request request;
    request.prompt = prompt(which);
    request.policy = parse_policy(c.policy, c.budget, &models_.checkpoint());
    request.reuse.prefix = true;
    request.reuse.keep_exact = true;
    if (chooser != nullptr) request.reuse.chooser = parse_reuse_chooser(chooser);
    request.options.max_tokens = c.policy.find('/') == std::string::npos ? 3 : 9;
    request.options.ignore_eos = true;
    request.report_kept = true;
    return request;
  }

  void walk(const Combination& c) {
    SCOPED_TRACE("--kv '" + c.policy + "' --kv-budget '" + c.budget + "'");
    std::vector<Outcome> alone;
    const Outcome second = second_turn(c);
    for (int which = 0; which < kPrompts; ++which) {
      engine_->caches().usual().prefixes().clear();
      alone.push_back(run(request(c, which)));
      EXPECT_TRUE(alone.back().error.empty() == !alone.back().ids.empty());
    }
    for (const char* chooser : {static_cast<const char*>(nullptr), "static:r=0.2"}) {
      engine_->caches().usual().prefixes().clear();
      engine_->caches().usual().image_kv().clear();
      for (int round = 0; round < 2; ++round) {  // at first nothing is known, then all of it
        Scheduler scheduler(*engine_, kByRows);
        Accounts accounts(*engine_);
        std::vector<RequestId> ids;
        for (int which = 0; which < kPrompts; ++which) ids.push_back(scheduler.add(request(c, which, chooser)));
        while (scheduler.step()) {
        }
        for (int which = 0; which < kPrompts; ++which) {
          const Outcome together = outcome(scheduler.remove(ids[static_cast<size_t>(which)]));
          if (chooser == nullptr && round == 0) {
            EXPECT_EQ(together, alone[static_cast<size_t>(which)]) << which;
          }
          EXPECT_EQ(together.error.empty(), !together.ids.empty());
        }
        accounts.check(scheduler);
      }
    }
    EXPECT_EQ(second_turn(c), second) << "what others have left in memory matters";
  }

  // A conversation continues with what was left of its KV.
  Outcome second_turn(const Combination& c) {
    engine_->caches().usual().prefixes().clear();
    engine_->caches().usual().image_kv().clear();
    Request first = request(c, 1);
    if (!first.policy->vision_layers().empty()) return {};  // it chooses image tokens, which a sequence of ours has not
    const std::unique_ptr<Sequence> sequence = engine_->new_sequence(first.prompt, first.policy);
    first.sequence = sequence.get();
    const Outcome answer = run(std::move(first));
    if (!answer.error.empty()) return answer;
    Request second = request(c, 1);
    for (const int32_t id : answer.ids) second.prompt.tokens.push_back(id);
    for (const int32_t id : random_tokens(30, 5)) second.prompt.tokens.push_back(id + 10);
    second.prompt.classes.resize(second.prompt.tokens.size(), TokenClass::kOther);
    sequence->continue_with(second.prompt);
    second.sequence = sequence.get();
    return run(std::move(second));
  }

  Outcome run(Request request) {
    Scheduler scheduler(*engine_, kByRows);
    const RequestId id = scheduler.add(std::move(request));
    while (scheduler.step()) {
    }
    return outcome(scheduler.remove(id));
  }

  PolicyModel models_;
  std::unique_ptr<Engine> engine_ = models_.engine();
};

// VLCACHE_TEST_COMBINATIONS=all walks over all of them (make soak), I/N over the I-th of N shares; else over a sample
// that is the same everywhere.
TEST_F(EveryCombination, AnswersOrReportsTheReason) {
  std::vector<Combination> all = combinations(models_.checkpoint());
  const char* asked = std::getenv("VLCACHE_TEST_COMBINATIONS");
  size_t first = 0, step = 1;
  if (asked == nullptr) {
    std::mt19937 random(26);
    std::ranges::shuffle(all, random);
    all.resize(only_ref() ? 12 : 60);
  } else if (std::string_view(asked) != "all") {
    ASSERT_EQ(std::sscanf(asked, "%zu/%zu", &first, &step), 2) << asked;
  }
  std::printf("%zu combinations\n", (all.size() - first + step - 1) / step);
  for (size_t i = first; i < all.size(); i += step) walk(all[i]);
}

}  // namespace
}  // namespace vlcache
