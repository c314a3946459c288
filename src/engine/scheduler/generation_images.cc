// The images of a request: the source of their KV, which are encoded, which are computed by themselves.
#include <algorithm>
#include <utility>

#include "engine/reuse/image_origin.h"
#include "engine/scheduler/generation.h"
#include "engine/sequence/sequence.h"

namespace vlcache {
namespace {

using Encoder = CacheReport::Image::Encoder;

}  // namespace

void Generation::place_images() {
  reuse_ = std::make_unique<ImageReuse>(engine_, *sequence_, request_.prompt, request_.reuse, stored_, result_.cache);
  for (const size_t image : reuse_->without_origin()) {
    // Requested already: in vain, or for the image's first occurrence.
    if (!origins_asked_.insert(sequence_->image_keys()[image]).second) continue;
    origins_.push_back(origin_request(engine_, request_.prompt, image));
  }
  promised_.reset();  // the images may differ now
  if (origins_.empty()) list_images();
}

std::vector<Request> Generation::take_origins() {
  if (origins_.empty()) return {};
  if (own_sequence_ != nullptr) {
    release();
  } else {
    reuse_.reset();  // the caller's sequence keeps its KV
  }
  return std::exchange(origins_, {});
}

void Generation::origin_done(const GenerateResult& origin) {
  result_.timings.vision_ms += origin.timings.vision_ms;
  result_.timings.prefill_ms += origin.timings.prefill_ms;
  for (const CacheReport::Image& image : origin.cache.images) origins_done_.emplace(image.key, image);
}

// An image that was computed for this request, even if by another one, is not a hit.
void Generation::charge_origins() {
  for (CacheReport::Image& image : result_.cache.images) {
    const auto origin = origins_done_.find(image.key);
    if (origin == origins_done_.end() || !image.loaded()) continue;
    image.source = CacheReport::Image::Source::kComputed;
    image.n_recomputed += image.n_tokens;
    image.encoder = origin->second.encoder;
    image.tier.clear();
    image.reason = "computed by itself, then reused";
    origins_done_.erase(origin);  // a second occurrence is a hit
  }
}

// Of a request that is preempted.
void Generation::note_computed_images() {
  for (const ImageSpan& span : request_.prompt.spans) {
    const auto image = static_cast<size_t>(span.image);
    if (image >= result_.cache.images.size() || span.end > sequence_->n_done()) continue;
    CacheReport::Image& noted = computed_images_.try_emplace(image, result_.cache.images[image]).first->second;
    if (noted.n_recomputed < result_.cache.images[image].n_recomputed) noted = result_.cache.images[image];
  }
}

// Images that the request had computed itself before it was preempted are no hits afterwards.
void Generation::charge_computed_images() {
  for (const auto& [image, before] : computed_images_) {
    CacheReport::Image& now = result_.cache.images[image];
    if (now.n_recomputed < before.n_recomputed) now = before;
  }
}

bool Generation::go_on_without_load() {
  const ImageReuse::Want want = reuse_ != nullptr ? reuse_->take_want() : ImageReuse::Want::kNone;
  if (want == ImageReuse::Want::kComes) has_stalled_ = true;
  if (want != ImageReuse::Want::kMissed) return want == ImageReuse::Want::kComes;
  place_rest();
  return true;
}

// Looks up again the images that are not computed yet.
void Generation::place_rest() {
  reuse_.reset();  // everything after the first loaded token is pending again
  const CacheReport before = result_.cache;
  note_origins();
  CacheReport& now = result_.cache;
  now.n_prefix_tokens = before.n_prefix_tokens;
  for (size_t i = 0; i < now.images.size(); ++i) {
    if (now.images[i].n_recomputed == 0) now.images[i] = before.images[i];
  }
  place_images();
}

void Generation::note_origins() {
  using Source = CacheReport::Image::Source;
  CacheReport& report = result_.cache;
  report.n_prefix_tokens = std::min(sequence_->n_done(), sequence_->prompt_shape().n_tokens);
  const std::vector<CacheReport::Image> before = std::exchange(report.images, {});  // of an earlier call
  for (const Sha256Digest& key : sequence_->image_keys()) {
    report.images.push_back({.key = key, .source = Source::kPrefix, .reason = ""});
    if (!before.empty()) report.images.back().encoder = before[report.images.size() - 1].encoder;
  }
  for (const ImageSpan& span : request_.prompt.spans) {
    CacheReport::Image& image = report.images[static_cast<size_t>(span.image)];
    image.n_tokens += span.end - span.begin;
    image.n_recomputed += std::max(0, span.end - std::max(span.begin, sequence_->n_done()));
  }
  for (CacheReport::Image& image : report.images) {
    if (2 * image.n_recomputed > image.n_tokens) image.source = Source::kComputed;
  }
}

// Takes the outputs that a selection has encoded already.
void Generation::take_images() {
  images_.resize(request_.prompt.images.size());
  std::optional<ImageSelection>& selection = request_.prompt.selection;
  if (!selection) return;
  for (size_t i = 0; i < selection->outputs.size(); ++i) {
    if (selection->outputs[i].embeds.empty()) continue;
    images_[i] = std::move(selection->outputs[i]);
    result_.cache.images[i].encoder = CacheReport::Image::Encoder::kComputed;
  }
  selection->outputs.clear();
  result_.timings.vision_ms += std::exchange(selection->vision_ms, 0);
  result_.timings.compress_ms = select_ms_ += std::exchange(selection->select_ms, 0);
}

// Lists the images of which a token is still to be computed, or will be computed again.
void Generation::list_images() {
  forget_encoding();
  const int32_t n_done = sequence_->replays_prompt() ? 0 : reuse_->n_done();
  for (const ImageSpan& span : request_.prompt.spans) {
    const auto image = static_cast<size_t>(span.image);
    if (span.end <= n_done || !images_[image].embeds.empty() || !reuse_->needs_embeddings(image)) continue;
    if (std::ranges::find(to_encode_, image) != to_encode_.end()) continue;
    if (std::ranges::any_of(coming_, [&](const auto& coming) { return coming.first == image; })) continue;
    if (take_known(image)) continue;
    ChainedTier* from = request_.reuse.encoder ? stored_.tiers.rows(image) : nullptr;
    if (from != nullptr) {
      coming_.emplace_back(
          image, engine_.kv().load_embeddings(request_.prompt.images[image], sequence_->image_keys()[image], *from,
                                              stored_.tiers.by()));
    } else {
      to_encode_.push_back(image);
    }
  }
}

// Takes the image's embeddings if they are in memory.
bool Generation::take_known(size_t image) {
  auto known = request_.reuse.encoder ? engine_.kv().find_embeddings(sequence_->image_keys()[image]) : nullptr;
  if (known == nullptr) return false;
  take_image(image, std::move(known), Encoder::kHit);
  return true;
}

void Generation::encode(Deadline until) {
  CHECK(encodes());
  const size_t image = to_encode_.front();
  if (encoding_ == nullptr) {
    if (take_known(image)) {  // another request has encoded it meanwhile
      to_encode_.pop_front();
      return;
    }
    encoding_ms_ = 0;
  }
  const auto begin = Clock::now();
  try {
    if (encoding_ == nullptr) {
      encoding_ = std::make_unique<Model::Encoding>(engine_.model().begin_encoding(
          request_.prompt.with_pixels(image), /*capture=*/nullptr, /*tile_by_tile=*/until != kNoDeadline));
    }
    bool more = true;
    while ((more = encoding_->step()) && Clock::now() < until) {
    }
    if (!more) take_encoded(image, encoding_ms_ + ms_since(begin));
  } catch (...) {
    forget_encoding();
    throw;
  }
  encoding_ms_ += ms_since(begin);
  result_.timings.vision_ms += ms_since(begin);
}

void Generation::take_encoded(size_t image, double ms) {
  VisionOutput output = encoding_->finish();
  encoding_.reset();
  to_encode_.pop_front();
  request_.prompt.let_pixels_go(image);
  if (request_.reuse.encoder) {
    take_image(image, engine_.kv().keep_encoded(sequence_->image_keys()[image], std::move(output), ms),
               Encoder::kComputed);
  } else {
    images_[image] = std::move(output);
    result_.cache.images[image].encoder = Encoder::kComputed;
  }
}

void Generation::forget_encoding() {
  encoding_.reset();
  to_encode_.clear();
}

void Generation::take_image(size_t image, std::shared_ptr<const VisionOutput> output, Encoder encoder) {
  images_[image].embeds = output->embeds;
  images_[image].extra = output->extra;
  result_.cache.images[image].encoder = encoder;
  shared_images_.push_back(std::move(output));
}

void Generation::take_embeddings() {
  const auto begin = Clock::now();
  while (!coming_.empty()) {
    const auto& [image, loaded] = coming_.front();
    const ImageLoad::State state = loaded.load->state();
    if (state == ImageLoad::State::kPending) break;
    const Sha256Digest& key = sequence_->image_keys()[image];
    if (state == ImageLoad::State::kReady) {
      engine_.kv().keep_embeddings(key, loaded);
      take_image(image, loaded.output, Encoder::kHit);
    } else {
      to_encode_.push_back(image);
    }
    coming_.erase(coming_.begin());
  }
  result_.timings.vision_ms += ms_since(begin);
}

}  // namespace vlcache
