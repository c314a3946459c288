#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace vlcache {
namespace {

// Channels rotate at theta^(-2c/d). Long wavelengths are stretched by `factor`, short ones kept, with a ramp between
// (Llama 3.1's reference code).
void scale_llama3(const RopeConfig& config, std::vector<float>& f) {
  const auto context = static_cast<double>(config.original_positions);
  const double longest = context / config.low_freq_factor, shortest = context / config.high_freq_factor;
  for (float& x : f) {
    const double wavelength = 2.0 * std::numbers::pi / x;
    if (wavelength < shortest) continue;
    if (wavelength > longest) {
      x = static_cast<float>(x / config.factor);
    } else {
      const double smooth =
          (context / wavelength - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor);
      x = static_cast<float>((1.0 - smooth) * x / config.factor + smooth * x);
    }
  }
}

// arXiv:2309.00071, §3.2: channels that turn more than beta_fast times over the original context stay, those that turn
// less than beta_slow times are interpolated, with a linear ramp between.
void scale_yarn(const RopeConfig& config, int64_t head_dim, std::vector<float>& f) {
  const auto d = static_cast<double>(head_dim);
  const auto channel_of = [&](double turns) {
    return d * std::log(static_cast<double>(config.original_positions) / (turns * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(config.theta));
  };
  double low = channel_of(config.beta_fast), high = channel_of(config.beta_slow);
  if (config.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, d - 1.0);
  if (low == high) high += 0.001;
  for (size_t c = 0; c < f.size(); ++c) {
    const double ramp = std::clamp((static_cast<double>(c) - low) / (high - low), 0.0, 1.0);
    f[c] = static_cast<float>(f[c] / config.factor * ramp + f[c] * (1.0 - ramp));
  }
}

}  // namespace

RopeTable::RopeTable(const RopeConfig& config, int64_t head_dim) : frequencies_(static_cast<size_t>(head_dim / 2)) {
  for (size_t c = 0; c < frequencies_.size(); ++c) {
    const float exponent = static_cast<float>(2 * c) / static_cast<float>(head_dim);
    frequencies_[c] = 1.0f / static_cast<float>(std::pow(config.theta, static_cast<double>(exponent)));
  }
  if (config.type == RopeType::kLinear) {
    for (float& x : frequencies_) x = static_cast<float>(x / config.factor);
  } else if (config.type == RopeType::kLlama3) {
    scale_llama3(config, frequencies_);
  } else if (config.type == RopeType::kYarn) {
    scale_yarn(config, head_dim, frequencies_);
    attention_factor_ = static_cast<float>(config.attention_factor);
  }
}

void RopeTable::fill(std::span<const int32_t> positions, const Tensor& cos, const Tensor& sin) const {
  const auto half = static_cast<int64_t>(frequencies_.size());
  CHECK(cos.rows() == static_cast<int64_t>(positions.size()) && cos.row_size() == half && sin.row_size() == half);
  for (size_t i = 0; i < positions.size(); ++i) {
    float* c = cos.row<float>(static_cast<int64_t>(i));
    float* s = sin.row<float>(static_cast<int64_t>(i));
    for (size_t j = 0; j < frequencies_.size(); ++j) {
      const float angle = static_cast<float>(positions[i]) * frequencies_[j];
      c[j] = std::cos(angle) * attention_factor_;
      s[j] = std::sin(angle) * attention_factor_;
    }
  }
}

}  // namespace vlcache
