// The gate: exact reuse always, approximate reuse where it was measured or requested.
#include "api/reuse_choice.h"

#include <cmath>
#include <span>

#include "base/error.h"
#include "base/json.h"
#include "engine/engine.h"

namespace vlcache {
namespace {

constexpr size_t kNameDigits = 16;  // of a file of counts

bool is_word(std::string_view how) { return how == "auto" || how == "off" || how == "exact"; }

std::string remedy_for(KvCodec codec) {
  return "`vlcache tune reuse --kv-codec " + std::string(kv_codec_name(codec)) + "` measures one";
}

std::string digest_of(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.add(bytes);
  return hex(hash.finish());
}

}  // namespace

void check_reuse(std::string_view how) {
  if (!is_word(how)) parse_reuse_chooser(how);
}

ReuseChoice::ReuseChoice(const ReuseFlags& flags, const ModelFiles& model, const ImageKvForm& form,
                         const std::function<AnsweringForm()>& answering)
    : how_(flags.how),
      rule_{.margin = flags.margin},
      keep_exact_(flags.keep_exact),
      origin_(flags.origin == "neutral" ? ReuseOrigin::kNeutral : ReuseOrigin::kFirst),
      form_(form.name()),
      shadow_(flags.shadow) {
  check_reuse(how_);
  const std::filesystem::path path =
      flags.plan.empty() ? model.companion(kReusePlanName) : std::filesystem::path(flags.plan);
  try {
    plan_ = parse_reuse_plan(read_text_file(path), path.string());
    verdict_ = judge(*plan_, rule_);
    if (plan_->model != model.fingerprint()) {
      throw Error(ErrorCode::kInput, path.string() + ": a plan for another model than " + model.where());
    }
    const AnsweringForm own = answering();
    if (plan_->weights != own.weights) {
      throw Error(ErrorCode::kInput, path.string() + ": the plan was measured with other weights (" + plan_->weights +
                                         ") than these (" + own.weights + ")");
    }
    codec_ = own.kv_codec;
    plan_codec_ = plan_->kv_codec.value_or(own.values);
    if (!flags.plan.empty() && plan_codec_ != codec_) {
      throw Error(ErrorCode::kInput, path.string() + ": " + other_codec_text(codec_) + "; " + remedy_for(codec_));
    }
  } catch (const Error& e) {
    if (!flags.plan.empty()) throw;
    why_none_ = e.code() == ErrorCode::kNotFound ? "there is no " + path.string() : e.what();
    plan_.reset();
  }
}

bool ReuseChoice::decides(KvCodec codec) const {
  return has_plan(codec) && verdict_.one.answer != GateVerdict::Answer::kNotEnough &&
         verdict_.several.answer != GateVerdict::Answer::kNotEnough;
}

// Of requests with the codec, which is not the plan's.
std::string ReuseChoice::other_codec_text(KvCodec codec) const {
  return "the plan was measured with KV codec " + std::string(kv_codec_name(plan_codec_)) + ", here it is " +
         std::string(kv_codec_name(codec));
}

void ReuseChoice::open_counts(const Engine& engine, const std::filesystem::path& folder, bool compares) {
  codec_ = engine.kv_codec();
  const ImageKvForm& form = engine.options().cache_form;
  const bool measurable = engine.model().config().vision && form.keeps_all() && origin_ == ReuseOrigin::kFirst;
  const bool of_use = compares || !folder.empty();
  if (how_ != "auto" || !measurable || !of_use || shadow_ == 0) return;
  counts_ = std::make_unique<ReuseCountsByCodec>(
      [this, &engine, folder](KvCodec codec) { return make_counts(engine, folder, codec); });
  if (!decides(codec_)) counts_->of(codec_);
  compares_ = compares;
}

// Where a plan's evidence was not enough, its shares are measured further, else the documented schedule's.
std::unique_ptr<ReuseCounts> ReuseChoice::make_counts(const Engine& engine, const std::filesystem::path& folder,
                                                      KvCodec codec) const {
  const std::vector<double> schedule =
      parse_reuse_chooser("vlcache")->plan(engine.kv_shape().n_layers(), /*n_tokens=*/1).shares();
  const ReusePlan counted{.model = digest_of(std::as_bytes(std::span(engine.model().fingerprint()))),
                          .form = form_,
                          .kv_codec = codec == value_codec(engine.model()) ? std::nullopt : std::optional(codec),
                          .shares = has_plan(codec) ? plan_->shares : schedule,
                          .one = {},
                          .several = {},
                          .looking = {},
                          .several_looking = {}};
  const std::string identity = reuse_plan_json(counted);
  const std::filesystem::path file =
      folder.empty()
          ? folder
          : folder / ("reuse-" + digest_of(std::as_bytes(std::span(identity))).substr(0, kNameDigits) + ".json");
  return std::make_unique<ReuseCounts>(counted, rule_, file);
}

// By what was counted so far: reused, or computed and recorded for later requests; and compared, each of them until
// the verdict is in.
ReuseOptions ReuseChoice::counted_options(ReuseOptions exact, size_t n_images, KvCodec codec) const {
  ReuseOptions options = std::move(exact);
  if (counts_ == nullptr) return options;
  ReuseCounts& counts = counts_->of(codec);
  if (counts.permits(n_images)) {
    options.chooser = counts.chooser();
    options.one_image_only = n_images <= 1 && !counts.permits(2);
  } else if (compares_) {
    options.measured = counts.chooser();
  }
  if (!compares_ || n_images == 0) return options;
  options.compared = counts.undecided(n_images);
  if (!options.compared) {
    const auto n = static_cast<double>(n_comparable_++);
    options.compared = std::floor((n + 1) * shadow_) > std::floor(n * shadow_);
  }
  return options;
}

ReuseOptions ReuseChoice::options(std::string_view how, size_t n_images, KvCodec codec) const {
  if (how == "off") return {.encoder = false, .chooser = nullptr};
  ReuseOptions options{.prefix = true, .keep_exact = keep_exact_, .chooser = nullptr, .origin = origin_};
  if (how == "exact") return options;
  if (how == "auto") {
    const GateVerdict& kind = n_images > 1 ? verdict_.several : verdict_.one;
    if (plan_ && plan_codec_ != codec) options.why_exact = other_codec_text(codec);
    if (!has_plan(codec)) return counted_options(options, n_images, codec);
    switch (verdict_.use(n_images)) {
      case PlanVerdict::Use::kNothing:
        return kind.answer == GateVerdict::Answer::kNotEnough ? counted_options(options, n_images, codec) : options;
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

// Whether requests that name no codec have said something of reuse, or will.
bool ReuseChoice::counts_speak() const {
  if (counts_ == nullptr) return false;
  if (decides(codec_)) return false;
  const ReuseCounts::State counted = counts_->of(codec_).state();
  return compares_ || counted.one.evidence.answers.n + counted.several.evidence.answers.n > 0;
}

std::string ReuseChoice::in_short() const {
  if (how_ != "auto" || !has_plan(codec_) || counts_speak()) return explanation();
  const auto on = [&](size_t n_images) { return verdict_.use(n_images) == PlanVerdict::Use::kNothing ? "off" : "on"; };
  return std::string("reuse: ") + on(1) + " for one image in a prompt, " + on(2) +
         " for several (`vlcache info -m DIR` shows what was measured)\n";
}

std::string ReuseChoice::explanation() const {
  if (how_ == "off" || how_ == "exact") return "";
  const std::string remedy = "`vlcache tune reuse` measures one",
                    exact = "images are reused only where that is exact: ";
  const bool fits = has_plan(codec_);
  if (how_ == "auto") {
    if (counts_speak()) {
      const ReuseCounts::State counted = counts_->of(codec_).state();
      return "images are reused where requests have shown that answers stay the same: one image in a prompt: " +
             words(counted.one) + "; several: " + words(counted.several) + "\n";
    }
    if (!plan_) return exact + why_none_ + " (" + remedy + ")\n";
    if (fits) return verdict_words(*plan_, rule_);
    if (plan_codec_ != codec_) return exact + other_codec_text(codec_) + " (" + remedy_for(codec_) + ")\n";
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
