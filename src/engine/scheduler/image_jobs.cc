#include "engine/scheduler/image_jobs.h"

#include <algorithm>

#include "engine/engine_caches.h"
#include "engine/reuse/image_origin.h"
#include "engine/sequence/sequence.h"

namespace vlcache {
namespace {

using Encoder = CacheReport::Image::Encoder;
using Source = CacheReport::Image::Source;

int64_t n_dropped(const ImageTiles& image) { return image.kept ? image.kept->n_dropped : 0; }

}  // namespace

ImageJobs::ImageJobs(Engine& engine, KvCaches& kv, Request& request, GenerateResult& result)
    : engine_(engine), kv_(kv), request_(request), result_(result), claims_(engine.caches().rows_store()) {
  Prompt& prompt = request.prompt;
  if (prompt.images.empty()) return;
  prompt.keys = request.sequence != nullptr ? request.sequence->images().keys() : image_keys(prompt);
  images_ = list_images(prompt);
  ImageStore* const store = kv_.image_store();
  if (store != nullptr && searches()) stored_.tiers = store->search(prompt.keys);
}

ImageJobs::~ImageJobs() = default;

// A shadow takes what is in memory.
bool ImageJobs::searches() const { return request_.reuse.encoder && !request_.reuse.shadow; }

bool ImageJobs::awaits_search(int32_t n_done, Deadline until) {
  if (kv_.image_store() == nullptr || !searches()) return false;
  for (size_t i = 0; i < images_.size(); ++i) {
    if (images_[i].end() <= n_done) continue;
    const bool known = engine_.caches().holds_image(images_[i].key, request_.reuse.chooser != nullptr ? &kv_ : nullptr);
    if (!known && !stored_.tiers.wait(i, until)) return true;
  }
  return awaits_others(n_done, until);
}

// Images that neither memory nor a tier has.
bool ImageJobs::awaits_others(int32_t n_done, Deadline until) {
  for (size_t i = 0; i < images_.size(); ++i) {
    if (images_[i].end() <= n_done || engine_.caches().holds_image(images_[i].key, /*kv=*/nullptr)) continue;
    const bool found = stored_.tiers.rows(i) != nullptr && (request_.reuse.chooser == nullptr || stored_.tiers.kv(i));
    if (found || !stored_.tiers.answered(i)) continue;
    if (claims_.look_again()) {
      stored_.tiers = kv_.image_store()->search(request_.prompt.keys);
      return true;
    }
    if (claims_.awaits(images_[i].key, until)) return true;
  }
  return false;
}

void ImageJobs::start(Sequence& sequence) {
  sequence_ = &sequence;
  images_ = list_images(request_.prompt);  // a policy may have dropped tokens of them
  note_sources();
  take_selected();
  place();
}

// Takes the outputs that a policy's selection has encoded already.
void ImageJobs::take_selected() {
  embeddings_.resize(request_.prompt.images.size());
  std::optional<ImageSelection>& selection = request_.prompt.selection;
  if (!selection) return;
  for (size_t i = 0; i < selection->outputs.size(); ++i) {
    if (selection->outputs[i].embeds.empty()) continue;
    embeddings_[i] = std::move(selection->outputs[i]);
    result_.cache.images[i].encoder = Encoder::kComputed;
  }
  selection->outputs.clear();
  result_.timings.vision_ms += std::exchange(selection->vision_ms, 0);
}

void ImageJobs::start_rest() {
  reuse_.reset();  // everything after the first loaded token is pending again
  const CacheReport before = result_.cache;
  note_sources();
  CacheReport& now = result_.cache;
  now.n_prefix_tokens = before.n_prefix_tokens;
  for (size_t i = 0; i < now.images.size(); ++i) {
    if (now.images[i].n_recomputed == 0) now.images[i] = before.images[i];
  }
  place();
}

// Begins the report: the images' tokens are in the sequence, or will be computed.
void ImageJobs::note_sources() {
  CacheReport& report = result_.cache;
  report.n_prefix_tokens = std::min(sequence_->n_done(), sequence_->prompt_shape().n_tokens);
  const std::vector<CacheReport::Image> before = std::exchange(report.images, {});  // of an earlier call
  int32_t n_videos = 0;
  for (size_t i = 0; i < images_.size(); ++i) {
    const ImageTiles& tiles = request_.prompt.images[i];
    if (tiles.unit && tiles.unit->first) ++n_videos;
    const int32_t n_left = images_[i].n_tokens_from(sequence_->n_done());
    report.images.push_back({.key = images_[i].key,
                             .n_tokens = images_[i].n_tokens,
                             .grid = image_grid(engine_.model().config(), tiles),
                             .n_frames = static_cast<int32_t>(tiles.n_frames),
                             .video = tiles.unit ? n_videos - 1 : -1,
                             .n_dropped = n_dropped(tiles),
                             .source = is_in_prefix(n_left, images_[i].n_tokens) ? Source::kPrefix : Source::kComputed,
                             .n_recomputed = static_cast<double>(n_left),
                             .reason = ""});
    if (before.empty()) continue;
    report.images.back().encoder = before[i].encoder;
    report.images.back().reusable = request_.reuse.resumed && before[i].reusable;
  }
}

void ImageJobs::place() {
  reuse_ =
      std::make_unique<ImagePlacement>(engine_, *sequence_, request_.prompt, request_.reuse, stored_, result_.cache);
  for (const size_t image : reuse_->without_origin()) {
    // Requested already: in vain, or for the image's first occurrence.
    if (!origins_asked_.insert(images_[image].key).second) continue;
    origins_.push_back(origin_request(engine_, request_.prompt, images_, image));
    origins_.back().kv_codec = kv_.codec();
  }
  if (origins_.empty()) find_embeddings();
}

void ImageJobs::origin_done(const GenerateResult& origin) {
  result_.timings.vision_ms += origin.timings.vision_ms;
  result_.timings.prefill_ms += origin.timings.prefill_ms;
  for (const CacheReport::Image& image : origin.cache.images) computed_.add_origin(image);
}

// Of the images of which a token is still to be computed, or will be computed again.
void ImageJobs::find_embeddings() {
  forget_encoding();
  const int32_t n_done = sequence_->replays_prompt() ? 0 : reuse_->n_done();
  for (size_t image = 0; image < images_.size(); ++image) {
    if (images_[image].end() <= n_done || !embeddings_[image].embeds.empty() || !reuse_->needs_embeddings(image)) {
      continue;
    }
    if (std::ranges::any_of(coming_, [&](const auto& coming) { return coming.first == image; })) continue;
    if (take_known(image)) continue;
    ChainedTier* from = searches() ? stored_.tiers.rows(image) : nullptr;
    if (from != nullptr) {
      coming_.emplace_back(image, engine_.caches().load_embeddings(request_.prompt.images[image], images_[image].key,
                                                                   *from, stored_.tiers.by()));
    } else {
      to_encode_.push_back(image);
    }
  }
}

// Takes the image's embeddings if they are in memory.
bool ImageJobs::take_known(size_t image) {
  if (!request_.reuse.encoder) return false;
  const Sha256Digest& key = images_[image].key;
  auto known = request_.reuse.shadow ? engine_.caches().encoder_outputs().find<VisionOutput>(key)
                                     : engine_.caches().find_embeddings(key);
  if (known == nullptr) return false;
  take(image, std::move(known), Encoder::kHit);
  return true;
}

void ImageJobs::take(size_t image, std::shared_ptr<const VisionOutput> output, Encoder encoder) {
  embeddings_[image].embeds = output->embeds;
  embeddings_[image].extra = output->extra;
  result_.cache.images[image].encoder = encoder;
  shared_.push_back(std::move(output));
}

void ImageJobs::take_loaded() {
  const auto begin = Clock::now();
  while (!coming_.empty()) {
    const auto& [image, loaded] = coming_.front();
    const ImageLoad::State state = loaded.load->state();
    if (state == ImageLoad::State::kPending) break;
    if (state == ImageLoad::State::kReady) {
      engine_.caches().keep_embeddings(images_[image].key, loaded);
      take(image, loaded.output, Encoder::kHit);
    } else {
      to_encode_.push_back(image);
    }
    coming_.erase(coming_.begin());
  }
  result_.timings.vision_ms += ms_since(begin);
}

double ImageJobs::flops_left() const {
  double flops = 0;
  for (const size_t image : to_encode_) {
    const double done = image == to_encode_.front() && encoding_ != nullptr ? encoding_->share_done() : 0;
    flops += (1 - done) * engine_.model().encoding_flops(request_.prompt.images[image]);
  }
  return flops;
}

void ImageJobs::encode(Deadline until, const WorkTold& told) {
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
    const bool more = encode_steps(engine_, request_.prompt.images[image], *encoding_, until, told);
    if (!more) take_encoded(encoding_ms_ + ms_since(begin));
  } catch (...) {
    forget_encoding();
    throw;
  }
  encoding_ms_ += ms_since(begin);
  result_.timings.vision_ms += ms_since(begin);
}

