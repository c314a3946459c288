// What --reuse means for a model: whether a plan lies beside it, whose it is, and how well it has held.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "engine/request.h"
#include "reuse/image_kv_form.h"
#include "reuse/reuse_plan.h"

namespace vlcache {

// Throws Error(kInput) unless it is auto, off, exact, or a chooser (parse_reuse_chooser).
void check_reuse(std::string_view how);

struct ReuseFlags {
  std::string how = "auto";
  std::string plan;         // empty: reuse_plan.json in the model's folder
  double bound = 0.99;      // share of equal answers from which on `auto` follows a plan
  bool keep_exact = false;  // --cache-exact
  std::string origin = "first";
};

class ReuseChoice {
 public:
  // Reads the plan if there is one. Throws Error(kInput) for a plan that was named and cannot be used.
  // `form` is that of the KV that would be reused.
  ReuseChoice(const ReuseFlags& flags, const std::filesystem::path& model_dir, const ImageKvForm& form);

  // For a prompt with so many images.
  ReuseOptions options(std::string_view how, size_t n_images) const;
  // What is to be known about the answers under --reuse, a line; "": nothing.
  std::string warning() const;

 private:
  bool holds(const ReuseAgreement& a) const { return a.n_cases > 0 && a.share() >= bound_; }

  std::string how_;
  double bound_;
  bool keep_exact_;
  ReuseOrigin origin_;
  std::string form_;
  std::optional<ReusePlan> plan_;
  std::string why_none_;  // there is no plan
};

}  // namespace vlcache
