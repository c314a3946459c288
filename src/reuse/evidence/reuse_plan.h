// ReusePlan (reuse_plan.json): how much of a reused image each layer of a model recomputes, as `tune reuse` has
// measured it, and what was measured of the answers under it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/kv_codec_name.h"
#include "reuse/choose/reuse_chooser.h"
#include "reuse/evidence/reuse_gate.h"

namespace vlcache {

inline constexpr std::string_view kReusePlanName = "reuse_plan.json";  // beside a model

struct ReusePlan {
  std::string model;                // ModelFiles::fingerprint
  std::string form = "exact";       // ImageKvForm::name of the KV that was reused
  std::string weights = "dense";    // Model::weights_form of the model that answered
  std::optional<KvCodec> kv_codec;  // codec of its KV; none: values of the dtype that it computes in
  std::vector<double> shares;       // [n_layers], never rising
  ReuseEvidence one;                // for prompts with one image
  ReuseEvidence several;            // for prompts with more
  // A chooser with a preview, besides the plan, for prompts with several images, whose relations no plan can know:
  // "asked:r=0.15"; "": not measured.
  std::string looking;
  ReuseEvidence several_looking;
};

// What the gate permits under a plan.
struct PlanVerdict {
  enum class Use : uint8_t { kNothing, kPlan, kLooking };
  GateVerdict one, several, several_looking;
  Use use(size_t n_images) const;  // for a prompt with that many
};
PlanVerdict judge(const ReusePlan& plan, const GateRule& rule);
// The verdict and its reasons, a sentence for one image and one for several.
std::string verdict_words(const ReusePlan& plan, const GateRule& rule);

// Throws Error(kInput) naming `where` for any text that reuse_plan_json did not write. Files of earlier versions have
// no noise floor, which then counts as 0, no scores and no codec.
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
