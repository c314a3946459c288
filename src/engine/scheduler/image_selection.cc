#include "engine/scheduler/image_selection.h"

#include <algorithm>

#include "base/at.h"
#include "base/clock.h"
#include "base/error.h"
#include "model/family.h"

namespace vlcache {
namespace {

// The encoder's layers that a policy requests, counted from the first, each once; `which` maps each request to its
// index.
std::vector<int32_t> layers_of(const VisionConfig& vision, const Policy& policy, std::vector<size_t>& which) {
  const auto n = static_cast<int32_t>(vision.n_used_layers());
  std::vector<int32_t> layers;
  for (const int32_t asked : policy.vision_layers()) {
    const int32_t layer = asked < 0 ? asked + n : asked;
    if (layer < 0 || layer >= n) {
      throw Error(ErrorCode::kInput, policy.name() + ": layer " + std::to_string(asked) +
                                         " of the vision encoder: expected " + std::to_string(-n) + " to " +
                                         std::to_string(n - 1) + ", of those this model computes");
    }
    const auto it = std::ranges::find(layers, layer);
    which.push_back(static_cast<size_t>(it - layers.begin()));
    if (it == layers.end()) layers.push_back(layer);
  }
  return layers;
}

// The tile of a split image that shows the middle of a rectangle; -1: none.
int32_t tile_around(const ImageTiles& image, const PixelRect& rect) {
  const float x = (rect.left + rect.right) / 2, y = (rect.top + rect.bottom) / 2;
  for (int32_t tile = 0; tile < image.n_tiles; ++tile) {
    const PixelRect& shown = image.shown[at(tile)];
    if (tile != image.overview && shown.left <= x && x < shown.right && shown.top <= y && y < shown.bottom) return tile;
  }
  return -1;
}

ImageTokens encode(Engine& engine, const Policy& policy, const ImageTiles& image, VisionOutput& output,
                   const WorkTold& told) {
  const ModelConfig& config = engine.model().config();
  std::vector<size_t> which;
  VisionCapture capture{.layers = layers_of(*config.vision, policy, which), .probs = {}};
  Model::Encoding encoding = engine.model().begin_encoding(image, &capture);
  while (encode_steps(engine, image, encoding, kNoDeadline, told)) {
  }
  output = encoding.finish();
  ImageTokens tokens{.n_tiles = static_cast<int32_t>(image.n_tiles), .overview = static_cast<int32_t>(image.overview)};
  const int64_t n_heads = config.vision->n_heads, class_row = 1 - config.vision->n_class_features();
  const std::vector<TokenPlace> places = token_places(config, image);
  for (const TokenPlace& place : places) {
    tokens.tile.push_back(place.tile < 0 ? ImageTokens::kNewline : place.tile);
    const bool overview = place.tile >= 0 && place.tile == image.overview && place.rect;
    tokens.larger.push_back(overview ? tile_around(image, *place.rect) : -1);
  }
  for (const size_t i : which) {
    std::vector<float>& sums = tokens.attention.emplace_back(places.size(), 0.0f);
    const Buffer& buffer = capture.probs[i];
    const Tensor probs(buffer.data(), DType::kF32, {buffer.bytes() / n_heads / dtype_bytes(DType::kF32), n_heads});
    const int64_t per_tile = probs.rows() / image.n_tiles;
    for (size_t t = 0; t < places.size(); ++t) {
      if (places[t].tile < 0) continue;
      const float* row = probs.row<float>(places[t].tile * per_tile + places[t].row + class_row);
      for (int64_t head = 0; head < n_heads; ++head) sums[t] += row[head];
    }
  }
  return tokens;
}

// The rows that a sequence has of its first images, as far as these are the prompt's first: one list for each.
std::vector<std::vector<int32_t>> chosen_before(const Prompt& prompt, const Sequence* earlier) {
  std::vector<std::vector<int32_t>> rows;
  if (earlier == nullptr) return rows;
  const std::vector<Sha256Digest> keys = image_keys(prompt);
  const PromptImages& images = earlier->images().list();
  for (size_t i = 0; i < std::min(keys.size(), images.size()) && images[i].key == keys[i]; ++i) {
    std::vector<int32_t>& of_image = rows.emplace_back();
    images[i].for_each_token([&](int32_t, int32_t row) { of_image.push_back(row); });
  }
  return rows;
}

// Keeps of every image the tokens that stand for its rows in `kept` (ascending). Returns the indices of all kept
// tokens.
std::vector<int32_t> close_up(Prompt& prompt, const std::vector<std::vector<int32_t>>& kept) {
  std::vector<int32_t> stay, next_token;
  std::vector<ImageSpan> spans;
  int32_t token = 0;
  const auto keep_text = [&](int32_t end) {
    for (; token < end; ++token) stay.push_back(token);
  };
  for (const ImageSpan& span : prompt.spans) {
    keep_text(span.begin);
    const std::vector<int32_t>& rows = kept[at(span.image)];
    ImageSpan left{
        .begin = static_cast<int32_t>(stay.size()), .end = 0, .image = span.image, .first_row = 0, .rows = {}};
    for (; token < span.end; ++token) {
      if (!std::ranges::binary_search(rows, span.row_of(token))) continue;
      left.rows.push_back(span.row_of(token));
      stay.push_back(token);
    }
    left.end = static_cast<int32_t>(stay.size());
    if (left.begin < left.end) spans.push_back(std::move(left));
  }
  keep_text(prompt.n_tokens());
  for (size_t i = 0; i < stay.size(); ++i) {
    prompt.tokens[i] = prompt.tokens[at(stay[i])];
    if (!prompt.classes.empty()) prompt.classes[i] = prompt.classes[at(stay[i])];
    if (!prompt.positions.empty()) prompt.positions[i] = prompt.positions[at(stay[i])];
  }
  prompt.tokens.resize(stay.size());
  if (!prompt.classes.empty()) prompt.classes.resize(stay.size());
  if (!prompt.positions.empty()) prompt.positions.resize(stay.size());
  prompt.spans = std::move(spans);
  return stay;
}

}  // namespace

void check_suits(const ModelConfig& config, const Policy& policy) {
  if (policy.renumbers() && config.text.learned_positions) {
    throw Error(ErrorCode::kInput, "'" + policy.name() + "' gives tokens other positions than their own; this model (" +
                                       config.model_type +
                                       ") has learned positions, which its keys cannot leave: choose another policy");
  }
  if (policy.vision_layers().empty()) return;
  const bool suits = config.vision && config.vision->traits.class_token && config.projector.scale == 1;
  if (!suits) {
    throw Error(ErrorCode::kInput,
                "'" + policy.name() +
                    "' goes by the attention of the vision encoder's class token, as CLIP in LLaVA has one; "
                    "this model (" +
                    config.model_type + ", " + (config.vision ? config.vision->name : "text only") + ") has none");
  }
  std::vector<size_t> which;
  layers_of(*config.vision, policy, which);
}

std::vector<int32_t> select_image_tokens(Engine& engine, const Policy& policy, Prompt& prompt, const Sequence* earlier,
                                         const WorkTold& told) {
  if (policy.vision_layers().empty() || prompt.selection) return {};
  check_suits(engine.model().config(), policy);
  const PromptShape shape = prompt.shape();
  if (policy.n_seen(shape) >= shape.n_tokens) return {};
  std::vector<std::vector<int32_t>> kept = chosen_before(prompt, earlier);
  int32_t n_earlier = 0;
  for (const std::vector<int32_t>& rows : kept) n_earlier += static_cast<int32_t>(rows.size());
  ImageSelection selection;
  selection.outputs.resize(prompt.images.size());
  std::vector<ImageTokens> images;
  auto begin = Clock::now();
  for (size_t i = kept.size(); i < prompt.images.size(); ++i) {
    images.push_back(encode(engine, policy, prompt.with_pixels(i), selection.outputs[i], told));
    prompt.let_pixels_go(i);
  }
  selection.vision_ms = ms_since(begin);
  begin = Clock::now();
  for (std::vector<int32_t>& rows : policy.select(images, shape, n_earlier)) kept.push_back(std::move(rows));
  std::vector<int32_t> stay = close_up(prompt, kept);
  selection.n_dropped = shape.n_tokens - prompt.n_tokens();
  selection.select_ms = ms_since(begin);
  prompt.selection = std::move(selection);
  return stay;
}

}  // namespace vlcache
