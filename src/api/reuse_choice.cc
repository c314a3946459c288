// The gate: exact reuse always, approximate reuse where it was measured or requested.
#include "api/reuse_choice.h"

#include "base/error.h"
#include "base/json.h"

namespace vlcache {
namespace {

bool is_word(std::string_view how) { return how == "auto" || how == "off" || how == "exact"; }

}  // namespace

void check_reuse(std::string_view how) {
  if (!is_word(how)) parse_reuse_chooser(how);
}

ReuseChoice::ReuseChoice(const ReuseFlags& flags, const ModelFiles& model, const ImageKvForm& form)
    : how_(flags.how),
      rule_{.margin = flags.margin},
      keep_exact_(flags.keep_exact),
      origin_(flags.origin == "neutral" ? ReuseOrigin::kNeutral : ReuseOrigin::kFirst),
      form_(form.name()) {
  check_reuse(how_);
  const std::filesystem::path path =
      flags.plan.empty() ? model.companion(kReusePlanName) : std::filesystem::path(flags.plan);
  try {
    plan_ = parse_reuse_plan(read_text_file(path), path.string());
    verdict_ = judge(*plan_, rule_);
    if (plan_->model != model.fingerprint()) {
      throw Error(ErrorCode::kInput, path.string() + ": a plan for another model than " + model.where());
    }
  } catch (const Error& e) {
    if (!flags.plan.empty()) throw;
    why_none_ = e.code() == ErrorCode::kNotFound ? "there is no " + path.string() : e.what();
    plan_.reset();
  }
}

ReuseOptions ReuseChoice::options(std::string_view how, size_t n_images) const {
  if (how == "off") return {.encoder = false, .chooser = nullptr};
  ReuseOptions options{.prefix = true, .keep_exact = keep_exact_, .chooser = nullptr, .origin = origin_};
  if (how == "exact") return options;
  if (how == "auto") {
    if (!plan_ || plan_->form != form_) return options;
    switch (verdict_.use(n_images)) {
      case PlanVerdict::Use::kNothing:
        return options;
      case PlanVerdict::Use::kPlan:
        options.chooser = planned_chooser(*plan_);
        break;
      case PlanVerdict::Use::kLooking:
        options.chooser = parse_reuse_chooser(plan_->looking);
        break;
    }
    options.one_image_only = n_images <= 1 && verdict_.use(2) != PlanVerdict::Use::kPlan;
    return options;
  }
  options.chooser = how == "vlcache" && plan_ ? planned_chooser(*plan_) : parse_reuse_chooser(how);
  options.required = true;
  return options;
}

std::string ReuseChoice::explanation() const {
  if (how_ == "off" || how_ == "exact") return "";
  const std::string remedy = "`vlcache tune reuse` measures one",
                    exact = "images are reused only where that is exact: ";
  const bool fits = plan_ && plan_->form == form_;
  if (how_ == "auto") {
    if (!plan_) return exact + why_none_ + " (" + remedy + ")\n";
    if (fits) return verdict_words(*plan_, rule_);
    return exact + "the plan was measured with KV that is kept as " + plan_->form + ", here it is " + form_ + " (" +
           remedy + "; a chooser that is named is followed)\n";
  }
  if (how_ != "vlcache" || !fits) {
    return "--reuse " + how_ + ": nothing was measured of how answers change (" + remedy + ")\n";
  }
  return "--reuse vlcache: by the plan, one image: " + evidence_words(plan_->one, verdict_.one, rule_) +
         "; several: " + evidence_words(plan_->several, verdict_.several, rule_) + "\n";
}

}  // namespace vlcache
