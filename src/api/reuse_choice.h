// ReuseChoice: the meaning of --reuse for a model: whether it has a reuse plan, for which model and form of KV, and how
// well the plan's answers agreed.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/contracts/model_files.h"
#include "engine/request.h"
#include "reuse/evidence/reuse_counts.h"
#include "reuse/evidence/reuse_plan.h"
#include "reuse/image/image_kv_form.h"

namespace vlcache {

class Engine;

// Throws Error(kInput) unless it is auto, off, exact, or a chooser (parse_reuse_chooser).
void check_reuse(std::string_view how);

struct ReuseFlags {
  std::string how = "auto";
  std::string plan;          // empty: reuse_plan.json beside the model
  double margin = 0.01;      // GateRule::margin: what `auto` lets reuse change beyond the noise floor
  std::string former_bound;  // --reuse-bound, an error that names --reuse-margin
  bool keep_exact = false;   // --cache-exact
  std::string origin = "first";
  double shadow = 0.05;  // share of requests that are compared once the verdict is in; 0: none ever are
};

class ReuseChoice {
 public:
  // Reads the plan if there is one. Throws Error(kInput) for a plan that was named and cannot be used. `form`: of the
  // KV to be reused; `weights` returns Model::weights_form, and is called if there is a plan of this model: it reads
  // files.
  ReuseChoice(const ReuseFlags& flags, const ModelFiles& model, const ImageKvForm& form,
              const std::function<std::string()>& weights);

  // `auto` goes by what servers count while they run (ReuseCounts) where no plan decides: opens the counts of this
  // engine's model, in `folder` (--cache-disk), or in memory if that is empty. `compares`: this process counts, too.
  // Before any other thread uses this object.
  void open_counts(const Engine& engine, const std::filesystem::path& folder, bool compares);
  // Null: this process counts nothing.
  ReuseCounts* counts() const { return compares_ ? counts_.get() : nullptr; }

  // For a prompt with that many images.
  ReuseOptions options(std::string_view how, size_t n_images) const;
  // What was measured of answers under --reuse and what follows from it, in lines; "": images are not reused.
  std::string explanation() const;
  // The same in a line: of a plan that decides, without the counts.
  std::string in_short() const;

 private:
  bool counts_speak() const;
  bool has_plan() const { return plan_ && plan_->form == form_; }
  ReuseOptions counted_options(ReuseOptions exact, size_t n_images) const;

  std::string how_;
  GateRule rule_;
  bool keep_exact_;
  ReuseOrigin origin_;
  std::string form_;
  std::optional<ReusePlan> plan_;
  PlanVerdict verdict_;   // of the plan
  std::string why_none_;  // why there is no plan
  double shadow_;
  bool compares_ = false;
  std::unique_ptr<ReuseCounts> counts_;  // null: never opened
  // Requests that could be compared, since the verdict was in.
  mutable std::atomic<uint64_t> n_comparable_ = 0;
};

}  // namespace vlcache
