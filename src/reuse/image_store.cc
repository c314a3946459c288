// Keys, layouts, and which tier is asked.
#include "reuse/image_store.h"

#include <algorithm>

#include "base/error.h"

namespace vlcache {
namespace {

constexpr size_t kMaxCounted = 1 << 16;  // images whose uses are remembered before they are stored
constexpr std::chrono::seconds kFlushTime{30};

// "kv bf16 22x4x64": layers x kv heads x head size, where neighbours are alike.
std::string layout_of(const KvShape& shape) {
  std::string layout = shape.codec == KvCodec::kF32 ? "kv f32" : "kv bf16";
  for (int32_t begin = 0, end = 0; begin < shape.n_layers(); begin = end) {
    const auto heads = [&](int32_t layer) { return shape.n_own_heads(layer); };
    const auto size = [&](int32_t layer) { return shape.layers[static_cast<size_t>(layer)].head_dim; };
    while (end < shape.n_layers() && heads(end) == heads(begin) && size(end) == size(begin)) ++end;
    layout +=
        " " + std::to_string(end - begin) + "x" + std::to_string(heads(begin)) + "x" + std::to_string(size(begin));
  }
  return layout;
}

std::string layout_of(const Tensor& rows) {
  return "embeddings " + std::string(dtype_name(rows.dtype)) + " x" + std::to_string(rows.row_size());
}

}  // namespace

bool ImageLoad::wait(int32_t layer) {
  const RecordLoad::State state = load_.wait(static_cast<size_t>(layer), deadline_);
  late_ = late_ || state == RecordLoad::State::kPending;
  return state == RecordLoad::State::kReady;
}

bool ImageLoad::complete() const {
  return load_.state(static_cast<size_t>(image_->n_layers()) - 1) == RecordLoad::State::kReady;
}

Miss ImageLoad::miss() const { return late_ ? Miss{MissReason::kLate, "not there in time"} : load_.miss(); }

ImageStore::ImageStore(const Options& options, const ModelFingerprint& model, const KvShape& shape)
    : options_(options), model_(model), shape_(shape), kv_layout_(layout_of(shape)) {
  for (const std::shared_ptr<KvTier>& tier : options_.tiers) {
    tier->set_model(model_);
    tiers_.push_back({tier, std::make_unique<StoreWorker>(*tier, options_.max_queued_bytes)});
  }
}

ImageStore::~ImageStore() { flush(Clock::now() + kFlushTime); }

RecordKey ImageStore::key_of(const Sha256Digest& image, std::string layout) const {
  return {.kind = RecordKind::kImage, .model = model_, .content = image, .layout = std::move(layout)};
}

ImageStore::Tier* ImageStore::find(const RecordKey& key) {
  for (Tier& t : tiers_) {
    if (t.tier->exists({&key, 1}, deadline()).at(0)) return &t;
  }
  return nullptr;
}

Deadline ImageStore::deadline() const {
  return Clock::now() + std::chrono::microseconds(static_cast<int64_t>(options_.deadline_ms * 1000));
}

std::shared_ptr<ImageLoad> ImageStore::load(const Sha256Digest& image, int32_t n_tokens) {
  LoadRequest request{.key = key_of(image, kv_layout_), .targets = {}, .owner = nullptr, .deadline = deadline()};
  Tier* from = find(request.key);
  if (from == nullptr) return nullptr;
  auto kv = std::make_shared<ImageKv>(shape_, n_tokens);
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
  save(std::move(record));
}

bool ImageStore::load_rows(const Sha256Digest& image, const Tensor& to) {
  CHECK(to.dense());
  const RecordKey key = key_of(image, layout_of(to));
  Tier* from = find(key);
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
  save(std::move(record));
}

// Counts a use; true for the one that the record is to be stored at.
bool ImageStore::admits(const RecordKey& key, bool computed) {
  if (options_.admit <= 1) return computed;
  if (n_uses_.size() >= kMaxCounted) n_uses_.clear();
  return ++n_uses_[{key.content, key.layout}] == options_.admit;
}

void ImageStore::save(Record record) {
  for (Tier& t : tiers_) t.worker->save(record);
}

bool ImageStore::flush(Deadline deadline) {
  bool all = true;
  for (Tier& t : tiers_) all = t.worker->flush(deadline) && all;
  return all;
}

std::vector<ImageStore::TierState> ImageStore::stats() const {
  std::vector<TierState> states;
  for (const Tier& t : tiers_) states.push_back({std::string(t.tier->name()), t.tier->stats(), t.worker->stats()});
  return states;
}

}  // namespace vlcache
