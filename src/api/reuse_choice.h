// ReuseChoice: the meaning of --reuse for a model: whether it has a reuse plan, for which model and form of KV, and how
// well the plan's answers agreed.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/model_files.h"
#include "engine/request.h"
#include "reuse/image_kv_form.h"
#include "reuse/reuse_plan.h"

namespace vlcache {

// Throws Error(kInput) unless it is auto, off, exact, or a chooser (parse_reuse_chooser).
void check_reuse(std::string_view how);

struct ReuseFlags {
  std::string how = "auto";
  std::string plan;          // empty: reuse_plan.json beside the model
  double margin = 0.01;      // GateRule::margin: what `auto` lets reuse change beyond the noise floor
  std::string former_bound;  // --reuse-bound, an error that names --reuse-margin
  bool keep_exact = false;   // --cache-exact
  std::string origin = "first";
};

class ReuseChoice {
 public:
  // Reads the plan if there is one. Throws Error(kInput) for a plan that was named and cannot be used. `form`: of the
  // KV to be reused.
  ReuseChoice(const ReuseFlags& flags, const ModelFiles& model, const ImageKvForm& form);

  // For a prompt with that many images.
  ReuseOptions options(std::string_view how, size_t n_images) const;
  // What was measured of answers under --reuse and what follows from it, in lines; "": images are not reused.
  std::string explanation() const;

 private:
  std::string how_;
  GateRule rule_;
  bool keep_exact_;
  ReuseOrigin origin_;
  std::string form_;
  std::optional<ReusePlan> plan_;
  PlanVerdict verdict_;   // of the plan
  std::string why_none_;  // why there is no plan
};

}  // namespace vlcache
