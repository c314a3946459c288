// The gate: exact reuse always, approximate reuse where it was measured or requested.
#include "api/reuse_choice.h"

#include "base/error.h"
#include "base/format.h"
#include "base/json.h"

namespace vlcache {
namespace {

bool is_word(std::string_view how) { return how == "auto" || how == "off" || how == "exact"; }

std::string found(const ReuseAgreement& a) { return format("%d of %d", a.n_equal, a.n_cases); }

}  // namespace

void check_reuse(std::string_view how) {
  if (!is_word(how)) parse_reuse_chooser(how);
}

ReuseChoice::ReuseChoice(const ReuseFlags& flags, const ModelFiles& model, const ImageKvForm& form)
    : how_(flags.how),
      bound_(flags.bound),
      keep_exact_(flags.keep_exact),
      origin_(flags.origin == "neutral" ? ReuseOrigin::kNeutral : ReuseOrigin::kFirst),
      form_(form.name()) {
  check_reuse(how_);
  const std::filesystem::path path =
      flags.plan.empty() ? model.companion(kReusePlanName) : std::filesystem::path(flags.plan);
  try {
    plan_ = parse_reuse_plan(read_text_file(path), path.string());
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
    if (!plan_ || plan_->form != form_ || !holds(plan_->one)) return options;
    const bool looks = n_images > 1 && !holds(plan_->several) && holds(plan_->several_looking);
    options.chooser = looks ? parse_reuse_chooser(plan_->looking) : planned_chooser(*plan_);
    options.one_image_only = !looks && !holds(plan_->several);
    return options;
  }
  options.chooser = how == "vlcache" && plan_ ? planned_chooser(*plan_) : parse_reuse_chooser(how);
  options.required = true;
  return options;
}

std::string ReuseChoice::warning() const {
  if (how_ == "off" || how_ == "exact") return "";
  const std::string remedy = "`vlcache tune reuse` measures one";
  if (how_ == "auto") {
    if (!plan_) return "pictures are reused only as far as that is exact: " + why_none_ + " (" + remedy + ")";
    if (plan_->form != form_) {
      return "pictures are reused only as far as that is exact: the plan was measured with KV that is kept as " +
             plan_->form + ", here it is " + form_ + " (" + remedy + "; a chooser that is named is followed)";
    }
    if (holds(plan_->one)) return "";
    return "pictures are reused only as far as that is exact: under the plan " + found(plan_->one) +
           " answers were those of computing everything, below the bound of " + format("%g", bound_);
  }
  if (how_ == "vlcache" && plan_ && plan_->form == form_) {
    return "--reuse vlcache: under its plan " + found(plan_->one) + " answers about one picture and " +
           found(plan_->several) + " about several were those of computing everything";
  }
  return "--reuse " + how_ + ": nothing was measured of how answers change (" + remedy + ")";
}

}  // namespace vlcache
