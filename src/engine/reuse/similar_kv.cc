#include "engine/reuse/similar_kv.h"

#include <algorithm>

#include "engine/kv_caches.h"
#include "model/images/cell_hashes.h"

namespace vlcache {

SimilarKv::SimilarKv(const ModelConfig& config, KvCaches& kv, const Prompt& prompt, const ReuseOptions& options)
    : config_(config), kv_(kv), prompt_(prompt) {
  allowed_ = options.similar && !options.shadow && options.chooser != nullptr &&
             options.chooser->preview(kv.shape().n_layers()).n_layers == 0;
}

// What decides which token of an image shows what, and which prompts may share KV.
Sha256Digest SimilarKv::shape(size_t number) const {
  const ImageTiles& tiles = prompt_.images[number];
  Sha256 hash;
  for (const int64_t size : {tiles.n_tiles, tiles.n_frames, tiles.height, tiles.width, tiles.original_height,
                             tiles.original_width, tiles.tile_rows, tiles.tile_cols, tiles.overview}) {
    hash.add(size);
  }
  if (prompt_.salt) hash.add(std::as_bytes(std::span(*prompt_.salt)));
  return hash.finish();
}

std::optional<SimilarKv::Found> SimilarKv::find(const PromptImage& image, size_t number,
                                                const std::optional<Sha256Digest>& again) const {
  const ImageTiles& tiles = prompt_.images[number];
  if (!allowed_ || tiles.hashes == nullptr) return {};
  DigestCache& cached = kv_.image_kv();
  SimilarImageIndex& similar = kv_.similar_images();
  const auto other = similar.find(image.key, shape(number), *tiles.hashes, [&](const Sha256Digest& key) {
    return (!again || key == *again) && cached.contains(key);
  });
  if (!other) return {};
  Found found{.image = other->image, .kv = cached.find<ImageKv>(other->image), .changed = {}};
  found.changed = changed_tokens(config_, tiles, *other->cells, *tiles.hashes);
  found.n_changed = static_cast<int32_t>(std::ranges::count(found.changed, true));
  if (found.kv == nullptr || !found.kv->keeps_all() || found.kv->n_tokens() != image.n_tokens) return {};
  if (found.n_changed == image.n_tokens || (!again && !similar.first_time(image.key))) return {};
  return found;
}

void SimilarKv::note(const PromptImage& image, size_t number) const {
  const ImageTiles& tiles = prompt_.images[number];
  if (tiles.hashes != nullptr) kv_.similar_images().put(image.key, shape(number), tiles.hashes);
}

}  // namespace vlcache
