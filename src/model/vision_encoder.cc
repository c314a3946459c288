#include "model/vision_encoder.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "model/images/patch_grid.h"

namespace vlcache {
namespace {

// Rows that run together: enough for full matrix speed, with a workspace of about 60 MB for CLIP-L in bf16.
constexpr int64_t kGroupRows = 2560;

}  // namespace

// A layer of a group of many rows is computed in parts, each about as much work as a layer of kGroupRows rows.
struct VisionEncoder::Part {
  enum class Kind : uint8_t { kProject, kAttend, kFeed };
  Kind kind = Kind::kProject;
  int64_t begin = 0, end = 0;  // rows, or heads of kAttend
};

struct VisionEncoder::Group {
  Tensor pixels;                        // [n_tiles, n C, h, w]
  Tensor x;                             // [total(), hidden]
  Tensor attended;                      // [total(), hidden]
  Tensor qkv;                           // [total(), 3 hidden]
  Tensor cos, sin;                      // [total(), head_dim / 2] f32; with rope
  std::vector<int32_t> offsets;         // of each tile's rows in x
  std::vector<int32_t> window_offsets;  // of each window's rows in x
  PatchOrder order;                     // of a tile's rows; with any_grid
  std::vector<Part> windowed_parts, full_parts;
  int64_t first_tile = 0;
  int64_t n_tiles = 0;
  bool some_cells = false;  // the order is that of some of a single tile's patches
  int64_t n_patches = 0;    // per tile
  int64_t n_rows = 0;       // per tile, with the class token
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

int64_t VisionEncoder::qkv_width() const { return std::max(3 * config_.hidden_size, weights_.patch.n_in); }

int64_t VisionEncoder::tokens_per_tile(int64_t height, int64_t width) const {
  const int64_t p = config_.patch_size, side = config_.side();
  const auto fail = [&](const std::string& expected) {
    throw Error(ErrorCode::kShape,
                "the image processor (preprocessor_config.json or processor_config.json) made tiles of " +
                    std::to_string(height) + " x " + std::to_string(width) +
                    " pixels, the vision encoder (config.json) takes " + expected);
  };
  if (config_.traits.any_grid) {
    const int64_t cell = config_.cell();
    if (height < cell || width < cell || height % cell != 0 || width % cell != 0) {
      fail("multiples of " + std::to_string(cell) + " (patches of " + std::to_string(p) + " pixels, merged " +
           std::to_string(config_.merge) + " x " + std::to_string(config_.merge) + ")");
    }
    return (height / p) * (width / p);
  }
  const bool fits = config_.traits.positions == VisionPositions::kTrainedGrid
                        ? height == config_.image_size && width == config_.image_size
                        : height >= p && width >= p && height / p <= side && width / p <= side;
  if (!fits) fail(std::to_string(config_.image_size) + " x " + std::to_string(config_.image_size));
  return (height / p) * (width / p) + config_.n_class_features();
}

double VisionEncoder::flops(int64_t n_tiles, int64_t n_patches) const {
  const auto n = static_cast<double>(n_patches + config_.n_class_rows()), h = static_cast<double>(config_.hidden_size);
  const auto side = static_cast<double>(config_.window / config_.patch_size);
  const double n_mlp = config_.traits.gated_mlp ? 3 : 2;
  const double weights = h * (4 * h + n_mlp * static_cast<double>(config_.ffn_size));
  double sum = 0;
  for (int32_t layer = 0; layer < config_.n_used_layers(); ++layer) {
    const double seen = config_.windowed(layer) ? std::min(n, side * side) : n;
    sum += n * (2 * weights + 4 * h * seen);
  }
  return static_cast<double>(n_tiles) * sum;
}

void VisionEncoder::reserve(int64_t n_rows) {
  if (n_rows <= capacity_) return;
  const int64_t element = dtype_bytes(backend_.compute_dtype()), h = config_.hidden_size;
  const auto room = [&](Buffer& buffer, int64_t width) {
    buffer = Buffer();
    buffer = Buffer(n_rows * width * element);
  };
  for (Buffer* buffer : {&normed_, &attended_}) room(*buffer, h);
  room(qkv_, qkv_width());
  room(ffn_, config_.traits.gated_mlp ? 3 * config_.ffn_size : config_.ffn_size);
  capacity_ = n_rows;
}

VisionInput::VisionInput(const ImageTiles& image) : pixels(image.tensor()) {
  if (image.kept) cells = image.kept->cells;
}

VisionEncoder::Pass::Pass(VisionEncoder& encoder, const VisionInput& input, const VisionFeatures& features,
                          VisionCapture* capture, bool tile_by_tile)
    : encoder_(encoder),
      pixels_(input.pixels),
      features_(features),
      capture_(capture),
      group_(std::make_unique<Group>()) {
  const VisionConfig& config = encoder.config_;
  const Tensor& pixels = pixels_;
  CHECK(pixels.rank == 4 && pixels.dtype == DType::kF32);
  CHECK(pixels.dim(1) == config.n_channels || pixels.dim(1) == config.n_frames * config.n_channels);
  const int64_t n_tiles = pixels.rows();
  tokens_ = encoder.tokens_per_tile(pixels.dim(2), pixels.dim(3));
  Group& group = *group_;
  group.some_cells = !input.cells.empty();
  CHECK(!group.some_cells || (config.traits.any_grid && n_tiles == 1));
  if (group.some_cells) tokens_ = std::ssize(input.cells) * config.merge * config.merge;
  CHECK(features.main.rows() == n_tiles * tokens_ && features.main.row_size() == config.feature_size());
  CHECK(features.taps.size() == config.tap_layers.size());
  group.grid_rows = pixels.dim(2) / config.patch_size;
  group.grid_cols = pixels.dim(3) / config.patch_size;
  group.n_patches = group.some_cells ? tokens_ : group.grid_rows * group.grid_cols;
  group.n_rows = group.n_patches + config.n_class_rows();
  if (capture != nullptr) {
    capture->probs.clear();
    for (const int32_t layer : capture->layers) {
      if (!config.traits.class_token || layer < 0 || layer >= config.n_used_layers()) {
        throw Error(ErrorCode::kInput,
                    "no class-token attention of vision layer " + std::to_string(layer) + " to capture");
      }
      capture->probs.emplace_back(n_tiles * group.n_rows * config.n_heads * int64_t{sizeof(float)});
    }
  }
  const int64_t most = tile_by_tile ? 1 : std::max<int64_t>(n_tiles, 1);
  per_group_ = std::clamp<int64_t>(kGroupRows / group.n_rows, 1, most);
  const int64_t n_rows = per_group_ * group.n_rows, element = dtype_bytes(encoder.backend_.compute_dtype());
  x_ = Buffer(n_rows * config.hidden_size * element);
  if (n_rows > kGroupRows) {
    qkv_ = Buffer(n_rows * encoder.qkv_width() * element);
    attended_ = Buffer(n_rows * config.hidden_size * element);
  }
  if (config.traits.any_grid) {
    group.order = patch_order(config, {.rows = group.grid_rows, .cols = group.grid_cols}, input.cells);
  }
  if (config.traits.rope) {
    const PatchGrid grid = {.rows = group.grid_rows, .cols = group.grid_cols};
    const int64_t width = config.head_dim() / 2;
    cos_ = Buffer(n_rows * width * int64_t{sizeof(float)});
    sin_ = Buffer(n_rows * width * int64_t{sizeof(float)});
    group.cos = Tensor(cos_.data(), DType::kF32, {n_rows, width});
    group.sin = Tensor(sin_.data(), DType::kF32, {n_rows, width});
    for (int64_t begin = 0; begin < n_rows; begin += group.n_rows) {
      const int64_t end = begin + group.n_rows;
      fill_patch_rotations(config, grid, group.order.patches, group.cos.slice_rows(begin, end),
                           group.sin.slice_rows(begin, end));
    }
  }
}

VisionEncoder::Pass::~Pass() = default;
VisionEncoder::Pass::Pass(Pass&&) noexcept = default;

// Embeds the first tiles that are not done yet.
void VisionEncoder::Pass::begin_group() {
  Group& group = *group_;
  const int64_t hidden = encoder_.config_.hidden_size;
  group.first_tile += group.n_tiles;
  group.n_tiles = std::min(per_group_, pixels_.rows() - group.first_tile);
  group.pixels = pixels_.slice_rows(group.first_tile, group.first_tile + group.n_tiles);
  group.x = encoder_.rows_of(x_, group.total(), hidden);
  group.offsets.clear();
  for (int64_t i = 0; i <= group.n_tiles; ++i) group.offsets.push_back(static_cast<int32_t>(i * group.n_rows));
  group.window_offsets = {0};
  for (int64_t i = 0; i < group.n_tiles; ++i) {
    for (size_t j = 1; j < group.order.windows.size(); ++j)
      group.window_offsets.push_back(group.offsets[static_cast<size_t>(i)] + group.order.windows[j]);
  }
  encoder_.reserve(std::min(per_group_ * group.n_rows, kGroupRows));
  const bool many = !qkv_.empty();
  group.attended = encoder_.rows_of(many ? attended_ : encoder_.attended_, group.total(), hidden);
  group.qkv = encoder_.rows_of(many ? qkv_ : encoder_.qkv_, group.total(), 3 * hidden);
  plan_parts();
  if (group.some_cells) {
    encoder_.embed_cells(group);
  } else {
    encoder_.embed_tiles(group);
  }
  take(0);
}

// Rows in equal pieces of at most kGroupRows, heads in groups of the same amount of work.
void VisionEncoder::Pass::plan_parts() {
  const VisionConfig& config = encoder_.config_;
  Group& group = *group_;
  const int64_t n = group.total(), n_pieces = (n + kGroupRows - 1) / kGroupRows;
  for (std::vector<Part>* parts : {&group.windowed_parts, &group.full_parts}) {
    const std::vector<int32_t>& offsets = parts == &group.full_parts ? group.offsets : group.window_offsets;
    double pairs = 0;
    for (size_t i = 1; i < offsets.size(); ++i) pairs += std::pow(offsets[i] - offsets[i - 1], 2.0);
    const double layer = 24.0 * kGroupRows * static_cast<double>(config.hidden_size * config.hidden_size),
                 head = 4.0 * pairs * static_cast<double>(config.head_dim());
    const auto n_fit = static_cast<int64_t>(layer / std::max(head, 1.0));
    const int64_t n_heads =
        n_pieces == 1 || capture_ != nullptr ? config.n_heads : std::clamp<int64_t>(n_fit, 1, config.n_heads);
    parts->clear();
    const auto add_rows = [&](Part::Kind kind) {
      for (int64_t i = 0; i < n_pieces; ++i)
        parts->push_back({.kind = kind, .begin = i * n / n_pieces, .end = (i + 1) * n / n_pieces});
    };
    add_rows(Part::Kind::kProject);
    for (int64_t i = 0; i < config.n_heads; i += n_heads)
      parts->push_back({.kind = Part::Kind::kAttend, .begin = i, .end = std::min(i + n_heads, config.n_heads)});
    add_rows(Part::Kind::kFeed);
  }
}

// A group's rows of features.
Tensor VisionEncoder::Pass::of_group(const Tensor& features) const {
  return features.slice_rows(group_->first_tile * tokens_, (group_->first_tile + group_->n_tiles) * tokens_);
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

// Copies hidden state `state` to wherever it is asked for.
void VisionEncoder::Pass::take(int32_t state) {
  encoder_.take_features(state, *group_, of_group(features_.main));
  for (size_t i = 0; i < features_.taps.size(); ++i) {
    if (encoder_.config_.tap_layers[i] + 1 == state)
      encoder_.gather_features(*group_, group_->x, of_group(features_.taps[i]));
  }
}

bool VisionEncoder::Pass::step() {
  const auto n_layers = static_cast<int32_t>(encoder_.config_.n_used_layers());
  const auto all_begun = [&] { return group_->first_tile + group_->n_tiles == pixels_.rows(); };
  if (next_layer_ == 0 && next_part_ == 0) {
    if (all_begun()) return false;  // no tiles
    begin_group();
  }
  if (next_layer_ < n_layers) {
    const std::vector<Part>& parts =
        encoder_.config_.windowed(next_layer_) ? group_->windowed_parts : group_->full_parts;
    do {
      encoder_.run_part(next_layer_, *group_, parts[next_part_], probs_of(next_layer_));
    } while (++next_part_ < parts.size() && qkv_.empty());
    if (next_part_ < parts.size()) return true;
    next_part_ = 0;
    take(++next_layer_);
  }
  if (next_layer_ < n_layers) return true;
  next_layer_ = 0;
  return !all_begun();
}

double VisionEncoder::Pass::share_done() const {
  double of_group = 1;  // after its last layer, until the next one begins
  if (next_layer_ > 0 || next_part_ > 0) {
    const bool windowed = encoder_.config_.windowed(next_layer_);
    const size_t n_parts = (windowed ? group_->windowed_parts : group_->full_parts).size();
    const double layers = next_layer_ + static_cast<double>(next_part_) / static_cast<double>(n_parts);
    of_group = layers / static_cast<double>(encoder_.config_.n_used_layers());
  }
  const double n_done = static_cast<double>(group_->first_tile) + of_group * static_cast<double>(group_->n_tiles);
  return n_done / static_cast<double>(std::max<int64_t>(pixels_.rows(), 1));
}

void VisionEncoder::forward(const VisionInput& input, const VisionFeatures& features, VisionCapture* capture) {
  Pass pass = begin(input, features, capture);
  while (pass.step()) {
  }
}

// Patches of all tiles, in raster order.
void VisionEncoder::patchify(const Group& group, const Tensor& patches) {
  const int64_t frame_size = group.pixels.row_size() / group.pixels.dim(1) * config_.n_channels,
                n_given = group.pixels.row_size() / frame_size, patch_size = patches.row_size() / config_.n_frames;
  for (int64_t frame = 0; frame < config_.n_frames; ++frame) {
    const int64_t given = std::min(frame, n_given - 1);  // a still image stands for every frame
    const Tensor pixels = group.pixels.view({group.n_tiles, group.pixels.row_size()})
                              .columns(given * frame_size, (given + 1) * frame_size)
                              .view({group.n_tiles, config_.n_channels, group.pixels.dim(2), group.pixels.dim(3)});
    backend_.patchify(pixels, config_.patch_size, patches.columns(frame * patch_size, (frame + 1) * patch_size));
  }
}

// Only the patches of the order are multiplied; each has the position of its own place.
void VisionEncoder::embed_cells(const Group& group) {
  const int64_t n_all = group.grid_rows * group.grid_cols, n_in = weights_.patch.n_in, h = config_.hidden_size;
  const int64_t element = dtype_bytes(backend_.compute_dtype());
  const Buffer all_memory(n_all * n_in * element), positions_memory(group.n_rows * h * element);
  const Tensor all = rows_of(all_memory, n_all, n_in), patches(group.qkv.data, group.qkv.dtype, {group.n_rows, n_in});
  patchify(group, all);
  backend_.gather_rows(all, group.order.patches, patches);
  const Tensor of_grid = position_rows(group.grid_rows, group.grid_cols);
  const Tensor positions = of_grid.rank > 0 ? rows_of(positions_memory, group.n_rows, h) : Tensor();
  if (of_grid.rank > 0) backend_.gather_rows(of_grid, group.order.patches, positions);
  backend_.matmul(patches, weights_.patch, group.x,
                  {.bias = or_null(weights_.patch_bias), .residual = or_null(positions)});
  if (config_.traits.pre_norm) norm(group.x, weights_.pre_norm_w, weights_.pre_norm_b, group.x);
}

void VisionEncoder::embed_tiles(const Group& group) {
  const int64_t h = config_.hidden_size, n_class = group.n_rows - group.n_patches;
  const Tensor& x = group.x;
  const Tensor patches(group.qkv.data, group.qkv.dtype, {group.n_tiles * group.n_patches, weights_.patch.n_in});
  patchify(group, patches);
  const Tensor positions = position_rows(group.grid_rows, group.grid_cols);
  const Tensor* bias = or_null(weights_.patch_bias);
  static constexpr int32_t kFirstRow[] = {0};
  for (int64_t i = 0; i < group.n_tiles; ++i) {
    const bool ordered = config_.traits.any_grid;
    const Tensor tile = x.slice_rows(i * group.n_rows, (i + 1) * group.n_rows);
    const Tensor to = ordered ? group.attended.slice_rows(0, group.n_rows) : tile;
    if (n_class > 0) backend_.gather_rows(rows_of(class_row_, 1, h), kFirstRow, to.slice_rows(0, 1));
    backend_.matmul(patches.slice_rows(i * group.n_patches, (i + 1) * group.n_patches), weights_.patch,
                    to.slice_rows(n_class, group.n_rows), {.bias = bias, .residual = or_null(positions)});
    if (ordered) backend_.gather_rows(to, group.order.patches, tile);
  }
  if (config_.traits.pre_norm) norm(x, weights_.pre_norm_w, weights_.pre_norm_b, x);
}

// Position embeddings of the patches of a grid; the trained grid's are stored after the class token's. Empty if
// there are none.
Tensor VisionEncoder::position_rows(int64_t grid_rows, int64_t grid_cols) {
  const VisionPositions kind = config_.traits.positions;
  if (kind == VisionPositions::kNone) return {};
  const int64_t n = grid_rows * grid_cols, h = config_.hidden_size;
  const int64_t n_class = config_.n_class_rows();
  if (kind == VisionPositions::kTrainedGrid) return weights_.positions.slice_rows(n_class, n_class + n);
  if (grid_rows != grid_rows_ || grid_cols != grid_cols_) {
    positions_ = Buffer(n * h * dtype_bytes(backend_.compute_dtype()));
    const Tensor table = weights_.positions.slice_rows(n_class, config_.n_positions()), out = rows_of(positions_, n, h);
    if (kind == VisionPositions::kIds) {
      backend_.gather_rows(table, config_.traits.position_ids(config_.side(), grid_rows, grid_cols), out);
    } else {
      const Buffer table_memory(table.numel() * int64_t{sizeof(float)}), memory(n * h * int64_t{sizeof(float)});
      const Tensor wide_table(table_memory.data(), DType::kF32, {table.rows(), h});
      const Tensor wide(memory.data(), DType::kF32, {n, h});
      backend_.convert(table, wide_table);
      interpolate_positions(wide_table, config_.side(), kind, {.rows = grid_rows, .cols = grid_cols}, wide);
      backend_.convert(wide, out);
    }
    grid_rows_ = grid_rows;
    grid_cols_ = grid_cols;
  }
  return rows_of(positions_, n, h);
}

void VisionEncoder::run_part(int32_t index, const Group& group, const Part& part, const Tensor& class_probs) {
  const VisionLayerWeights& w = weights_.layers[static_cast<size_t>(index)];
  switch (part.kind) {
    case Part::Kind::kProject:
      return project_rows(w, group, part.begin, part.end);
    case Part::Kind::kAttend:
      return attend(index, group, part.begin, part.end, class_probs);
    case Part::Kind::kFeed:
      return feed_rows(w, group, part.begin, part.end);
  }
}

// q, k and v of some rows.
void VisionEncoder::project_rows(const VisionLayerWeights& w, const Group& group, int64_t begin, int64_t end) {
  const int64_t h = config_.hidden_size, d = config_.head_dim(), heads = config_.n_heads, n = end - begin;
  const Tensor normed = rows_of(normed_, n, h), qkv = group.qkv.slice_rows(begin, end);
  norm(group.x.slice_rows(begin, end), w.norm1_w, w.norm1_b, normed);
  backend_.matmul(normed, w.qkv, qkv, {.bias = or_null(w.qkv_bias)});
  if (config_.traits.qk_norm) {
    const Tensor q = qkv.columns(0, h).view({n, heads, d}), k = qkv.columns(h, 2 * h).view({n, heads, d});
    backend_.rms_norm(q, w.q_norm, config_.layer_norm_eps, q);
    backend_.rms_norm(k, w.k_norm, config_.layer_norm_eps, k);
  }
  if (config_.traits.rope) {
    const Tensor both = qkv.columns(0, 2 * h).view({n, 2 * heads, d});
    backend_.rope(both, group.cos.slice_rows(begin, end), group.sin.slice_rows(begin, end), both);
  }
}

// Attention of heads [begin, end).
void VisionEncoder::attend(int32_t index, const Group& group, int64_t begin, int64_t end, const Tensor& class_probs) {
  const int64_t h = config_.hidden_size, d = config_.head_dim(), n = group.total();
  const auto part = [&](const Tensor& rows, int64_t column) {
    return rows.columns(column + begin * d, column + end * d).view({n, end - begin, d});
  };
  const DenseAttentionArgs args = {.scale = 1.0f / std::sqrt(static_cast<float>(d)),
                                   .offsets = config_.windowed(index) ? group.window_offsets : group.offsets,
                                   .first_row_probs = class_probs};
  backend_.dense_attention(part(group.qkv, 0), part(group.qkv, h), part(group.qkv, 2 * h), args,
                           part(group.attended, 0));
}

// The rest of a layer, of some rows.
void VisionEncoder::feed_rows(const VisionLayerWeights& w, const Group& group, int64_t begin, int64_t end) {
  const int64_t n = end - begin, f = config_.ffn_size;
  const Tensor x = group.x.slice_rows(begin, end), normed = rows_of(normed_, n, config_.hidden_size);
  backend_.matmul(group.attended.slice_rows(begin, end), w.out, x, {.bias = or_null(w.out_bias), .residual = &x});
  norm(x, w.norm2_w, w.norm2_b, normed);
  Tensor ffn = rows_of(ffn_, n, f);
  if (config_.traits.gated_mlp) {
    const Tensor gate_up = rows_of(ffn_, n, 2 * f);
    ffn.data = gate_up.data + gate_up.bytes();
    backend_.matmul(normed, w.fc1, gate_up, {.bias = or_null(w.fc1_bias)});
    backend_.gated_act(gate_up, config_.activation, ffn);
  } else {
    backend_.matmul(normed, w.fc1, ffn, {.bias = or_null(w.fc1_bias), .act = config_.activation});
  }
  backend_.matmul(ffn, w.fc2, x, {.bias = or_null(w.fc2_bias), .residual = &x});
}

void VisionEncoder::norm(const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& y) const {
  if (config_.traits.rms_norm) {
    backend_.rms_norm(x, w, config_.layer_norm_eps, y);
  } else {
    backend_.layer_norm(x, w, b, config_.layer_norm_eps, y);
  }
}

// Copies hidden state `state` to its columns of the features, wherever the configuration names it.
void VisionEncoder::take_features(int32_t state, const Group& group, const Tensor& features) {
  const int64_t h = config_.hidden_size;
  for (size_t i = 0; i < config_.feature_layers.size(); ++i) {
    if (config_.feature_layers[i] != state) continue;
    const Tensor out = features.columns(static_cast<int64_t>(i) * h, static_cast<int64_t>(i + 1) * h);
    if (!config_.traits.post_norm) {
      gather_features(group, group.x, out);
      continue;
    }
    const bool as_they_are = !config_.traits.any_grid && config_.n_class_features() == config_.n_class_rows();
    const Tensor& normed = as_they_are ? out : group.attended;
    norm(group.x, weights_.post_norm_w, weights_.post_norm_b, normed);
    if (!as_they_are) gather_features(group, normed, out);
  }
}

// The rows of the encoder in the order of the features.
void VisionEncoder::gather_features(const Group& group, const Tensor& from, const Tensor& to) {
  const bool all_rows = config_.n_class_features() == config_.n_class_rows();
  feature_rows_.clear();
  for (int64_t row = 0; row < group.total(); ++row) {
    const int64_t tile = row / group.n_rows * group.n_rows, place = row % group.n_rows;
    if (config_.traits.any_grid) {
      feature_rows_.push_back(static_cast<int32_t>(tile) + group.order.features[static_cast<size_t>(place)]);
    } else if (all_rows || place != 0) {
      feature_rows_.push_back(static_cast<int32_t>(row));
    }
  }
  backend_.gather_rows(from, feature_rows_, to);
}

}  // namespace vlcache
