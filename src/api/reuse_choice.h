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
  std::string plan;         // empty: reuse_plan.json beside the model
  double bound = 0.99;      // `auto` follows a plan from this share of equal answers on
  bool keep_exact = false;  // --cache-exact
  std::string origin = "first";
};

class ReuseChoice {
 public:
  // Reads the plan if there is one. Throws Error(kInput) for a plan that was named and cannot be used. `form`: of the
  // KV to be reused.
  ReuseChoice(const ReuseFlags& flags, const ModelFiles& model, const ImageKvForm& form);

  // For a prompt with that many images.
  ReuseOptions options(std::string_view how, size_t n_images) const;
  // What to know about answers under --reuse, in a line; "": nothing.
  std::string warning() const;

 private:
  bool holds(const ReuseAgreement& a) const { return a.n_cases > 0 && a.share() >= bound_; }

  std::string how_;
  double bound_;
  bool keep_exact_;
  ReuseOrigin origin_;
  std::string form_;
  std::optional<ReusePlan> plan_;
  std::string why_none_;  // why there is no plan
};

}  // namespace vlcache
