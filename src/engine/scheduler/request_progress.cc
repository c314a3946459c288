#include "engine/scheduler/request_progress.h"

#include <algorithm>
#include <utility>

namespace vlcache {

double rows_flops(const TextConfig& config, double n_before, double n_rows) {
  if (n_rows <= 0) return 0;
  return std::max(n_rows, kFewRows) * config.layers_flops(n_before + n_rows / 2);
}

void RequestProgress::tell(bool waiting) {
  const auto now = Clock::now();
  told_.share = meter_.share();
  told_.seconds_left = waiting ? std::nullopt : meter_.seconds_left(engine_.pace(), now);
  told_.waiting = waiting;
  told_.ms = meter_.running_ms(now);
  request_.callbacks.on_progress(told_);
}

void RequestProgress::wait() {
  if (!wanted() || !origins_.empty()) return;
  meter_.pause(Clock::now());
  told_.n_total = std::max(told_.n_total, request_.prompt.n_tokens());
  tell(/*waiting=*/true);
}

void RequestProgress::start() {
  if (!wanted()) return;
  meter_.run(Clock::now());
  for (const Origin& origin : std::exchange(origins_, {})) meter_.add({.prompt = origin.share * origin.flops});
  meter_.set_under_way({});
  if (request_.sequence != nullptr || request_.policy->vision_layers().empty()) return;
  const Prompt& prompt = request_.prompt;
  left_ = {.images = 0, .prompt = rows_flops(engine_.model().config().text, 0, prompt.n_tokens())};
  for (const ImageTiles& image : prompt.images) left_.images += engine_.model().encoding_flops(image);
  told_.n_total = prompt.n_tokens();
  meter_.set_left(left_);
}

void RequestProgress::await_origins(const std::vector<Request>& origins, const Sequence& sequence) {
  if (!wanted()) return;
  const TextConfig& text = engine_.model().config().text;
  ComputeWork all{.prompt = rows_flops(text, 0, sequence.n_prompt_left())};
  for (const Request& origin : origins) {
    const double flops =
        engine_.model().encoding_flops(origin.prompt.images.at(0)) + rows_flops(text, 0, origin.prompt.n_tokens());
    origins_.push_back({.flops = flops});
    all.prompt += flops;
  }
  meter_.set_left(all);
}

void RequestProgress::origin_computes(size_t origin, double share) {
  if (!wanted() || origin >= origins_.size()) return;
  origins_[origin].share = share;
  ComputeWork done;
  for (const Origin& one : origins_) done.prompt += one.share * one.flops;
  meter_.set_under_way(done);
  tell();
}

// The tokens that will be computed for the policy and discarded.
double RequestProgress::lookahead_flops(const Sequence& sequence) const {
  const TextConfig& text = engine_.model().config().text;
  const PromptShape& prompt = sequence.prompt_shape();
  const Policy& policy = sequence.policy();
  int32_t n_draft = 0, n_repeated = 0;
  for (const CaptureRequest& needs : policy.needs(prompt)) {
    if (needs.replay.piece > 0) n_repeated = prompt.n_tokens;
    if (policy.acts_after_tokens() == 0) n_draft = std::max(n_draft, needs.ahead);
  }
  return rows_flops(text, prompt.n_tokens, n_repeated) + n_draft * rows_flops(text, prompt.n_tokens, 1);
}

ComputeWork RequestProgress::left(const Sequence& sequence, const ImageJobs& images) const {
  const TextConfig& text = engine_.model().config().text;
  return {.images = images.flops_left(),
          .prompt = rows_flops(text, sequence.n_done(), sequence.n_prompt_left()) + lookahead_left_};
}

void RequestProgress::begin(const Sequence& sequence, const ImageJobs& images, int32_t n_cached) {
  if (!wanted()) return;
  told_.n_cached = n_cached;
  lookahead_left_ = lookahead_flops(sequence);
  previews_ = false;
  look(sequence, images);
  tell();
}

void RequestProgress::look(const Sequence& sequence, const ImageJobs& images) {
  if (!wanted()) return;
  if (!previews_) left_ = left(sequence, images);
  meter_.set_left(left_);
  meter_.set_under_way({});
  told_.n_total = sequence.prompt_shape().n_tokens;
  told_.n_done = std::max(told_.n_done, std::min(sequence.n_prefilled(), told_.n_total));
}

void RequestProgress::encoded(const ComputeWork& done) {
  if (!wanted()) return;
  meter_.add(done);
  left_.images = std::max(0.0, left_.images - done.images);
  meter_.set_left(left_);
  tell();
}

void RequestProgress::begin_step(const StepItem& item, const ImageJobs& images) {
  if (!wanted()) return;
  const Sequence& sequence = *item.sequence;
  double n_rows = 0;
  for (const TokenRun& run : item.runs) n_rows += run.end - run.begin;
  step_flops_ = sequence.next_share_of_layers() * rows_flops(engine_.model().config().text, sequence.n_done(), n_rows);
  looks_ahead_ = sequence.looks_ahead();
  if (!item.preview) previews_ = false;
  look(sequence, images);  // in a preview: the work that follows it
  previews_ = item.preview;
  if (!previews_) return;
  ComputeWork with_preview = left_;
  meter_.set_left(with_preview += {.prompt = step_flops_});
}

void RequestProgress::layers_done(double share) noexcept {
  if (!wanted() || error_ != nullptr) return;
  try {
    meter_.set_under_way({.prompt = share * step_flops_});
    tell();
  } catch (...) {
    error_ = std::current_exception();
  }
}

void RequestProgress::end_step(const Sequence& sequence, const ImageJobs& images) {
  if (!wanted()) return;
  if (error_ != nullptr) std::rethrow_exception(std::exchange(error_, nullptr));
  meter_.add({.prompt = step_flops_});
  if (looks_ahead_) lookahead_left_ = std::max(0.0, lookahead_left_ - step_flops_);
  look(sequence, images);
  tell();
}

void RequestProgress::finish() {
  if (!wanted()) return;
  meter_.finish();
  tell();
  finished_ = true;
}

}  // namespace vlcache
