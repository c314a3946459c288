#include "engine/engine_caches.h"

#include <algorithm>

#include "engine/engine.h"
#include "store/tier_chain.h"

namespace vlcache {
namespace {

constexpr double kRecentTokens = 8192;            // of prompts that tell what a token costs
constexpr int64_t kLeastQueuedBytes = 256 << 20;  // of what waits to be stored: a few images of any model

}  // namespace

EngineCaches::EngineCaches(const Model& model, PagePools& pools, KvCodec usual, const EngineOptions& options)
    : model_(model), pools_(pools), options_(options), first_uses_(options.first_use_bytes) {
  budget_ = std::make_unique<CacheBudget>(options.cache_bytes);
  encoder_outputs_ = std::make_unique<DigestCache>(*budget_);
  if (!options.tiers.empty()) {
    tiers_ = std::make_unique<TierChain>(options.tiers, std::max(options.cache_bytes / 2, kLeastQueuedBytes));
    tiers_->set_model(model_.fingerprint());
  }
  of(usual);
}

EngineCaches::~EngineCaches() = default;

KvCaches& EngineCaches::of(KvCodec codec) {
  const auto known = std::ranges::find(kv_, codec, [](const auto& kv) { return kv->codec(); });
  if (known != kv_.end()) return **known;
  const KvCaches::Shared shared{.model = model_,
                                .pools = pools_,
                                .budget = *budget_,
                                .tiers = tiers_.get(),
                                .first_uses = first_uses_,
                                .options = options_};
  KvCaches& made = *kv_.emplace_back(std::make_unique<KvCaches>(shared, kv_shape_of(model_, codec)));
  if (on_new_) on_new_(made);
  return made;
}

int64_t EngineCaches::prefix_bytes() const {
  int64_t bytes = 0;
  for (const auto& kv : kv_) bytes += kv->prefixes().bytes();
  return bytes;
}

void EngineCaches::for_each_store(FunctionRef<void(KvCodec codec, ImageStore& store)> visit) {
  if (tiers_ == nullptr) return;
  std::vector<KvCodec> codecs = coded_codecs(model_.config().text);
  codecs.insert(codecs.end(), {KvCodec::kBF16, KvCodec::kF32});
  for (const KvCodec codec : codecs) {
    ImageStore store(*tiers_, {}, model_.fingerprint(), kv_shape_of(model_, codec), options_.cache_form,
                     model_.compute_dtype(), model_.output_width());
    visit(codec, store);
  }
}

void EngineCaches::erase_stored(const Sha256Digest& image) {
  if (tiers_ == nullptr) return;
  usual().prefix_store()->erase_image(image);  // prefixes of all codecs: they are found by the image's name
  for_each_store([&](KvCodec, ImageStore& store) { store.erase(image); });
}

std::optional<KvCodec> EngineCaches::other_codec_of(const Sha256Digest& image, KvCodec codec) {
  for (const auto& kv : kv_) {
    if (kv->codec() != codec && kv->image_kv().contains(image)) return kv->codec();
  }
  std::optional<KvCodec> found;
  for_each_store([&](KvCodec other, ImageStore& store) {
    if (other != codec && !found && store.is_near(image)) found = other;
  });
  return found;
}

void EngineCaches::take_in_prefetched() {
  for (const auto& kv : kv_) {
    if (kv->image_prefetch() != nullptr) kv->image_prefetch()->take_in();
  }
}

PrefixSaver::FirstUseStats EngineCaches::first_use_stats() {
  PrefixSaver::FirstUseStats all;
  for (const auto& kv : kv_) {
    if (kv->prefix_saver() == nullptr) continue;
    const PrefixSaver::FirstUseStats own = kv->prefix_saver()->first_use_stats();
    all.queued += own.queued;
    all.beyond_bound += own.beyond_bound;
    all.evicted += own.evicted;
    all.late += own.late;
    all.hour = own.hour;  // one bound for all
    all.most_an_hour = own.most_an_hour;
  }
  return all;
}

void EngineCaches::prompt_computed(int32_t n_tokens, double ms) {
  if (n_tokens < kPageSlots) return;  // a step of few rows says little about a long one
  recent_tokens_ += n_tokens;
  recent_ms_ += ms;
  if (recent_tokens_ > kRecentTokens) {
    recent_ms_ *= kRecentTokens / recent_tokens_;
    recent_tokens_ = kRecentTokens;
  }
}

std::shared_ptr<const VisionOutput> EngineCaches::find_embeddings(const Sha256Digest& key) {
  auto known = encoder_outputs_->find<VisionOutput>(key);
  if (known != nullptr && rows_store() != nullptr) {
    rows_store()->rows_used(key, known->record(), known, /*computed=*/false);
  }
  return known;
}

std::shared_ptr<const VisionOutput> EngineCaches::keep_encoded(const Sha256Digest& key, VisionOutput embeddings,
                                                               double ms) {
  auto output = std::make_shared<const VisionOutput>(std::move(embeddings));
  if (rows_store() != nullptr) rows_store()->rows_used(key, output->record(), output, /*computed=*/true, ms);
  encoder_outputs_->put(key, output, output->storage.bytes(), ms);
  return output;
}

EngineCaches::LoadedEmbeddings EngineCaches::load_embeddings(const ImageTiles& image, const Sha256Digest& key,
                                                             ChainedTier& from, Deadline by) {
  auto output = std::make_shared<VisionOutput>(model_.allocate_output(model_.n_image_tokens(image)));
  auto load = rows_store()->load_rows(key, output->record(), output, from, by);
  return {.output = std::move(output), .load = std::move(load), .begin = Clock::now()};
}

void EngineCaches::keep_embeddings(const Sha256Digest& key, const LoadedEmbeddings& loaded) {
  rows_store()->rows_loaded(key, loaded.output->record(), loaded.output, *loaded.load);
  encoder_outputs_->put(key, loaded.output, loaded.output->storage.bytes(), ms_since(loaded.begin));
}

bool EngineCaches::holds_image(const Sha256Digest& key, const KvCaches* kv) const {
  return encoder_outputs_->contains(key) && (kv == nullptr || kv->image_kv().contains(key));
}

}  // namespace vlcache
