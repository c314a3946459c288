#include "model/vision_encoder.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace vlcache {
namespace {

// Rows that run together: enough for full matrix speed, with a workspace of about 60 MB for CLIP-L in bf16.
constexpr int64_t kGroupRows = 2560;

}  // namespace

struct VisionEncoder::Group {
  Tensor pixels;                 // [n_tiles, C, h, w]
  Tensor x;                      // [total(), hidden]
  std::vector<int32_t> offsets;  // of each tile's rows in x
  int64_t first_tile = 0;
  int64_t n_tiles = 0;
  int64_t n_patches = 0;  // per tile
  int64_t n_rows = 0;     // per tile, with the class token
  int64_t grid_rows = 0, grid_cols = 0;
  int64_t total() const { return n_tiles * n_rows; }
};

VisionEncoder::VisionEncoder(const VisionConfig& config, const VisionWeights& weights, Backend& backend)
    : config_(config), weights_(weights), backend_(backend) {
  if (!config.traits.class_token) return;
  class_row_ = Buffer(config.hidden_size * dtype_bytes(backend.compute_dtype()));
  backend.add(weights.class_embedding, weights.positions.slice_rows(0, 1), rows_of(class_row_, 1, config.hidden_size));
}

Tensor VisionEncoder::rows_of(const Buffer& buffer, int64_t n_rows, int64_t width) const {
  return Tensor(buffer.data(), backend_.compute_dtype(), {n_rows, width});
}

int64_t VisionEncoder::tokens_per_tile(int64_t height, int64_t width) const {
  const int64_t p = config_.patch_size, side = config_.side();
  const bool fits = config_.traits.position_ids == nullptr
                        ? height == config_.image_size && width == config_.image_size
                        : height >= p && width >= p && height / p <= side && width / p <= side;
  if (!fits) {
    throw Error(ErrorCode::kShape, "the image processor made tiles of " + std::to_string(height) + " x " +
                                       std::to_string(width) + " pixels, the vision encoder takes " +
                                       std::to_string(config_.image_size) + " x " + std::to_string(config_.image_size));
  }
  return (height / p) * (width / p) + config_.n_class_features();
}

void VisionEncoder::reserve(int64_t n_rows) {
  if (n_rows <= capacity_) return;
  const int64_t element = dtype_bytes(backend_.compute_dtype()), h = config_.hidden_size;
  const auto room = [&](Buffer& buffer, int64_t width) {
    buffer = Buffer();
    buffer = Buffer(n_rows * width * element);
  };
  for (Buffer* buffer : {&normed_, &attended_}) room(*buffer, h);
  room(qkv_, 3 * h);
  room(ffn_, config_.ffn_size);
  room(patches_, config_.n_channels * config_.patch_size * config_.patch_size);
  capacity_ = n_rows;
}

VisionEncoder::Pass::Pass(VisionEncoder& encoder, const Tensor& pixels, const Tensor& features, VisionCapture* capture,
                          bool tile_by_tile)
    : encoder_(encoder), pixels_(pixels), features_(features), capture_(capture), group_(std::make_unique<Group>()) {
  const VisionConfig& config = encoder.config_;
  CHECK(pixels.rank == 4 && pixels.dtype == DType::kF32);
  const int64_t n_tiles = pixels.rows();
  tokens_ = encoder.tokens_per_tile(pixels.dim(2), pixels.dim(3));
  CHECK(features.rows() == n_tiles * tokens_ && features.row_size() == config.feature_size());
  group_->grid_rows = pixels.dim(2) / config.patch_size;
  group_->grid_cols = pixels.dim(3) / config.patch_size;
  group_->n_patches = group_->grid_rows * group_->grid_cols;
  group_->n_rows = group_->n_patches + config.n_class_rows();
  if (capture != nullptr) {
    capture->probs.clear();
    for (const int32_t layer : capture->layers) {
      if (!config.traits.class_token || layer < 0 || layer >= config.n_used_layers()) {
        throw Error(ErrorCode::kInput,
                    "no class-token attention of vision layer " + std::to_string(layer) + " to capture");
      }
      capture->probs.emplace_back(n_tiles * group_->n_rows * config.n_heads * int64_t{sizeof(float)});
    }
  }
  const int64_t most = tile_by_tile ? 1 : std::max<int64_t>(n_tiles, 1);
  per_group_ = std::clamp<int64_t>(kGroupRows / group_->n_rows, 1, most);
  x_ = Buffer(per_group_ * group_->n_rows * config.hidden_size * dtype_bytes(encoder.backend_.compute_dtype()));
}

