#include "engine/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/error.h"

namespace vlcache {
namespace {

void require(bool ok, std::string_view name, std::string_view range, double value) {
  if (ok) return;
  throw Error(ErrorCode::kInput,
              std::string(name) + ": expected " + std::string(range) + ", found " + std::to_string(value));
}

double log_sum_exp(std::span<const float> logits) {
  const float top = std::ranges::max(logits);
  double sum = 0.0;
  for (float x : logits) sum += std::exp(static_cast<double>(x) - top);
  return top + std::log(sum);
}

bool likelier(const TokenLogprob& a, const TokenLogprob& b) {
  return a.logprob != b.logprob ? a.logprob > b.logprob : a.token < b.token;
}

}  // namespace

void SamplingParams::validate() const {
  require(std::isfinite(temperature) && temperature >= 0.0f, "temperature", "a number >= 0", temperature);
  require(top_k >= 0, "top_k", "an integer >= 0", top_k);
  require(top_p > 0.0f && top_p <= 1.0f, "top_p", "a number in (0, 1]", top_p);
  require(min_p >= 0.0f && min_p <= 1.0f, "min_p", "a number in [0, 1]", min_p);
  require(std::isfinite(repetition_penalty) && repetition_penalty > 0.0f, "repetition_penalty", "a number > 0",
          repetition_penalty);
  require(std::isfinite(presence_penalty), "presence_penalty", "a number", presence_penalty);
  require(std::isfinite(frequency_penalty), "frequency_penalty", "a number", frequency_penalty);
  for (const TokenBias& b : biases) require(std::isfinite(b.bias), "logit_bias", "numbers", b.bias);
}

Sampler::Sampler(const SamplingParams& params, int64_t vocab)
    : params_(params), random_(params.seed), seen_(static_cast<size_t>(vocab)), generated_(static_cast<size_t>(vocab)) {
  params.validate();
  for (const TokenBias& b : params.biases) CHECK(0 <= b.token && b.token < vocab);
}

void Sampler::add_prompt(std::span<const int32_t> tokens) {
  for (int32_t token : tokens) {
    if (token < 0 || static_cast<size_t>(token) >= seen_.size()) continue;
    uint8_t& seen = seen_[static_cast<size_t>(token)];
    if (seen == 0) touched_.push_back(token);
    seen = 1;
  }
}

void Sampler::apply_biases(std::span<float> logits) const {
  for (const TokenBias& b : params_.biases) logits[static_cast<size_t>(b.token)] += b.bias;
}

void Sampler::apply_penalties(std::span<float> logits) const {
  for (int32_t token : touched_) {
    float& x = logits[static_cast<size_t>(token)];
    x = x > 0.0f ? x / params_.repetition_penalty : x * params_.repetition_penalty;
    const int32_t times = generated_[static_cast<size_t>(token)];
    if (times > 0) x -= params_.presence_penalty + params_.frequency_penalty * static_cast<float>(times);
  }
}

SampledToken Sampler::sample(std::span<float> logits, FunctionRef<void(std::span<float>)> restrict) {
  CHECK(logits.size() == seen_.size());
  SampledToken chosen;
  double norm = 0.0;
  if (params_.n_logprobs >= 0) {
    norm = log_sum_exp(logits);
    const size_t n = std::min(static_cast<size_t>(params_.n_logprobs), logits.size());
    candidates_.clear();
    for (size_t i = 0; i < logits.size(); ++i) candidates_.push_back({static_cast<int32_t>(i), logits[i]});
    std::partial_sort(candidates_.begin(), candidates_.begin() + static_cast<int64_t>(n), candidates_.end(), likelier);
    chosen.top.assign(candidates_.begin(), candidates_.begin() + static_cast<int64_t>(n));
    for (TokenLogprob& t : chosen.top) t.logprob = static_cast<float>(t.logprob - norm);
  }
  const std::vector<float> raw =
      params_.n_logprobs >= 0 ? std::vector<float>(logits.begin(), logits.end()) : std::vector<float>();
  restrict(logits);
  apply_biases(logits);
  apply_penalties(logits);
  chosen.token = params_.temperature == 0.0f ? static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin())
                                             : draw(logits);
  if (!raw.empty()) chosen.logprob = static_cast<float>(raw[static_cast<size_t>(chosen.token)] - norm);

  const size_t i = static_cast<size_t>(chosen.token);
  if (seen_[i] == 0) touched_.push_back(chosen.token);
  seen_[i] = 1;
  ++generated_[i];
  return chosen;
}

// Temperature, then top-k, top-p and min-p on the tempered distribution (transformers' order), then one uniform number.
int32_t Sampler::draw(std::span<float> logits) {
  candidates_.clear();
  // Distances from the likeliest, so that a tiny temperature gives 0 and -inf instead of inf throughout.
  const double best = std::ranges::max(logits);
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isinf(logits[i]) && logits[i] < 0) continue;
    candidates_.push_back({static_cast<int32_t>(i), static_cast<float>((logits[i] - best) / params_.temperature)});
  }
  const auto begin = candidates_.begin();
  if (params_.top_k > 0 && static_cast<size_t>(params_.top_k) < candidates_.size()) {
    std::nth_element(begin, begin + params_.top_k, candidates_.end(), likelier);
    candidates_.resize(static_cast<size_t>(params_.top_k));
  }
  double total = 0.0;
  for (TokenLogprob& c : candidates_) {
    c.logprob = std::exp(c.logprob);  // from here on: weight relative to the likeliest
    total += c.logprob;
  }
  if (params_.min_p > 0.0f) {
    std::erase_if(candidates_, [&](const TokenLogprob& c) { return c.logprob < params_.min_p; });
  }
  if (params_.top_p < 1.0f) {
    std::ranges::sort(candidates_, likelier);
    double mass = 0.0;
    size_t n = 0;
    while (n < candidates_.size() && mass < params_.top_p * total) mass += candidates_[n++].logprob;
    candidates_.resize(n);
  }
  double left = 0.0;
  for (const TokenLogprob& c : candidates_) left += c.logprob;
  left *= std::generate_canonical<double, 53>(random_);
  for (const TokenLogprob& c : candidates_) {
    left -= c.logprob;
    if (left < 0.0) return c.token;
  }
  return candidates_.back().token;
}

}  // namespace vlcache
