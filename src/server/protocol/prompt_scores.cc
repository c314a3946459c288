#include "server/protocol/prompt_scores.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace vlcache {

void PromptScores::add(int32_t first, const Tensor& logits) {
  scores_.resize(std::max(scores_.size(), tokens_.size()));
  const auto vocab = static_cast<size_t>(logits.row_size());
  std::vector<int32_t> order(vocab);
  for (int64_t row = 0; row < logits.rows(); ++row) {
    const auto next = static_cast<size_t>(first + row + 1);
    if (next >= tokens_.size()) continue;
    const float* x = logits.row<float>(row);
    const float best = *std::max_element(x, x + vocab);
    double sum = 0;
    for (size_t i = 0; i < vocab; ++i) sum += std::exp(static_cast<double>(x[i] - best));
    const double norm = best + std::log(sum);
    const auto token = static_cast<size_t>(tokens_[next]);
    const auto logprob = [&](size_t id) { return static_cast<float>(x[id] - norm); };
    Score& score = scores_[next];
    score.token = {.id = tokens_[next], .logprob = logprob(token), .top = {}};
    score.rank = 1 + static_cast<int32_t>(std::count_if(x, x + vocab, [&](float y) { return y > x[token]; }));
    std::iota(order.begin(), order.end(), 0);
    const auto n_top = std::min<size_t>(static_cast<size_t>(std::max(n_top_, 0)), vocab);
    std::partial_sort(order.begin(), order.begin() + static_cast<int64_t>(n_top), order.end(),
                      [&](int32_t a, int32_t b) { return x[a] != x[b] ? x[a] > x[b] : a < b; });
    for (size_t k = 0; k < n_top; ++k) score.token.top.push_back({order[k], logprob(static_cast<size_t>(order[k]))});
  }
}

std::vector<PromptScores::Score> PromptScores::scores() const {
  std::vector<Score> all = scores_;
  all.resize(tokens_.size());
  for (size_t i = 0; i < all.size(); ++i) all[i].token.id = tokens_[i];
  return all;
}

}  // namespace vlcache