void ImageJobs::take_encoded(double ms) {
  const size_t image = to_encode_.front();
  VisionOutput output = encoding_->finish();
  encoding_.reset();
  to_encode_.pop_front();
  request_.prompt.let_pixels_go(image);
  const Sha256Digest& key = images_[image].key;
  const std::shared_ptr<const VisionOutput> shared = searches()
                                                         ? engine_.caches().keep_encoded(key, std::move(output), ms)
                                                         : std::make_shared<const VisionOutput>(std::move(output));
  take(image, shared, Encoder::kComputed);
  // Equal images of the prompt, such as units of a video in which nothing moves, are encoded once.
  std::erase_if(to_encode_, [&](size_t other) {
    if (images_[other].key != key) return false;
    take(other, shared, Encoder::kHit);
    return true;
  });
}

void ImageJobs::forget_encoding() {
  encoding_.reset();
  to_encode_.clear();
}

bool ImageJobs::awaits_load(Deadline until) {
  if (coming_.empty()) return reuse_ != nullptr && reuse_->loading(until);
  coming_.front().second.load->wait(0, until);
  return true;  // until take_loaded() takes it
}

bool ImageJobs::awaits_load_to_stall(Deadline until) {
  return (has_stalled_ || !coming_.empty()) && awaits_load(until);
}

