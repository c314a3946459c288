// The vision transformers that several families share.
#include <algorithm>
#include <cmath>

#include "model/families/families.h"

namespace vlcache {
namespace {

// Where the next position begins, as torch.arange(1 / side, 1, 1 / side) rounds it to f32. (Its vector loop rounds once
// more, depending on the machine's vector width; the grids of released models, 26, 27 and 32 a side, are the same
// either way.)
std::vector<float> bucket_boundaries(int64_t side) {
  const double step = 1.0 / static_cast<double>(side);
  std::vector<float> boundaries(static_cast<size_t>(std::ceil((1.0 - step) / step)));
  for (size_t i = 0; i < boundaries.size(); ++i)
    boundaries[i] = static_cast<float>(step + step * static_cast<double>(i));
  return boundaries;
}

std::vector<int32_t> buckets(const std::vector<float>& boundaries, int64_t n) {
  std::vector<int32_t> ids(static_cast<size_t>(n));
  const float step = 1.0f / static_cast<float>(n);
  for (int64_t i = 0; i < n; ++i) {
    const float at = std::min(static_cast<float>(i) * step, static_cast<float>(1.0 - 1e-6));
    ids[static_cast<size_t>(i)] =
        static_cast<int32_t>(std::upper_bound(boundaries.begin(), boundaries.end(), at) - boundaries.begin());
  }
  return ids;
}

}  // namespace

std::vector<int32_t> siglip_position_ids(int64_t side, int64_t grid_rows, int64_t grid_cols) {
  const std::vector<float> boundaries = bucket_boundaries(side);
  const std::vector<int32_t> rows = buckets(boundaries, grid_rows), cols = buckets(boundaries, grid_cols);
  std::vector<int32_t> ids;
  ids.reserve(rows.size() * cols.size());
  for (const int32_t r : rows) {
    for (const int32_t c : cols) ids.push_back(r * static_cast<int32_t>(side) + c);
  }
  return ids;
}

const VisionNames kSiglipNames;

// Defaults of CLIPVisionConfig and Idefics3VisionConfig (transformers 5.23).
const VisionFamily kClipVision = {.name = "CLIP",
                                  .model_type = "clip_vision_model",
                                  .traits = {.class_token = true, .pre_norm = true},
                                  .hidden_size = 768,
                                  .ffn_size = 3072,
                                  .n_layers = 12,
                                  .n_heads = 12,
                                  .image_size = 224,
                                  .patch_size = 32,
                                  .eps = 1e-5,
                                  .activation = "quick_gelu"};

const VisionFamily kSiglipVision = {.name = "SigLIP",
                                    .traits = {.patch_bias = true,
                                               .post_norm = true,
                                               .positions = VisionPositions::kIds,
                                               .position_ids = siglip_position_ids},
                                    .hidden_size = 1152,
                                    .ffn_size = 3072,
                                    .n_layers = 12,
                                    .n_heads = 16,
                                    .image_size = 224,
                                    .patch_size = 32,
                                    .eps = 1e-6,
                                    .activation = "gelu_pytorch_tanh"};

}  // namespace vlcache
