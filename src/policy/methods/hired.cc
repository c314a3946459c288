// hired (HiRED): drops image tokens before the language model sees any, by the attention of the encoder's class token,
// summed over heads. Of an image that was split, `alpha` of the budget goes to the overview, the rest to the tiles in
// proportion to how many of the overview's strongest 1 - alpha patches, by layer `early`, lie in each; of a tile those
// patches stay that layer `late` attends to most, and a newline with a line that keeps a patch. The text stays, inside
// the budget. Source: arXiv:2408.10945. Its code (hasanar1f/HiRED) counts the strong patches in runs of the overview's
// rows instead of where the tiles lie, rounds each tile's budget down, and leaves all newlines out.
#include <algorithm>
#include <functional>
#include <utility>

#include "base/at.h"
#include "base/error.h"
#include "policy/registry.h"

namespace vlcache {
namespace {

// The choice for one image: its patches by tile, the best first.
class ImageChoice {
 public:
  ImageChoice(const ImageTokens& image, double alpha)
      : image_(image), alpha_(alpha), ranked_(at(image.n_tiles)), newline_(image.tile.size(), -1) {
    int32_t line = 0;  // its first token
    for (int32_t i = 0; i < image.n_tokens(); ++i) {
      const int32_t tile = image.tile[at(i)];
      if (tile != ImageTokens::kNewline) {
        ranked_[at(tile)].push_back(i);
        ++n_patches_;
        if (tile == image.overview) line = i + 1;
        continue;
      }
      std::fill(newline_.begin() + line, newline_.begin() + i, i);
      line = i + 1;
    }
    for (std::vector<int32_t>& tile : ranked_) sort_by(image.attention[1], tile);
    strong_.assign(ranked_.size(), 0.0);
    if (image.overview < 0) return;
    std::vector<int32_t> strongest = ranked_[at(image.overview)];
    sort_by(image.attention[0], strongest);
    strongest.resize(static_cast<size_t>(static_cast<double>(strongest.size()) * (1 - alpha)));
    for (const int32_t i : strongest) {
      if (image.larger[at(i)] >= 0) strong_[at(image.larger[at(i)])] += 1;
    }
  }

  // The n tokens that stay, ascending; one less if only a patch with its newline is left.
  std::vector<int32_t> keep(int32_t n) {
    int32_t n_patches = std::min(n, n_patches_);
    while (take(n_patches) > n) --n_patches;
    // The remainder, less than a patch and its newline, goes to the best patches that need no newline.
    std::vector<int32_t> rest, kept;
    for (int32_t i = 0; i < image_.n_tokens(); ++i) {
      if (!taken_[at(i)] && image_.tile[at(i)] != ImageTokens::kNewline && !needs_newline(i)) rest.push_back(i);
    }
    sort_by(image_.attention[1], rest);
    rest.resize(std::min(rest.size(), at(n - static_cast<int32_t>(std::ranges::count(taken_, true)))));
    for (const int32_t i : rest) taken_[at(i)] = true;
    for (int32_t i = 0; i < image_.n_tokens(); ++i) {
      if (taken_[at(i)]) kept.push_back(i);
    }
    return kept;
  }

 private:
  // The largest first, of equals the later.
  static void sort_by(const std::vector<float>& values, std::vector<int32_t>& tokens) {
    std::ranges::sort(tokens, std::greater(), [&](int32_t i) { return std::pair(values[at(i)], i); });
  }
  bool needs_newline(int32_t i) const { return newline_[at(i)] >= 0 && !taken_[at(newline_[at(i)])]; }

  // Takes n patches and the newlines they need; returns the number of these tokens.
  int32_t take(int32_t n) {
    std::vector<int32_t> most, least(ranked_.size(), 0);
    for (const std::vector<int32_t>& tile : ranked_) most.push_back(static_cast<int32_t>(tile.size()));
    int32_t n_overview = 0;
    if (image_.overview >= 0) {
      const int32_t room = std::exchange(most[at(image_.overview)], 0);
      n_overview = std::max(std::min(static_cast<int32_t>(n * alpha_), room), n - (n_patches_ - room));
    }
    std::vector<int32_t> counts = deal(strong_, least, most, n - n_overview);
    if (image_.overview >= 0) counts[at(image_.overview)] = n_overview;
    taken_.assign(image_.tile.size(), false);
    int32_t n_taken = n;
    for (size_t tile = 0; tile < ranked_.size(); ++tile) {
      for (const int32_t i : std::span(ranked_[tile]).first(at(counts[tile]))) {
        taken_[at(i)] = true;
        if (!needs_newline(i)) continue;
        taken_[at(newline_[at(i)])] = true;
        ++n_taken;
      }
    }
    return n_taken;
  }

  const ImageTokens& image_;
  double alpha_;
  std::vector<std::vector<int32_t>> ranked_;  // [tile]
  std::vector<int32_t> newline_;              // [token] the newline that ends its line; -1: none does
  std::vector<double> strong_;                // [tile] number of the overview's strongest patches that it shows larger
  std::vector<bool> taken_;                   // [token]
  int32_t n_patches_ = 0;
};

class Hired final : public Policy {
 public:
  Hired(Parameters& p, const MethodParts& parts)
      : name_(p.resolved()), alpha_(p.number("alpha", 0.5, 0, 1)), budget_(parts.budget.value_or(KvBudget())) {
    for (const auto& [layer, fallback] : {std::pair("early", 0), std::pair("late", -1)}) {
      layers_.push_back(static_cast<int32_t>(p.integer(layer, fallback, INT32_MIN)));
    }
  }
  std::string name() const override { return name_; }
  std::vector<int32_t> vision_layers() const override { return layers_; }
  int32_t n_seen(const PromptShape& prompt) const override {
    return prompt.n_vision > 0 ? tokens_of(budget_, prompt.n_tokens) : prompt.n_tokens;
  }

  std::vector<std::vector<int32_t>> select(std::span<const ImageTokens> images, const PromptShape& prompt,
                                           int32_t n_earlier) const override {
    std::vector<int32_t> most;
    for (const ImageTokens& image : images) most.push_back(image.n_tokens());
    const int32_t k = n_seen(prompt), n_fixed = prompt.n_tokens - prompt.n_vision + n_earlier;
    const int32_t least_k = n_fixed + static_cast<int32_t>(images.size());
    if (!images.empty() && k < least_k) {
      throw Error(ErrorCode::kInput,
                  "hired: the KV budget is " + std::to_string(k) + " of " + std::to_string(prompt.n_tokens) +
                      " tokens, but " + std::to_string(n_fixed) +
                      " are text or chosen before, and each image keeps one: the least possible is " +
                      std::to_string(least_k) + " tokens");
    }
    const std::vector<int32_t> counts =
        deal(std::vector<double>(most.begin(), most.end()), std::vector<int32_t>(most.size(), 1), most, k - n_fixed);
    std::vector<std::vector<int32_t>> kept;
    for (size_t i = 0; i < images.size(); ++i) kept.push_back(ImageChoice(images[i], alpha_).keep(counts[i]));
    return kept;
  }

 private:
  std::string name_;
  double alpha_;
  std::vector<int32_t> layers_;  // early, late
  KvBudget budget_;
};

}  // namespace

PolicyPtr make_hired(Parameters& p, MethodParts parts) { return std::make_shared<Hired>(p, parts); }

}  // namespace vlcache
