#include "model/rope.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "base/error.h"

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

// M-RoPE's sections deal the frequencies to t, h and w: one section after the other (Qwen2-VL), or interleaved, h and w
// as long as their sections reach and t the rest (Qwen3-VL).
std::vector<RopeAxis> rope_axes(const RopeConfig& config, int64_t n) {
  const std::array<int64_t, 3>& sections = config.sections;
  std::vector<RopeAxis> axes(static_cast<size_t>(n), RopeAxis::kT);
  for (int64_t j = 0; config.multimodal() && j < n; ++j) {
    RopeAxis& axis = axes[static_cast<size_t>(j)];
    if (!config.interleaved) {
      axis = j < sections[0] ? RopeAxis::kT : j < sections[0] + sections[1] ? RopeAxis::kH : RopeAxis::kW;
    } else if (j % 3 == 1 && j < 3 * sections[1]) {
      axis = RopeAxis::kH;
    } else if (j % 3 == 2 && j < 3 * sections[2]) {
      axis = RopeAxis::kW;
    }
  }
  return axes;
}

}  // namespace

RopeTable::RopeTable(const RopeConfig& config, int64_t head_dim)
    : frequencies_(static_cast<size_t>(head_dim / 2)), axes_(rope_axes(config, head_dim / 2)) {
  if (config.type == RopeType::kNone) return;  // frequencies of 0
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

void RopeTable::fill(std::span<const Position> positions, const Tensor& cos, const Tensor& sin) const {
  const auto half = static_cast<int64_t>(frequencies_.size());
  CHECK(cos.rows() == static_cast<int64_t>(positions.size()) && cos.row_size() == half && sin.row_size() == half);
  for (size_t i = 0; i < positions.size(); ++i) {
    float* c = cos.row<float>(static_cast<int64_t>(i));
    float* s = sin.row<float>(static_cast<int64_t>(i));
    for (size_t j = 0; j < frequencies_.size(); ++j) {
      const float angle = static_cast<float>(component(positions[i], axes_[j])) * frequencies_[j];
      c[j] = std::cos(angle) * attention_factor_;
      s[j] = std::sin(angle) * attention_factor_;
    }
  }
}

RopeTables::RopeTables(const TextConfig& text) {
  // A kind's layers have one head size: the first of them tells it.
  for (int32_t kind = 0; kind < std::ssize(text.ropes); ++kind) {
    const auto layer = std::ranges::find(text.layers, kind, &TextLayer::rope);
    CHECK(layer != text.layers.end());
    tables_.emplace_back(text.ropes[static_cast<size_t>(kind)], layer->head_dim);
  }
  for (const TextLayer& layer : text.layers) index_.push_back(layer.rope);
}

}  // namespace vlcache