VisionEncoder::Pass::~Pass() = default;
VisionEncoder::Pass::Pass(Pass&&) noexcept = default;

// Embeds the first tiles that are not done yet.
void VisionEncoder::Pass::begin_group() {
  Group& group = *group_;
  group.first_tile += group.n_tiles;
  group.n_tiles = std::min(per_group_, pixels_.rows() - group.first_tile);
  group.pixels = pixels_.slice_rows(group.first_tile, group.first_tile + group.n_tiles);
  group.x = encoder_.rows_of(x_, group.total(), encoder_.config_.hidden_size);
  group.offsets.clear();
  for (int64_t i = 0; i <= group.n_tiles; ++i) group.offsets.push_back(static_cast<int32_t>(i * group.n_rows));
  encoder_.reserve(per_group_ * group.n_rows);
  encoder_.embed_tiles(group);
  encoder_.take_features(0, group, features_of_group());
}

Tensor VisionEncoder::Pass::features_of_group() const {
  return features_.slice_rows(group_->first_tile * tokens_, (group_->first_tile + group_->n_tiles) * tokens_);
}

// Where the class token's attention in a layer is written; empty: nowhere.
Tensor VisionEncoder::Pass::probs_of(int32_t layer) const {
  Tensor probs;
  const int64_t rows = group_->n_rows, first = group_->first_tile;
  for (size_t i = 0; capture_ != nullptr && i < capture_->layers.size(); ++i) {
    if (capture_->layers[i] != layer) continue;
    probs = Tensor(capture_->probs[i].data(), DType::kF32, {pixels_.rows() * rows, encoder_.config_.n_heads});
    probs = probs.slice_rows(first * rows, (first + group_->n_tiles) * rows);
  }
  return probs;
}

bool VisionEncoder::Pass::step() {
  const auto n_layers = static_cast<int32_t>(encoder_.config_.n_used_layers());
  const auto all_begun = [&] { return group_->first_tile + group_->n_tiles == pixels_.rows(); };
  if (next_layer_ == 0) {
    if (all_begun()) return false;  // no tiles
    begin_group();
  }
  if (next_layer_ < n_layers) {
    encoder_.run_layer(next_layer_, *group_, probs_of(next_layer_));
    ++next_layer_;
    encoder_.take_features(next_layer_, *group_, features_of_group());
  }
  if (next_layer_ < n_layers) return true;
  next_layer_ = 0;
  return !all_begun();
}

void VisionEncoder::forward(const Tensor& pixels, const Tensor& features, VisionCapture* capture) {
  Pass pass = begin(pixels, features, capture);
  while (pass.step()) {
  }
}

void VisionEncoder::embed_tiles(const Group& group) {
  const int64_t h = config_.hidden_size, n_class = group.n_rows - group.n_patches;
  const Tensor& x = group.x;
  const Tensor patches = rows_of(patches_, group.n_tiles * group.n_patches, weights_.patch.n_in);
  backend_.patchify(group.pixels, config_.patch_size, patches);
  const Tensor positions = position_rows(group.grid_rows, group.grid_cols);
  const Tensor* bias = weights_.patch_bias.empty() ? nullptr : &weights_.patch_bias;
  static constexpr int32_t kFirstRow[] = {0};
  for (int64_t i = 0; i < group.n_tiles; ++i) {
    const Tensor tile = x.slice_rows(i * group.n_rows, (i + 1) * group.n_rows);
    if (n_class > 0) backend_.gather_rows(rows_of(class_row_, 1, h), kFirstRow, tile.slice_rows(0, 1));
    backend_.matmul(patches.slice_rows(i * group.n_patches, (i + 1) * group.n_patches), weights_.patch,
                    tile.slice_rows(n_class, group.n_rows), {.bias = bias, .residual = &positions});
  }
  if (config_.traits.pre_norm) {
    backend_.layer_norm(x, weights_.pre_norm_w, weights_.pre_norm_b, config_.layer_norm_eps, x);
  }
}

