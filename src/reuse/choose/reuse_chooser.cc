// The choosers that need no preview.
#include "reuse/choose/reuse_chooser.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/error.h"
#include "base/nearest.h"
#include "policy/parameters.h"
#include "reuse/choose/looking_choosers.h"

namespace vlcache {
namespace {

constexpr double kMeanShare = 0.025;  // middle of the paper's 2 to 5 % (arXiv:2512.12977)
constexpr int64_t kFirstTokens = 32;  // from arXiv:2502.01960's experiments

// VLCache (arXiv:2512.12977): the first tokens of an image, fewer from layer to layer. Without a measured plan, shares
// fall linearly: from 2 r before the first layer to 0 after the last; if 2 r exceeds 1, from 1 to 2 r - 1.
class VlcacheSchedule final : public ReuseChooser {
 public:
  explicit VlcacheSchedule(Parameters& p) : r_(p.number("r", kMeanShare, 0, 1)), name_(p.resolved()) {}

  std::string name() const override { return name_; }
  RecomputePlan plan(int32_t n_layers, int32_t) const override {
    const double slope = 2 * std::min(r_, 1 - r_);
    std::vector<double> shares;
    for (int32_t i = 0; i < n_layers; ++i) {
      shares.push_back(std::clamp(r_ + slope * (0.5 - (i + 0.5) / n_layers), 0.0, 1.0));
    }
    return RecomputePlan(std::move(shares));
  }

 private:
  double r_;
  std::string name_;
};

// The same share in every layer.
class SameShare final : public ReuseChooser {
 public:
  explicit SameShare(Parameters& p) : r_(p.number("r", kMeanShare, 0, 1)), name_(p.resolved()) {}

  std::string name() const override { return name_; }
  RecomputePlan plan(int32_t n_layers, int32_t) const override { return RecomputePlan::uniform(n_layers, r_); }

 private:
  double r_;
  std::string name_;
};

// MPIC (arXiv:2502.01960): the first k tokens of every image, in all layers.
class FirstTokens final : public ReuseChooser {
 public:
  explicit FirstTokens(Parameters& p) : k_(p.integer("k", kFirstTokens, 0)), name_(p.resolved()) {}

  std::string name() const override { return name_; }
  RecomputePlan plan(int32_t n_layers, int32_t n_tokens) const override {
    return RecomputePlan::uniform(n_layers, std::min(1.0, static_cast<double>(k_) / std::max(1, n_tokens)));
  }

 private:
  int64_t k_;
  std::string name_;
};

template <typename Chooser>
ReuseChooserPtr make(Parameters& p) {
  return std::make_shared<Chooser>(p);
}

struct Known {
  const char* name;
  ReuseChooserPtr (*make)(Parameters&);
};
constexpr std::array kChoosers{Known{"vlcache", make<VlcacheSchedule>}, Known{"static", make<SameShare>},
                               Known{"mpic", make<FirstTokens>},        Known{"cacheblend", make_cacheblend},
                               Known{"kvshare", make_kvshare},          Known{"asked", make_asked}};

}  // namespace

std::vector<double> ReuseChooser::sum_scores(const PreviewScores& seen, int power) {
  const size_t n = seen.images.size();
  std::vector<double> sums(n, 0);
  for (const std::vector<float>& layer : seen.layers) {
    for (size_t i = 0; i < layer.size(); ++i) {
      const double score = layer[i];
      sums[i % n] += power == 2 ? score * score : score;
    }
  }
  return sums;
}

ReuseChooserPtr parse_reuse_chooser(std::string_view text) {
  Parameters p = Parameters::parse(text);
  const auto known = std::ranges::find(kChoosers, p.name(), &Known::name);
  if (known == kChoosers.end()) {
    std::vector<std::string> names;
    std::string list;
    for (const Known& k : kChoosers) {
      names.emplace_back(k.name);
      list += (list.empty() ? "" : ", ") + names.back();
    }
    throw Error(ErrorCode::kInput,
                "unknown chooser of reuse '" + p.name() + "'" + did_you_mean(p.name(), names) + "; known are " + list);
  }
  ReuseChooserPtr chooser = known->make(p);
  p.reject_unknown();
  return chooser;
}

}  // namespace vlcache
