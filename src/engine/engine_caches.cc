#include "engine/engine_caches.h"

#include <algorithm>

#include "engine/engine.h"
#include "reuse/prefix/prefix_cache.h"
#include "reuse/prefix/prefix_saver.h"
#include "reuse/prefix/prefix_store.h"
#include "store/tier_chain.h"

namespace vlcache {
namespace {

constexpr double kRecentTokens = 8192;            // of prompts that tell what a token costs
constexpr int64_t kLeastQueuedBytes = 256 << 20;  // of what waits to be stored: a few images of any model

}  // namespace

EngineCaches::EngineCaches(const Model& model, PagePools& pools, const KvShape& shape, const EngineOptions& options)
    : model_(model) {
  budget_ = std::make_unique<CacheBudget>(options.cache_bytes);
  encoder_outputs_ = std::make_unique<DigestCache>(*budget_);
  image_kv_ = std::make_unique<DigestCache>(*budget_);
  prefixes_ = std::make_unique<PrefixCache>(*budget_, pools, shape);
  if (!options.tiers.empty()) {
    tiers_ = std::make_unique<TierChain>(options.tiers, std::max(options.cache_bytes / 2, kLeastQueuedBytes));
    tiers_->set_model(model_.fingerprint());
    const ImageStore::Options images{.admit = options.cache_admit, .deadline_ms = options.cache_deadline_ms};
    image_store_ = std::make_unique<ImageStore>(*tiers_, images, model_.fingerprint(), shape, options.cache_form,
                                                model_.compute_dtype(), model_.output_width());
    image_prefetch_ = std::make_unique<ImagePrefetch>(*budget_, *image_kv_, *image_store_, shape, options.cache_form);
    prefix_store_ = std::make_unique<PrefixStore>(*tiers_, model_.fingerprint(), shape, pools);
    const auto empty = [&, shape] { return KvCache(pools, model.backend(), shape); };
    prefix_saver_ = std::make_unique<PrefixSaver>(make_prefix_places(*prefix_store_, *prefixes_, empty),
                                                  options.save_prefixes, options.first_use_bytes);
  }
}

EngineCaches::~EngineCaches() = default;

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
  if (known != nullptr && image_store_ != nullptr) {
    image_store_->rows_used(key, known->record(), known, /*computed=*/false);
  }
  return known;
}

std::shared_ptr<const VisionOutput> EngineCaches::keep_encoded(const Sha256Digest& key, VisionOutput embeddings,
                                                               double ms) {
  auto output = std::make_shared<const VisionOutput>(std::move(embeddings));
  if (image_store_ != nullptr) image_store_->rows_used(key, output->record(), output, /*computed=*/true, ms);
  encoder_outputs_->put(key, output, output->storage.bytes(), ms);
  return output;
}

EngineCaches::LoadedEmbeddings EngineCaches::load_embeddings(const ImageTiles& image, const Sha256Digest& key,
                                                             ChainedTier& from, Deadline by) const {
  auto output = std::make_shared<VisionOutput>(model_.allocate_output(model_.n_image_tokens(image)));
  auto load = image_store_->load_rows(key, output->record(), output, from, by);
  return {.output = std::move(output), .load = std::move(load), .begin = Clock::now()};
}

void EngineCaches::keep_embeddings(const Sha256Digest& key, const LoadedEmbeddings& loaded) {
  image_store_->rows_loaded(key, loaded.output->record(), loaded.output, *loaded.load);
  encoder_outputs_->put(key, loaded.output, loaded.output->storage.bytes(), ms_since(loaded.begin));
}

bool EngineCaches::holds_image(const Sha256Digest& key, bool with_kv) const {
  return encoder_outputs_->contains(key) && (!with_kv || image_kv_->contains(key));
}

}  // namespace vlcache
