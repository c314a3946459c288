#include "engine/reuse/image_placement.h"

#include <algorithm>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/engine_caches.h"
#include "reuse/choose/reuse_rules.h"
#include "reuse/image/image_keep.h"

namespace vlcache {
namespace {

using Source = CacheReport::Image::Source;

// Why a chooser or a policy cannot work with some of an image's tokens; "": they can.
std::string keep_obstacle(const ImageKvForm& form, const ReuseChooser& chooser, const Policy& policy,
                          const PromptShape& prompt) {
  if (form.keeps_all()) return "";
  if (chooser.preview(1).n_layers > 0) return chooser.name() + " looks at all tokens, and --cache-keep keeps some";
  const auto replays = [](const CaptureRequest& request) { return request.replay.piece > 0; };
  if (std::ranges::none_of(policy.needs(prompt), replays)) return "";
  return "KV policy " + policy.name() + " has all of a prompt repeated, and --cache-keep keeps some tokens";
}

Sha256Digest joined_digests(const Sha256Digest& a, const std::optional<Sha256Digest>& b) {
  if (!b) return a;
  Sha256 hash;
  hash.add(std::as_bytes(std::span(a)));
  hash.add(std::as_bytes(std::span(*b)));
  return hash.finish();
}

}  // namespace

std::string reuse_obstacle(const Policy& policy, const Prompt& prompt) {
  if (!policy.computes_as_full()) return "KV policy " + policy.name() + " computes prompts its own way";
  if (!prompt.query_aware) return "what is compressed before the question is known must be there by then";
  if (prompt.evict_every > 0) return "eviction while the prompt is computed needs it computed";
  const std::vector<CaptureRequest> needs = policy.needs(prompt.shape());
  if (std::ranges::any_of(needs, &CaptureRequest::needs_all_rows)) {
    return "KV policy " + policy.name() + " needs the attention of every prompt token";
  }
  return "";
}

KnownPrompt prompt_of(const Sequence& sequence) {
  const auto n = static_cast<size_t>(sequence.prompt_shape().n_tokens);
  return {sequence.tokens().first(n), sequence.images().list(), sequence.images().salt(), sequence.codec()};
}

Sha256Digest reused_content(const Engine& engine, const KnownPrompt& prompt, size_t image, const ReuseChooser& chooser,
                            int32_t n_tokens, const std::optional<Sha256Digest>& similar) {
  const int32_t n_layers = engine.kv_shape().n_layers();
  Sha256 hash;
  hash.add(std::as_bytes(std::span(prompt.images[image].key)));
  const std::string form = engine.options().cache_form.name();
  hash.add(std::as_bytes(std::span(form)));
  if (chooser.preview(n_layers).n_layers == 0) {
    const RecomputePlan plan = chooser.plan(n_layers, n_tokens);
    for (int32_t layer = 0; layer < n_layers; ++layer) hash.add(int64_t{plan.n_tokens(layer, n_tokens)});
    return joined_digests(hash.finish(), similar);
  }
  const std::string name = chooser.name();
  hash.add(std::as_bytes(std::span(name)));
  for (const TokenInfo& token : prompt.tokens) hash.add(int64_t{token.id});
  for (const PromptImage& other : prompt.images) {
    const Sha256Digest placed = placed_content(other, other.key);
    hash.add(std::as_bytes(std::span(placed)));
  }
  return joined_digests(hash.finish(), similar);
}

ImagePlacement::ImagePlacement(Engine& engine, Sequence& sequence, const Prompt& prompt, const ReuseOptions& options,
                               ImagesInTiers& stored, CacheReport& report)
    : engine_(engine),
      kv_(engine.caches().of(sequence.codec())),
      sequence_(sequence),
      images_(sequence.images().list()),
      reused_(engine.backend(), engine.model().ropes()),
      chooser_(options.chooser),
      kept_tokens_(options.kept_tokens),
      similar_(engine.model().config(), kv_, prompt, options),
      measures_(options.chooser == nullptr && options.measured != nullptr),
      leaves_traces_(!options.shadow),
      report_(report),
      stored_(stored),
      needs_embeddings_(prompt.images.size(), true) {
  if (prompt.images.empty()) return;
  if (measures_) chooser_ = options.measured;
  if (chooser_ == nullptr) {
    for (CacheReport::Image& image : report.images) {
      if (image.source != Source::kPrefix)
        image.reason = options.encoder ? "only what is exact is reused" : "reuse is off";
      if (image.source != Source::kPrefix && !options.why_exact.empty()) image.reason += ": " + options.why_exact;
    }
    return;
  }
  const Policy& policy = sequence.policy();
  std::string why_not = reuse_obstacle(policy, prompt);
  const bool plain = policy.computes_as_full();
  if (why_not.empty()) {
    why_not = keep_obstacle(engine.options().cache_form, *chooser_, policy, prompt.shape());
  }
  if (options.one_image_only && prompt.images.size() > 1) why_not = "the plan does not hold for several images";
  if (!why_not.empty() && options.required) {
    throw Error(ErrorCode::kInput, "reuse of images (" + chooser_->name() + "): " + why_not);
  }
  for (size_t i = 0; i < images_.size(); ++i) {
    CacheReport::Image& image = report.images[i];
    if (image.source == Source::kPrefix) continue;
    const bool whole = is_whole(prompt, i);
    const ReusedBefore* const before = reused_before(options, i);
    const bool stays_computed = options.resumed && before == nullptr;
    if (!whole) {
      if (image.reason.empty()) image.reason = "part of it is there already";  // else it was computed a moment ago
    } else if (!why_not.empty()) {
      image.reason = why_not;
    } else if (stays_computed) {
      image.reason = "it was computed before the request was preempted";
    } else if (measures_) {
      measure(i, image);
    } else if (options.shadow && std::ranges::find(options.shadow->images, i) == options.shadow->images.end()) {
      image.reason = "it was computed before";
    } else {
      place(i, image, before);
    }
    if (measures_ || !leaves_traces_) continue;
    if (image.loaded() || !whole || !plain || prompt.evict_every > 0) continue;
    if (kv_.image_kv().contains(image.key)) continue;
    if (why_not.empty() && halt_before(image.key)) {
      std::fill(needs_embeddings_.begin() + static_cast<ptrdiff_t>(i), needs_embeddings_.end(), false);
      break;
    }
    const bool neutral = options.origin == ReuseOrigin::kNeutral ||
                         (engine.options().cache_form.wants_repetition() && kept_tokens_ == nullptr);
    if (!neutral && reused_.empty() && sequence.exact()) {
      record(i, image);
    } else if (why_not.empty() && !stays_computed && could_be_kept(i, image)) {
      if (!stored_.loads.contains(i)) image.reason = "no exact origin";  // else what could not be loaded says why
      // Once more after preemption only where that gives the same KV.
      if (neutral || (before == nullptr && kv_.lacks_origin_again(image.key))) without_origin_.push_back(i);
    }
  }
  if (!reused_.empty()) begin_reuse();
}

ImagePlacement::~ImagePlacement() {
  if (preview_ != nullptr) sequence_.take_back_supplied();
  sequence_.forget_source();
  end_work();
}

void ImagePlacement::end_work() {
  for (const Sha256Digest& key : in_work_) kv_.images_in_work().erase(key);
  in_work_.clear();
}

bool ImagePlacement::is_whole(const Prompt& prompt, size_t image) const {
  return is_after_prefix({images_[image].begin(), images_[image].end()}, sequence_.n_done()) &&
         images_[image].whole(engine_.model().n_image_tokens(prompt.images[image]));
}

std::string ImagePlacement::place_obstacle(size_t image, const RecomputePlan& plan) const {
  const PromptImage& found = images_[image];
  if (ends_prompt({found.begin(), found.end()}, sequence_.n_tokens())) return "the prompt ends with it";
  const auto all = [&](int32_t layer) { return plan.n_tokens(layer, found.n_tokens) == found.n_tokens; };
  return all(plan.n_layers() - 1) ? "the plan computes all of it" : "";
}

// The image is computed: the prompt that could have reused it is compared later, or the first one records it.
void ImagePlacement::measure(size_t image, CacheReport::Image& report) {
  const PromptImage& found = images_[image];
  report.reason = "reuse is being measured";
  if (!place_obstacle(image, chooser_->plan(kv_.shape().n_layers(), found.n_tokens)).empty()) return;
  if (kv_.image_kv().contains(report.key)) {
    report.reusable = true;
  } else if (sequence_.exact() && !is_recorded(report.key)) {
    record(image, report);
  }
}

void ImagePlacement::place(size_t image, CacheReport::Image& report, const ReusedBefore* before) {
  const PromptImage& found = images_[image];
  const int32_t n_layers = kv_.shape().n_layers();
  const RecomputePlan plan = chooser_->plan(n_layers, found.n_tokens);
  report.reason = place_obstacle(image, plan);
  if (!report.reason.empty()) return;
  if (before != nullptr && before->similar) return place_similar(image, plan, report, before->similar);
  int64_t n_computed = 0;
  for (int32_t layer = 0; layer < n_layers; ++layer) n_computed += plan.n_tokens(layer, found.n_tokens);
  std::shared_ptr<const ImageKv> known = kv_.image_kv().find<ImageKv>(report.key);
  std::shared_ptr<ImageLoad> load;
  if (known == nullptr) {
    const LoadingImage* const stored = load_stored(image);
    if (stored == nullptr) {
      report.reason = stored_.tiers.answered(image) ? unknown_reason(report.key) : "tier lookup timed out";
      if (before != nullptr) {
        report.reason = "its KV was reused before the request was preempted, and was evicted since";
      } else {
        place_similar(image, plan, report, {});
      }
      return;
    }
    if (stored->state() == ImageLoad::State::kMissed) {
      report.reason = std::string(stored->load->tier()) + ": " + describe(stored->load->miss());
      return;
    }
    known = stored->kv;
    load = stored->load;
  }
  CHECK(known->n_tokens() == found.n_tokens);
  needs_embeddings_[image] = plan.n_tokens(0, found.n_tokens) > 0 || sequence_.replays_prompt();
  report.source = load == nullptr ? Source::kRam : Source::kTier;
  report.tier = load == nullptr ? "" : load->tier();
  report.n_recomputed = static_cast<double>(n_computed) / n_layers;
  report.form = engine_.options().cache_form.name();
  report.n_kept = known->n_kept();
  placed_.push_back({image, known, load});
  reused_.add(sequence_, found.spans, std::move(known), plan, std::move(load));
}

// Of KV that neither memory nor a tier has under this codec.
std::string ImagePlacement::unknown_reason(const Sha256Digest& key) const {
  if (const std::optional<KvCodec> other = engine_.caches().other_codec_of(key, kv_.codec())) {
    return "its KV is in the cache, but computed with KV codec " + std::string(kv_codec_name(*other));
  }
  return "first use";
}

void ImagePlacement::place_similar(size_t image, const RecomputePlan& plan, CacheReport::Image& report,
                                   const std::optional<Sha256Digest>& again) {
  const PromptImage& own = images_[image];
  std::optional<SimilarKv::Found> other = similar_.find(own, image, again);
  if (!other && again)
    report.reason = "KV of a similar image was reused before the request was preempted, and was evicted since";
  if (!other) return;
  const int32_t n_layers = plan.n_layers();
  const std::vector<int32_t> depths = plan.depths(own.n_tokens);
  int64_t n_computed = 0;
  for (size_t i = 0; i < depths.size(); ++i) n_computed += other->changed[i] ? n_layers : depths[i];
  report.source = Source::kRam;
  report.reason = "similar to another image";
  report.similar = other->image;
  report.n_changed = other->n_changed;
  report.n_recomputed = static_cast<double>(n_computed) / n_layers;
  report.form = engine_.options().cache_form.name();
  report.n_kept = other->kv->n_kept();
  placed_.push_back({.image = image, .kv = other->kv, .similar = other->image});
  reused_.add(sequence_, own.spans, std::move(other->kv), plan);
  reused_.recompute(std::move(other->changed));
}

const LoadingImage* ImagePlacement::load_stored(size_t image) {
  if (const auto begun = stored_.loads.find(image); begun != stored_.loads.end()) return &begun->second;
  if (kv_.image_prefetch() == nullptr) return nullptr;
  if (const std::optional<LoadingImage> comes = kv_.image_prefetch()->take(images_[image].key)) {
    return &stored_.loads.emplace(image, *comes).first->second;
  }
  ChainedTier* const from = stored_.tiers.kv(image);
  if (from == nullptr) return nullptr;
  const auto kv = std::make_shared<ImageKv>(kv_.shape(), engine_.options().cache_form, images_[image].n_tokens);
  std::shared_ptr<ImageLoad> load = kv_.image_store()->load(images_[image].key, kv, *from, stored_.tiers.by());
  return &stored_.loads.emplace(image, LoadingImage{kv, std::move(load)}).first->second;
}

void ImagePlacement::begin_reuse() {
  const int32_t n_layers = placed_[0].kv->n_layers(), n_tokens = static_cast<int32_t>(reused_.tokens().size());
  if (chooser_->preview(n_layers).n_layers > 0 && chooser_->plan(n_layers, n_tokens).n_tokens(0, n_tokens) > 0) {
    preview_ = std::make_unique<PreviewHooks>(engine_.backend(), reused_, chooser_, sequence_, n_layers);
  }
  supply();
  if (preview_ != nullptr && preview_->complete(sequence_)) choose();
}

void ImagePlacement::supply() {
  reused_.supply(sequence_);
  const KnownPrompt prompt = prompt_of(sequence_);
  for (const Placed& placed : placed_) {
    sequence_.set_image_content(
        placed.image, reused_content(engine_, prompt, placed.image, *chooser_, placed.kv->n_tokens(), placed.similar));
  }
}

bool ImagePlacement::cut(std::vector<TokenRun>& runs) {
  in_preview_ = preview_ != nullptr && preview_->cut(runs);
  while (!finished_ && runs.back().end > halt_) {
    runs.back().end = std::max(halt_, runs.back().begin);
    if (runs.back().begin == runs.back().end) runs.pop_back();
  }
  return in_preview_;
}

void ImagePlacement::after_preview_step() {
  in_preview_ = false;
  preview_->finish_step();
  if (preview_->complete(sequence_)) choose();
}

void ImagePlacement::choose() {
  const std::vector<int32_t> depths = preview_->choose();
  const std::vector<size_t> images = reused_.images_of_tokens();
  std::vector<int64_t> n_computed(placed_.size(), 0);
  for (size_t i = 0; i < images.size(); ++i) n_computed[images[i]] += preview_->computed()[i];
  for (size_t i = 0; i < placed_.size(); ++i) {
    CacheReport::Image& report = report_.images[placed_[i].image];
    const double mean = static_cast<double>(n_computed[i]) / placed_[i].kv->n_layers();
    report.n_recomputed = std::min<double>(report.n_tokens, mean);
  }
  sequence_.take_back_supplied();
  reused_.set_depths(depths);
  if (preview_->looks_again()) {
    reused_.keep_recomputed();
  } else {
    preview_.reset();
  }
  supply();
}

bool ImagePlacement::loading(Deadline until) const {
  const auto comes = [&](const Placed& placed) {
    const auto last = static_cast<size_t>(placed.kv->n_layers()) - 1;
    return placed.load != nullptr && placed.load->wait(last, until) == ImageLoad::State::kPending;
  };
  return !finished_ && std::ranges::any_of(placed_, comes);
}

ImagePlacement::Want ImagePlacement::take_want() {
  const int32_t missed = reused_.take_missed();
  if (missed < 0) return Want::kNone;
  const Placed& placed = placed_[static_cast<size_t>(missed)];
  return placed.load->state() == ImageLoad::State::kMissed ? Want::kMissed : Want::kComes;
}

void ImagePlacement::keep(size_t image, const std::shared_ptr<const ImageKv>& kv, double ms_per_token) {
  kv_.image_kv().put(images_[image].key, kv, kv->bytes(), ms_per_token * kv->n_tokens());
  similar_.note(images_[image], image);
}

bool ImagePlacement::is_recorded(const Sha256Digest& key) const {
  return std::ranges::any_of(recorded_, [&](size_t image) { return images_[image].key == key; });
}

// Where the image is already being recorded, the prompt is computed up to there first.
bool ImagePlacement::halt_before(const Sha256Digest& key) {
  for (const size_t image : recorded_) {
    if (images_[image].key == key) halt_ = images_[image].end();
  }
  return halt_ < INT32_MAX;
}

bool ImagePlacement::could_be_kept(size_t image, CacheReport::Image& report) const {
  const bool fits = ImageKv::bytes_of(kv_.shape(), engine_.options().cache_form, images_[image].n_tokens) <=
                    engine_.caches().cache_budget().max_bytes();
  if (!fits) report.reason = "its KV is larger than the cache";
  return fits;
}

void ImagePlacement::record(size_t image, CacheReport::Image& report) {
  if (!could_be_kept(image, report)) return;
  const PromptImage& found = images_[image];
  const ImageKvForm form = engine_.options().cache_form.complete();
  const size_t number = recorder_.add(std::make_shared<ImageKv>(kv_.shape(), form, found.n_tokens));
  for (const ImageSpan& span : found.spans) {
    recorder_.place(number, span.begin, span.first_row, span.end - span.begin);
  }
  recorded_.push_back(image);
  if (kv_.images_in_work().insert(report.key).second) in_work_.push_back(report.key);
}

void ImagePlacement::finish(double prefill_ms) {
  if (finished_ || (kept_tokens_ != nullptr && kept_tokens_->empty())) return;
  finished_ = true;
  end_work();
  sequence_.forget_source();
  if (!leaves_traces_) return;
  const double per_token = prefill_ms / std::max(1, sequence_.prompt_shape().n_tokens);
  ImageStore* store = kv_.image_store();
  const auto use = [&](size_t image, const std::shared_ptr<const ImageKv>& kv, bool computed) {
    if (store != nullptr && !measures_) store->used(images_[image].key, kv, computed, per_token * kv->n_tokens());
  };
  for (size_t i = 0; i < recorder_.size(); ++i) {
    if (!recorder_.complete(i)) continue;
    std::shared_ptr<const ImageKv> kv = recorder_.image(i);
    const ImageKvForm& form = engine_.options().cache_form;
    if (kept_tokens_ != nullptr) {
      kv = keep_these(kv_.shape(), form, *kv, *kept_tokens_);
    } else if (!form.keeps_all()) {
      kv = keep_best(engine_.backend(), kv_.shape(), form, *kv);
    }
    keep(recorded_[i], kv, per_token);
    use(recorded_[i], kv, /*computed=*/true);
  }
  for (const Placed& placed : placed_) {
    if (placed.similar) continue;
    if (placed.load == nullptr) {
      similar_.note(images_[placed.image], placed.image);
      use(placed.image, placed.kv, /*computed=*/false);
    } else if (LoadingImage{placed.kv, placed.load}.state() == ImageLoad::State::kReady) {
      keep(placed.image, placed.kv, per_token);
      store->loaded(images_[placed.image].key, placed.kv, *placed.load);
    }
  }
}

bool ImagePlacement::after_attention(int layer, const Observed& observed, std::vector<int32_t>& keep) {
  if (in_preview_) return preview_->after_attention(layer, observed, keep);
  recorder_.after_attention(layer, observed, keep);
  return reused_.after_attention(layer, observed, keep);
}

}  // namespace vlcache
