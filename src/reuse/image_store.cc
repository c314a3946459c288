// Keys, layouts, and which tier is asked.
#include "reuse/image_store.h"

#include <algorithm>

#include "base/error.h"
#include "reuse/kv_layout.h"

namespace vlcache {
namespace {

constexpr size_t kMaxCounted = 1 << 16;  // images whose uses are remembered before they are stored

std::string layout_of(const Tensor& rows) {
  return "embeddings " + std::string(dtype_name(rows.dtype)) + " x" + std::to_string(rows.row_size());
}

}  // namespace

bool ImageLoad::wait(int32_t layer) {
  if (ready_[static_cast<size_t>(layer)]) return true;
  const RecordLoad::State state = load_.wait(static_cast<size_t>(layer), deadline_);
  if (state == RecordLoad::State::kPending) miss_ = {MissReason::kLate, "not there in time"};
  if (state != RecordLoad::State::kReady) return false;
  if (!image_->valid(layer)) {
    miss_ = {MissReason::kMalformed, "tokens that the image does not have"};
    return false;
  }
  ready_[static_cast<size_t>(layer)] = true;
  return true;
}

bool ImageLoad::complete() const {
  return load_.state(static_cast<size_t>(image_->n_layers()) - 1) == RecordLoad::State::kReady;
}

Miss ImageLoad::miss() const { return miss_ ? *miss_ : load_.miss(); }

ImageStore::ImageStore(TierChain& chain, const Options& options, const ModelFingerprint& model, const KvShape& shape,
                       const ImageKvForm& form)
    : chain_(chain),
      options_(options),
      model_(model),
      shape_(shape),
      form_(form),
      kv_layout_("kv " + (form.exact() ? "" : form.name() + " of ") + kv_layout(shape)) {}

bool ImageStore::has(const Sha256Digest& image) {
  return chain_.find(key_of(image, kv_layout_), deadline()) != nullptr;
}

RecordKey ImageStore::key_of(const Sha256Digest& image, std::string layout) const {
  return {.kind = RecordKind::kImage, .model = model_, .content = image, .layout = std::move(layout)};
}

Deadline ImageStore::deadline() const {
  return Clock::now() + std::chrono::microseconds(static_cast<int64_t>(options_.deadline_ms * 1000));
}

std::shared_ptr<ImageLoad> ImageStore::load(const Sha256Digest& image, int32_t n_tokens) {
  LoadRequest request{.key = key_of(image, kv_layout_), .targets = {}, .owner = nullptr, .deadline = deadline()};
  TierChain::Tier* from = chain_.find(request.key, request.deadline);
  if (from == nullptr) return nullptr;
  auto kv = std::make_shared<ImageKv>(shape_, form_, n_tokens);
  for (int32_t layer = 0; layer < kv->n_layers(); ++layer) request.targets.push_back({layer, kv->layer_bytes(layer)});
  request.owner = kv;
  const Deadline by = request.deadline;
  return std::make_shared<ImageLoad>(std::move(kv), from->worker->load(std::move(request)), by, from->tier->name());
}

void ImageStore::used(const Sha256Digest& image, std::shared_ptr<const ImageKv> kv, bool computed) {
  Record record{.key = key_of(image, kv_layout_), .sections = {}, .owner = nullptr};
  if (!admits(record.key, computed)) return;
  for (int32_t layer = 0; layer < kv->n_layers(); ++layer) record.sections.push_back(kv->layer_bytes(layer));
  record.owner = std::move(kv);
  chain_.save(record);
}

bool ImageStore::load_rows(const Sha256Digest& image, const Tensor& to) {
  CHECK(to.dense());
  const RecordKey key = key_of(image, layout_of(to));
  TierChain::Tier* from = chain_.find(key, deadline());
  if (from == nullptr) return false;
  const OpenedRecord record = from->tier->open(key, deadline());
  const auto bytes = static_cast<size_t>(to.bytes());
  if (record.reader == nullptr || record.reader->header().sections.size() != 1 ||
      record.reader->header().sections[0].bytes != to.bytes()) {
    return false;
  }
  return !record.reader->read(0, {to.data, bytes}, deadline());
}

void ImageStore::rows_used(const Sha256Digest& image, const Tensor& rows, std::shared_ptr<const void> owner,
                           bool computed) {
  CHECK(rows.dense());
  Record record{.key = key_of(image, layout_of(rows)), .sections = {}, .owner = std::move(owner)};
  if (!admits(record.key, computed)) return;
  record.sections.push_back({rows.data, static_cast<size_t>(rows.bytes())});
  chain_.save(record);
}

// Counts a use; true for the one that the record is to be stored at.
bool ImageStore::admits(const RecordKey& key, bool computed) {
  if (options_.admit <= 1) return computed;
  if (n_uses_.size() >= kMaxCounted) n_uses_.clear();
  return ++n_uses_[{key.content, key.layout}] == options_.admit;
}

}  // namespace vlcache