// Position embeddings of the patches of a grid; those of the trained grid are stored after the class token's.
Tensor VisionEncoder::position_rows(int64_t grid_rows, int64_t grid_cols) {
  const int64_t n = grid_rows * grid_cols, h = config_.hidden_size;
  const int64_t n_class = config_.n_class_rows();
  if (config_.traits.position_ids == nullptr) return weights_.positions.slice_rows(n_class, n_class + n);
  if (grid_rows != grid_rows_ || grid_cols != grid_cols_) {
    positions_ = Buffer(n * h * dtype_bytes(backend_.compute_dtype()));
    const Tensor table = weights_.positions.slice_rows(n_class, config_.n_positions());
    backend_.gather_rows(table, config_.traits.position_ids(config_.side(), grid_rows, grid_cols),
                         rows_of(positions_, n, h));
    grid_rows_ = grid_rows;
    grid_cols_ = grid_cols;
  }
  return rows_of(positions_, n, h);
}

void VisionEncoder::run_layer(int32_t index, const Group& group, const Tensor& class_probs) {
  const VisionLayerWeights& w = weights_.layers[static_cast<size_t>(index)];
  const int64_t n = group.total(), h = config_.hidden_size, d = config_.head_dim(), heads = config_.n_heads;
  const Tensor &x = group.x, normed = rows_of(normed_, n, h), qkv = rows_of(qkv_, n, 3 * h);
  backend_.layer_norm(x, w.norm1_w, w.norm1_b, config_.layer_norm_eps, normed);
  backend_.matmul(normed, w.qkv, qkv, {.bias = &w.qkv_bias});
  const auto part = [&](int64_t i) { return qkv.columns(i * h, (i + 1) * h).view({n, heads, d}); };
  const DenseAttentionArgs args = {
      .scale = 1.0f / std::sqrt(static_cast<float>(d)), .offsets = group.offsets, .first_row_probs = class_probs};
  const Tensor attended = rows_of(attended_, n, h);
  backend_.dense_attention(part(0), part(1), part(2), args, attended.view({n, heads, d}));
  backend_.matmul(attended, w.out, x, {.bias = &w.out_bias, .residual = &x});
  backend_.layer_norm(x, w.norm2_w, w.norm2_b, config_.layer_norm_eps, normed);
  const Tensor ffn = rows_of(ffn_, n, config_.ffn_size);
  backend_.matmul(normed, w.fc1, ffn, {.bias = &w.fc1_bias, .act = config_.activation});
  backend_.matmul(ffn, w.fc2, x, {.bias = &w.fc2_bias, .residual = &x});
}

// Copies hidden state `state` to its columns of the features, wherever the configuration names it.
void VisionEncoder::take_features(int32_t state, const Group& group, const Tensor& features) {
  const int64_t h = config_.hidden_size;
  const Tensor& x = group.x;
  for (size_t i = 0; i < config_.feature_layers.size(); ++i) {
    if (config_.feature_layers[i] != state) continue;
    const Tensor out = features.columns(static_cast<int64_t>(i) * h, static_cast<int64_t>(i + 1) * h);
    const bool all_rows = config_.n_class_features() == config_.n_class_rows();
    Tensor from = x;
    if (config_.traits.post_norm) {
      from = all_rows ? out : rows_of(normed_, group.total(), h);
      backend_.layer_norm(x, weights_.post_norm_w, weights_.post_norm_b, config_.layer_norm_eps, from);
      if (all_rows) continue;
    }
    feature_rows_.clear();
    for (int64_t row = 0; row < group.total(); ++row) {
      if (all_rows || row % group.n_rows != 0) feature_rows_.push_back(static_cast<int32_t>(row));
    }
    backend_.gather_rows(from, feature_rows_, out);
  }
}

}  // namespace vlcache
