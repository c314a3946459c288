// ReusePlan (reuse_plan.json): how much of a reused image each layer of a model recomputes, as `tune reuse` has
// measured it, and how often the answers then equal those of full computation.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "reuse/reuse_chooser.h"

namespace vlcache {

inline constexpr std::string_view kReusePlanName = "reuse_plan.json";  // beside a model

// Answers under a plan compared with full computation.
struct ReuseAgreement {
  int32_t n_cases = 0;
  int32_t n_equal = 0;  // token for token
  double kl = 0;        // mean divergence along the answers of full computation, nats per token
  double share() const { return n_cases == 0 ? 0 : static_cast<double>(n_equal) / n_cases; }
};

struct ReusePlan {
  std::string model;           // ModelFiles::fingerprint
  std::string form = "exact";  // ImageKvForm::name of the KV that was reused
  std::vector<double> shares;  // [n_layers], never rising
  ReuseAgreement one;          // for prompts with one image
  ReuseAgreement several;      // for prompts with more
  // A chooser with a preview, besides the plan, for prompts with several images, whose relations no plan can know:
  // "asked:r=0.15"; "": not measured.
  std::string looking;
  ReuseAgreement several_looking;
};

// Throws Error(kInput) naming `where` for any text that reuse_plan_json did not write.
ReusePlan parse_reuse_plan(std::string_view text, std::string_view where);
std::string reuse_plan_json(const ReusePlan& plan);

// The chooser `vlcache` with that plan. Its plan() throws Error(kInput) for a model with another number of layers.
ReuseChooserPtr planned_chooser(const ReusePlan& plan);

// What a layer's recomputation gains: S_i(r) of arXiv:2512.12977.
struct ReuseSensitivity {
  std::vector<double> levels;             // shares, ascending from 0, multiples of 0.01
  std::vector<std::vector<double>> loss;  // [n_layers][n_levels] of the logits if only that layer recomputes this share
};
// The level of each layer, never rising, with a mean share of at most `target`: by the paper's greedy rule (the step,
// shallower layers raised with it, that lowers the loss most for its share, or raises it least, until none fits), and
// the optimum, by dynamic programming.
std::vector<size_t> solve_greedily(const ReuseSensitivity& s, double target);
std::vector<size_t> solve_exactly(const ReuseSensitivity& s, double target);
// Sum of the layers' losses.
double plan_loss(const ReuseSensitivity& s, const std::vector<size_t>& levels);

}  // namespace vlcache