ImagePlacement::Want ImageJobs::take_want() {
  const ImagePlacement::Want want = reuse_ != nullptr ? reuse_->take_want() : ImagePlacement::Want::kNone;
  if (want == ImagePlacement::Want::kComes) has_stalled_ = true;
  return want;
}

void ImageJobs::prompt_done() {
  for (VisionOutput& output : embeddings_) output = VisionOutput();
  shared_.clear();
  stored_.loads.clear();
  claims_.release();  // what was computed is stored, or queued to be
}

void ImageJobs::keep_decisions() {
  std::vector<ReusedBefore>& reused = request_.reuse.resumed.emplace();
  const SequenceImages& held = sequence_->images();
  for (size_t i = 0; i < result_.cache.images.size(); ++i) {
    const CacheReport::Image& image = result_.cache.images[i];
    const bool of_prefix = image.source == Source::kPrefix && held.contents()[i] != held.keys()[i];
    if (image.loaded() || of_prefix) reused.push_back({i, image.similar});
  }
}

void ImageJobs::stop() {
  computed_.add_own(images_, result_.cache.images, sequence_->n_done());
  reuse_.reset();
  coming_.clear();
  forget_encoding();
  stored_.tiers.stop();
  std::erase_if(stored_.loads, [](const auto& l) { return l.second.load->state() != ImageLoad::State::kMissed; });
}

void ImageJobs::finish() {
  computed_.charge(result_.cache.images);
  if (request_.reuse.shadow) return;
  engine_.caches().count(result_.cache, result_.n_prompt);
}

}  // namespace vlcache
