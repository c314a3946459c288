// Keys, layouts, and the choice of tiers.
#include "reuse/image/image_store.h"

#include <algorithm>

#include "base/error.h"
#include "reuse/kv_layout.h"

namespace vlcache {
namespace {

constexpr size_t kMaxCounted = 1 << 16;  // images whose uses are counted before they are stored

}  // namespace

bool ImageSearch::wait(size_t image, Deadline until) {
  if (image >= n_images_) return true;
  const Deadline limit = std::min(until, by_);
  if (tiers_.wait(image, limit) && tiers_.wait(n_images_ + image, limit)) return true;
  start();
  return Clock::now() >= by_;
}

bool ImageSearch::answered(size_t image) {
  return image >= n_images_ || (tiers_.wait(image, Deadline::min()) && tiers_.wait(n_images_ + image, Deadline::min()));
}

void ImageSearch::start() {
  if (by_ == kNoDeadline) by_ = Clock::now() + patience_;
}

ImageLoad::State ImageLoad::wait(size_t section, Deadline until) const {
  if (refused_) return State::kMissed;
  switch (load_.wait(section, std::min(until, by_))) {
    case RecordLoad::State::kReady:
      return State::kReady;
    case RecordLoad::State::kMissed:
      return State::kMissed;
    case RecordLoad::State::kPending:
      break;
  }
  return Clock::now() < by_ ? State::kPending : State::kMissed;
}

ImageLoad::State LoadingImage::wait(int32_t layer, Deadline until) const {
  const ImageLoad::State state = load->wait(static_cast<size_t>(layer), until);
  if (state != ImageLoad::State::kReady || kv->valid(layer)) return state;
  load->refuse({MissReason::kMalformed, "tokens that the image does not have"});
  return ImageLoad::State::kMissed;
}

ImageLoad::State LoadingImage::state() const {
  ImageLoad::State state = load->state();
  for (int32_t layer = 0; layer < kv->n_layers() && state == ImageLoad::State::kReady; ++layer) {
    state = wait(layer, Deadline::min());
  }
  return state;
}

Miss ImageLoad::miss() const {
  if (refused_) return *refused_;
  const bool late = load_.state(n_sections_ - 1) == RecordLoad::State::kPending;
  return late ? Miss{MissReason::kLate, "not there in time"} : load_.miss();
}

ImageStore::ImageStore(TierChain& chain, const Options& options, const ModelFingerprint& model, const KvShape& shape,
                       const ImageKvForm& form, DType rows_dtype, int64_t row_size)
    : chain_(chain),
      options_(options),
      model_(model),
      kv_layout_("kv " + (form.exact() ? "" : form.name() + " of ") + kv_layout(shape)),
      rows_layout_("embeddings " + std::string(dtype_name(rows_dtype)) + " x" + std::to_string(row_size)) {}

RecordKey ImageStore::key_of(const Sha256Digest& image, std::string layout) const {
  return {.kind = RecordKind::kImage, .model = model_, .content = image, .layout = std::move(layout)};
}

Record ImageStore::record_of(const Sha256Digest& image, std::shared_ptr<const ImageKv> kv) const {
  Record record{.key = key_of(image, kv_layout_), .sections = {}, .owner = nullptr};
  for (int32_t layer = 0; layer < kv->n_layers(); ++layer) record.sections.push_back(kv->layer_bytes(layer));
  record.owner = std::move(kv);
  return record;
}

Record ImageStore::record_of(const Sha256Digest& image, const Tensor& rows, std::shared_ptr<const void> owner) const {
  CHECK(rows.dense());
  return {.key = key_of(image, rows_layout_),
          .sections = {{rows.data, static_cast<size_t>(rows.bytes())}},
          .owner = std::move(owner)};
}

ImageSearch ImageStore::search(std::span<const Sha256Digest> images) {
  std::vector<RecordKey> keys;
  for (const std::string& layout : {kv_layout_, rows_layout_}) {
    for (const Sha256Digest& image : images) keys.push_back(key_of(image, layout));
  }
  return {chain_.search(keys, Clock::now() + patience()), images.size(), patience()};
}

std::unique_ptr<ImageLoad> ImageStore::load(const Sha256Digest& image, const std::shared_ptr<ImageKv>& to,
                                            ChainedTier& from, Deadline by) {
  LoadRequest request{.key = key_of(image, kv_layout_), .targets = {}, .owner = to, .deadline = by};
  for (int32_t layer = 0; layer < to->n_layers(); ++layer) request.targets.push_back({layer, to->layer_bytes(layer)});
  const size_t n_sections = request.targets.size();
  return std::make_unique<ImageLoad>(from.worker->load(std::move(request)), n_sections, from, by);
}

std::unique_ptr<ImageLoad> ImageStore::load_rows(const Sha256Digest& image, const Tensor& to,
                                                 std::shared_ptr<void> owner, ChainedTier& from, Deadline by) {
  CHECK(to.dense());
  LoadRequest request{.key = key_of(image, rows_layout_),
                      .targets = {{0, {to.data, static_cast<size_t>(to.bytes())}}},
                      .owner = std::move(owner),
                      .deadline = by};
  return std::make_unique<ImageLoad>(from.worker->load(std::move(request)), /*n_sections=*/1, from, by);
}

void ImageStore::used(const Sha256Digest& image, std::shared_ptr<const ImageKv> kv, bool computed, double saves_ms) {
  save(record_of(image, std::move(kv)), computed, saves_ms);
}

void ImageStore::rows_used(const Sha256Digest& image, const Tensor& rows, std::shared_ptr<const void> owner,
                           bool computed, double saves_ms) {
  save(record_of(image, rows, std::move(owner)), computed, saves_ms);
}

void ImageStore::loaded(const Sha256Digest& image, std::shared_ptr<const ImageKv> kv, const ImageLoad& load) {
  bring_nearer(record_of(image, std::move(kv)), load);
}

void ImageStore::rows_loaded(const Sha256Digest& image, const Tensor& rows, std::shared_ptr<const void> owner,
                             const ImageLoad& load) {
  bring_nearer(record_of(image, rows, std::move(owner)), load);
}

void ImageStore::erase(const Sha256Digest& image) {
  for (const std::string& layout : {kv_layout_, rows_layout_}) chain_.erase(key_of(image, layout));
}

void ImageStore::save(Record record, bool computed, double saves_ms) {
  if (options_.admit <= 1 ? !computed : count_use(record.key) != options_.admit) return;
  record.saves_ms = saves_ms;
  record.n_uses = options_.admit - 1;
  chain_.save(record);
}

void ImageStore::bring_nearer(Record record, const ImageLoad& load) {
  if (options_.admit > 1 && count_use(record.key) < options_.admit) return;
  record.created_ms = load.created_ms();
  record.saves_ms = load.saves_ms();
  chain_.bring_nearer(record, load.from());
}

int32_t ImageStore::count_use(const RecordKey& key) {
  if (n_uses_.size() >= kMaxCounted) n_uses_.clear();
  return ++n_uses_[{key.content, key.layout}];
}

}  // namespace vlcache
