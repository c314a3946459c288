// The two sides of a comparison have a scheduler each and advance alternately, so that few logits wait for their
// counterpart.
#include "engine/scheduler/reuse_shadows.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/numeric/divergence.h"
#include "engine/engine_caches.h"
#include "engine/scheduler/scheduler.h"

namespace vlcache {
namespace {

constexpr size_t kMostQueued = 16;
constexpr int kMostAbandoned = 8;  // times that a comparison begins again
constexpr int64_t kFloorPeriod = 4;
constexpr double kShadowStepMs = 30;                              // a step's prompt rows
constexpr int32_t kFewestShadowRows = 16, kMostShadowRows = 256;  // of them
constexpr const char* kOtherRows = "other pieces";                // of the floor

// One way of computing an answer.
class Side {
 public:
  Side(Engine& engine, const AnsweredPrompt& answered, ReuseOptions reuse, int32_t n_rows)
      : scheduler_(engine, {.prefill_chunk = n_rows}) {
    Request request;
    request.prompt = answered.prompt.copy();
    request.policy = answered.policy;
    request.kv_codec = answered.kv_codec;
    request.reuse = std::move(reuse);
    request.options.max_tokens = static_cast<int32_t>(answered.answer.size());
    request.options.ignore_eos = true;
    request.callbacks.choose = [this, &answer = answered.answer](std::span<float> logits) {
      rows.emplace_back(logits.begin(), logits.end());
      return answer[n_chosen++];
    };
    id_ = scheduler_.add(std::move(request));
  }
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;

  void step() { scheduler_.step(); }
  bool done() const { return scheduler_.done(id_); }
  bool failed() { return scheduler_.remove(id_).finish_reason == FinishReason::kError; }

  std::deque<std::vector<float>> rows;  // logits that were not compared yet
  size_t n_chosen = 0;

 private:
  Scheduler scheduler_;
  RequestId id_ = 0;
};

ReuseOptions fully(const AnsweredPrompt& answered, bool prefix) {
  ReuseOptions reuse{.prefix = prefix, .chooser = nullptr};
  reuse.shadow.emplace();
  reuse.origin = answered.reuse.origin;
  return reuse;
}

}  // namespace

class ReuseShadows::Comparison {
 public:
  Comparison(Engine& engine, const AnsweredPrompt& answered, bool for_floor, int32_t n_rows)
      : n_tokens_(answered.answer.size()),
        for_floor_(for_floor),
        full_(engine, answered, fully(answered, /*prefix=*/true), n_rows),
        other_(engine, answered, for_floor ? fully(answered, /*prefix=*/false) : answered.reuse,
               for_floor ? n_rows * 3 / 4 + 1 : n_rows) {}

  // False: both sides are done.
  bool step() {
    Side& next = !full_.done() && (full_.n_chosen <= other_.n_chosen || other_.done()) ? full_ : other_;
    if (next.done()) return false;
    next.step();
    while (!full_.rows.empty() && !other_.rows.empty()) {
      compare(full_.rows.front(), other_.rows.front());
      full_.rows.pop_front();
      other_.rows.pop_front();
    }
    return true;
  }

  bool failed() { return full_.failed() || other_.failed() || n_compared_ < n_tokens_; }

  ReuseEvidence evidence() const {
    const AnswerCounts answers{.n = 1, .n_changed = changed_ ? 1 : 0};
    ReuseEvidence e;
    if (for_floor_) {
      e.floor.push_back({kOtherRows, answers});
    } else {
      e.answers = answers;
      e.kl = kl_ / static_cast<double>(n_compared_);
    }
    return e;
  }

 private:
  void compare(std::vector<float>& p, std::vector<float>& q) {
    ++n_compared_;
    changed_ = changed_ || likeliest(p) != likeliest(q);
    if (for_floor_) return;
    log_softmax(p);
    log_softmax(q);
    kl_ += divergence(p, q);
  }

  size_t n_tokens_, n_compared_ = 0;
  bool for_floor_, changed_ = false;
  double kl_ = 0;
  Side full_, other_;
};

ReuseShadows::ReuseShadows(Engine& engine, ReuseCountsByCodec& counts) : engine_(engine), counts_(counts) {}
ReuseShadows::~ReuseShadows() = default;

void ReuseShadows::add(AnsweredPrompt answered) {
  if (queue_.size() == kMostQueued) {
    // The first may be under way.
    const auto oldest = queue_.begin() + (comparison_ != nullptr ? 1 : 0);
    counts_.of(oldest->answered.kv_codec).gave_up();
    queue_.erase(oldest);
  }
  for (size_t i = 0; i < answered.prompt.images.size(); ++i) answered.prompt.let_pixels_go(i);
  queue_.push_back({.answered = std::move(answered)});
}

// As many as take about kShadowStepMs.
int32_t ReuseShadows::n_rows() const {
  const double ms_per_token = engine_.caches().ms_per_token();
  if (ms_per_token <= 0) return kFewestShadowRows;
  return std::clamp(static_cast<int32_t>(kShadowStepMs / ms_per_token), kFewestShadowRows, kMostShadowRows);
}

bool ReuseShadows::possible(const AnsweredPrompt& answered) const {
  const Prompt& prompt = answered.prompt;
  const KvCaches& kv = engine_.caches().of(answered.kv_codec);
  for (size_t i = 0; i < prompt.images.size(); ++i) {
    const bool reused = std::ranges::find(answered.reuse.shadow->images, i) != answered.reuse.shadow->images.end();
    if (!engine_.caches().holds_image(prompt.keys[i], reused ? &kv : nullptr)) return false;
  }
  const auto n_tokens = static_cast<int64_t>(prompt.tokens.size() + answered.answer.size());
  return engine_.pools().used_bytes() + 2 * engine_.kv_bytes(n_tokens, kv.shape()) <=
         engine_.pools().max_bytes();  // two sequences
}

void ReuseShadows::step() {
  if (queue_.empty()) return;
  Waiting& first = queue_.front();
  ReuseCounts& counts = counts_.of(first.answered.kv_codec);
  if (comparison_ == nullptr) {
    if (first.n_abandoned == kMostAbandoned || !possible(first.answered)) {
      counts.gave_up();
      queue_.pop_front();
      return;
    }
    const bool for_floor = n_compared_ % kFloorPeriod == kFloorPeriod - 1;
    comparison_ = std::make_unique<Comparison>(engine_, first.answered, for_floor, n_rows());
  }
  if (comparison_->step()) return;
  if (comparison_->failed()) {
    counts.gave_up();
  } else {
    counts.add(first.answered.prompt.images.size() > 1, comparison_->evidence());
  }
  ++n_compared_;
  comparison_.reset();
  queue_.pop_front();
}

void ReuseShadows::abandon() {
  if (comparison_ == nullptr) return;
  comparison_.reset();
  ++queue_.front().n_abandoned;
}

}  // namespace vlcache
