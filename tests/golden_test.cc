// Compares every fixture model with what transformers computed for it: vision features, projection, hidden states,
// logits, tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "base/json.h"
#include "io/image/image.h"
#include "io/safetensors.h"
#include "model/contiguous_kv.h"
#include "model/images/patch_grid.h"
#include "model/model.h"
#include "model/processors/image_processor.h"
#include "ops/factory.h"
#include "tests/fixture_cases.h"

namespace vlcache {
namespace {

// f32: the bound. Features and hidden states meet it too, relative to their own largest value.
constexpr double kF32Error = 1e-4;
constexpr double kBf16Kl = 1e-3;
// f32: of the same rows computed in one piece, in chunks, or while decoding.
constexpr double kPathError = 1e-5;
// bf16: two logits nearer than this, relative to the largest, may swap (two roundings of 2^-8, and their paths).
constexpr double kBf16Margin = 1.0 / 64;

struct Worst {
  double features = 0, hidden = 0, logits = 0, kl = 0;
  int flips = 0, rows = 0;
  void merge(const Worst& w) {
    features = std::max(features, w.features);
    hidden = std::max(hidden, w.hidden);
    logits = std::max(logits, w.logits);
    kl = std::max(kl, w.kl);
    flips += w.flips;
    rows += w.rows;
  }
};

float at(const Tensor& t, int64_t row, int64_t column) {
  const int64_t i = row * t.stride + column;
  switch (t.dtype) {
    case DType::kF32:
      return t.as<float>()[i];
    case DType::kBF16:
      return to_float(t.as<bf16>()[i]);
    default:
      CHECK(false);
  }
}

// Largest difference relative to the largest expected value. `rows` picks rows of `found`; empty: all. `factor`: of
// `found`.
double error_of(const Tensor& found, const Tensor& expected, std::span<const int32_t> rows = {}, double factor = 1) {
  double worst = 0, largest = 0;
  const int64_t width = expected.row_size();
  EXPECT_EQ(found.row_size(), width);
  for (int64_t i = 0; i < expected.rows(); ++i) {
    const int64_t row = rows.empty() ? i : rows[static_cast<size_t>(i)];
    for (int64_t c = 0; c < width; ++c) {
      const double e = at(expected, i, c), f = factor * at(found, row, c);
      worst = std::isnan(f) ? INFINITY : std::max(worst, std::abs(e - f));
      largest = std::max(largest, std::abs(e));
    }
  }
  return worst / largest;
}

double divergence(const Tensor& expected, const Tensor& found, int64_t row);

Tensor flat(const Tensor& t) {  // [tiles, tokens, width] -> [tiles * tokens, width]
  return t.rank == 3 ? Tensor(t.data, t.dtype, {t.dim(0) * t.dim(1), t.dim(2)}) : t;
}

// Fixtures with M-RoPE and images: their language models are families of their own.
std::vector<std::string> text_part_cases() {
  std::vector<std::string> names = case_names();
  std::erase_if(names, [](const std::string& name) {
    return Model::read_config(Checkpoint(fixtures() / name)).family->image_positions == nullptr;
  });
  return names;
}

// Of the language model of a vision checkpoint by itself.
ModelConfig text_part(const std::filesystem::path& dir) {
  const Json config = load_json(dir / "config.json");
  Json text = config.value("text_config", config);
  text["model_type"] = config["model_type"].get<std::string>() + "_text";
  text["tie_word_embeddings"] = config["tie_word_embeddings"];
  text.erase("vision_config");
  return parse_model_config(text, dir.string());
}

class GoldenCase {
 public:
  GoldenCase(const std::string& name, const ModelConfig& config, Backend& backend, const LoadOptions& options = {})
      : dir_(fixtures() / name),
        json_(load_json(dir_ / "case.json")),
        expected_(Safetensors::open(dir_ / json_["expected"].get<std::string>())),
        backend_(backend),
        model_(Model::load(Checkpoint(dir_), config, backend, options)),
        ids_(json_["input_ids"].get<std::vector<int32_t>>()) {
    const Tensor rows = expected_.get("rows");
    rows_.assign(rows.as<int32_t>(), rows.as<int32_t>() + rows.rows());
    place();
  }

  std::string family() const { return json_["family"]; }
  const Model& model() const { return *model_; }
  bool is_f32() const { return backend_.compute_dtype() == DType::kF32; }

  // Images through processor, encoder and projector; their rows replace the image tokens' embeddings.
  void embed(Worst& worst) {
    const int64_t hidden = model_->config().text.hidden_size;
    x_memory_ = Buffer(static_cast<int64_t>(ids_.size()) * hidden * dtype_bytes(backend_.compute_dtype()));
    x_ = Tensor(x_memory_.data(), backend_.compute_dtype(), {static_cast<int64_t>(ids_.size()), hidden});
    std::vector<int32_t> ids = ids_;
    if (model_->config().image_token_beyond) std::ranges::replace(ids, model_->config().image_token_id, 0);
    model_->embed(ids, x_);
    if (!model_->sees_images()) {
      if (expected_.find("image_features") != nullptr) embed_expected_images();
      return;
    }
    const std::vector<ImageTiles> tiles = process_images();
    check_expansion(tiles);
    const std::vector<int32_t> slots = image_slots(model_->config().image_token_id);
    const Tensor features = flat(expected_.get("vision_features")), embeds = expected_.get("image_features");
    begin_addends(slots);
    int64_t feature_row = 0, row = 0;
    size_t n_images = 0;
    for (const ImageTiles& image : tiles) {
      const std::vector<int32_t> order = feature_order(n_images++);
      const VisionOutput f = model_->encode_features(image), e = model_->encode_image(image);
      ASSERT_LE(feature_row + f.embeds.rows(), features.rows());
      ASSERT_LE(row + e.embeds.rows(), std::min<int64_t>(embeds.rows(), static_cast<int64_t>(slots.size())));
      worst.features = std::max(
          {worst.features, error_of(f.embeds, features.slice_rows(feature_row, feature_row + f.embeds.rows()), order),
           error_of(e.embeds, embeds.slice_rows(row, row + e.embeds.rows()))});
      backend_.scatter_rows(
          e.embeds, std::span(slots).subspan(static_cast<size_t>(row), static_cast<size_t>(e.embeds.rows())), x_);
      worst.features = std::max(worst.features, take_addends(e, row));
      feature_row += f.embeds.rows();
      row += e.embeds.rows();
    }
    EXPECT_EQ(feature_row, features.rows());
    EXPECT_EQ(row, static_cast<int64_t>(slots.size()));
  }

  // Logits of every row of x, whose tokens begin the prompt, `chunk` rows at a time.
  std::vector<float> prefill(ContiguousKv& kv, const Tensor& all, int64_t chunk) {
    const auto n = all.rows();
    const int64_t vocab = model_->config().text.vocab_size;
    std::vector<float> logits(static_cast<size_t>(n * vocab));
    Buffer copy(all.bytes());  // forward overwrites its input
    for (int64_t begin = 0; begin < n; begin += chunk) {
      const int64_t end = std::min(begin + chunk, n);
      const std::vector<int32_t> rows = count_up(0, end - begin);
      const Tensor x(copy.data(), all.dtype, {end - begin, all.row_size()});
      backend_.gather_rows(all.slice_rows(begin, end), rows, x);
      step(kv, x, begin, Tensor(logits.data() + begin * vocab, DType::kF32, {end - begin, vocab}));
    }
    return logits;
  }

  // The same in one piece, a layer at a time: logits, and the hidden states after every layer.
  std::vector<float> prefill_by_layers(ContiguousKv& kv, std::vector<std::vector<float>>& hidden) {
    const TextConfig& text = model_->config().text;
    const auto n = static_cast<int64_t>(ids_.size());
    std::vector<float> logits(static_cast<size_t>(n * text.vocab_size));
    Buffer copy(x_.bytes());
    const Tensor x(copy.data(), x_.dtype, {n, x_.row_size()});
    backend_.gather_rows(x_, count_up(0, n), x);
    for (int32_t layer = 0; layer < static_cast<int32_t>(text.n_layers); ++layer) {
      const bool last = layer + 1 == static_cast<int32_t>(text.n_layers);
      step(kv, x, 0, last ? Tensor(logits.data(), DType::kF32, {n, text.vocab_size}) : Tensor(), {layer, layer + 1});
      backend_.convert(
          x, Tensor(hidden.emplace_back(static_cast<size_t>(x.numel())).data(), DType::kF32, {n, text.hidden_size}));
    }
    return logits;
  }

  // `last`: the logits of the prompt's last token; appended: those of the tokens that follow, but for the last.
  std::vector<int32_t> greedy(ContiguousKv& kv, std::vector<float>& last, size_t n) {
    std::vector<int32_t> tokens;
    const int64_t vocab = model_->config().text.vocab_size;
    Buffer memory(x_.row_size() * dtype_bytes(x_.dtype));
    const Tensor x(memory.data(), x_.dtype, {1, x_.row_size()});
    while (true) {
      const auto row = last.end() - vocab;
      tokens.push_back(static_cast<int32_t>(std::max_element(row, last.end()) - row));
      if (tokens.size() == n) return tokens;
      model_->embed(std::span(tokens).last(1), x);
      last.resize(last.size() + static_cast<size_t>(vocab));
      const auto at = static_cast<int64_t>(ids_.size() + tokens.size()) - 1;
      step(kv, x, at, Tensor(&*(last.end() - vocab), DType::kF32, {1, vocab}));
    }
  }

  // Logits of the prompt and of tokens after it, in one piece.
  std::vector<float> with_tokens(ContiguousKv& kv, std::span<const int32_t> tokens) {
    const int64_t n = x_.rows(), m = std::ssize(tokens);
    Buffer memory((n + m) * x_.row_size() * dtype_bytes(x_.dtype));
    const Tensor all(memory.data(), x_.dtype, {n + m, x_.row_size()});
    backend_.gather_rows(x_, count_up(0, n), all.slice_rows(0, n));
    model_->embed(tokens, all.slice_rows(n, n + m));
    return prefill(kv, all, n + m);
  }

  Worst run();

  // Of the prompt, `chunk` rows at a time; 0: at once.
  std::vector<float> logits(int64_t chunk) {
    ContiguousKv kv(model_->config().text, backend_, is_f32() ? KvCodec::kF32 : KvCodec::kBF16, x_.rows());
    return prefill(kv, x_, chunk > 0 ? chunk : x_.rows());
  }

  // Of the whole prompt, against transformers in f32.
  void expect_logits() {
    Worst worst;
    embed(worst);
    std::vector<float> values = logits(0);
    const int64_t vocab = model_->config().text.vocab_size;
    const Tensor found(values.data(), DType::kF32, {x_.rows(), vocab}), expected = expected_.get("logits");
    if (is_f32()) {
      EXPECT_LE(worst.features, kF32Error);
      EXPECT_LE(error_of(found, expected, rows_), kF32Error);
    }
    for (int64_t i = 0; i < expected.rows(); ++i) {
      const int64_t row = rows_[static_cast<size_t>(i)];
      EXPECT_LE(divergence(expected.slice_rows(i, i + 1), found.slice_rows(row, row + 1), 0), kBf16Kl) << "row " << row;
    }
  }

  // Of the whole prompt's logits.
  double logit_error() {
    Worst worst;
    embed(worst);
    const TextConfig& text = model_->config().text;
    ContiguousKv kv(text, backend_, KvCodec::kF32, x_.rows());
    std::vector<float> logits = prefill(kv, x_, x_.rows());
    return error_of(Tensor(logits.data(), DType::kF32, {x_.rows(), text.vocab_size}), expected_.get("logits"), rows_);
  }

 private:
  static std::vector<int32_t> count_up(int64_t begin, int64_t end) {
    std::vector<int32_t> numbers(static_cast<size_t>(end - begin));
    std::iota(numbers.begin(), numbers.end(), static_cast<int32_t>(begin));
    return numbers;
  }

  // The positions that transformers gives the prompt's tokens.
  void place() {
    positions_ = as_text(count_up(0, std::ssize(ids_)));
    if (expected_.find("position_ids") == nullptr) return;
    const Tensor expected = expected_.get("position_ids");
    const auto* p = expected.as<int32_t>();
    const size_t n = positions_.size();
    for (size_t i = 0; i < n; ++i) positions_[i] = {p[i], p[n + i], p[2 * n + i]};
  }

  std::vector<int32_t> image_slots(int32_t image_token) const {
    std::vector<int32_t> slots;
    for (size_t i = 0; i < ids_.size(); ++i) {
      if (ids_[i] == image_token) slots.push_back(static_cast<int32_t>(i));
    }
    return slots;
  }

  // Transformers' features of the images instead of our encoder's.
  void embed_expected_images() {
    const std::vector<int32_t> slots = image_slots(load_json(dir_ / "config.json")["image_token_id"].get<int32_t>());
    const int64_t n = std::ssize(slots), width = x_.row_size();
    Buffer memory(n * width * dtype_bytes(x_.dtype));
    const Tensor rows(memory.data(), x_.dtype, {n, width});
    backend_.convert(expected_.get("image_features"), rows);
    backend_.scatter_rows(rows, slots, x_);
    begin_addends(slots);
    for (size_t i = 0; i < addends_.size(); ++i) backend_.convert(expected_addends(i), addends_[i]);
  }

  Tensor expected_addends(size_t tap) const {
    const Tensor all = expected_.get("deepstack_features");
    const auto n = std::ssize(addend_rows_), begin = static_cast<int64_t>(tap) * n;
    return Tensor(all.data, all.dtype, {all.dim(0) * n, all.dim(2)}).slice_rows(begin, begin + n);
  }

  // Makes room for what DeepStack adds to the rows of image tokens.
  void begin_addends(const std::vector<int32_t>& slots) {
    if (expected_.find("deepstack_features") == nullptr) return;
    addend_rows_ = slots;
    const int64_t n = std::ssize(slots), width = x_.row_size();
    for (int64_t tap = 0; tap < expected_.get("deepstack_features").dim(0); ++tap) {
      const Buffer& memory = memory_.emplace_back(n * width * dtype_bytes(x_.dtype));
      addends_.emplace_back(memory.data(), x_.dtype, std::initializer_list<int64_t>{n, width});
    }
  }

  // Of the image whose tokens begin with this one of all images' tokens. Returns the largest error.
  double take_addends(const VisionOutput& image, int64_t row) {
    EXPECT_EQ(image.extra.size(), addends_.size());
    const int64_t end = row + image.embeds.rows();
    double worst = 0;
    for (size_t tap = 0; tap < std::min(image.extra.size(), addends_.size()); ++tap) {
      backend_.scatter_rows(image.extra[tap], count_up(row, end), addends_[tap]);
      worst = std::max(worst, error_of(image.extra[tap], expected_addends(tap).slice_rows(row, end)));
    }
    return worst;
  }

  // Computes the rows of tokens from `first` on through some layers; the logits of all rows or of none.
  void step(KvAccess& kv, const Tensor& x, int64_t first, const Tensor& logits, LayerRange layers = {}) {
    const RowRun run = {.seq = 0, .row_begin = 0, .n_rows = static_cast<int32_t>(x.rows())};
    const std::vector<int32_t> rows = count_up(0, logits.rows()), tokens = count_up(first, first + x.rows());
    int32_t next = 0;
    for (const Position& p : positions_) next = std::max(next, p.largest() + 1);
    std::vector<Position> at;
    for (const int32_t token : tokens) {
      const int32_t after = token - static_cast<int32_t>(positions_.size());
      at.push_back(after < 0 ? positions_[static_cast<size_t>(token)] : Position::all(next + after));
    }
    const auto begin = std::ranges::lower_bound(addend_rows_, first),
               end = std::ranges::lower_bound(addend_rows_, first + x.rows());
    std::vector<int32_t> addend_rows(begin, end);
    for (int32_t& row : addend_rows) row -= static_cast<int32_t>(first);
    std::vector<Tensor> addends;
    for (const Tensor& all : addends_) {
      addends.push_back(all.slice_rows(begin - addend_rows_.begin(), end - addend_rows_.begin()));
    }
    StepInput input;
    input.x = x;
    if (!addends.empty()) {
      input.addend_rows = addend_rows;
      input.addends = addends;
    }
    input.tokens = tokens;
    input.positions = at;
    input.runs = {&run, 1};
    input.logit_rows = rows;
    input.kv = &kv;
    input.layers = layers;
    input.logits = logits;
    model_->forward(input);
  }

  // The expanded prompt holds as many image placeholders as transformers' ids hold image tokens.
  void check_expansion(const std::vector<ImageTiles>& tiles) {
    const std::string text = model_->expand_prompt(json_["prompt"].get<std::string>(), tiles);
    int64_t n = 0, expected = 0;
    const std::string_view placeholder = model_->config().family->image_placeholder;
    for (size_t i = text.find(placeholder); i != std::string::npos; i = text.find(placeholder, i + 1)) ++n;
    for (const ImageTiles& t : tiles) expected += model_->n_image_tokens(t);
    EXPECT_EQ(n, expected);
    EXPECT_EQ(n, std::count(ids_.begin(), ids_.end(), model_->config().image_token_id));
  }

  std::vector<ImageTiles> process_images();
  std::vector<float> planes(std::span<const float> patches, size_t image, int64_t side) const;
  // In patches, by rows and columns.
  PatchGrid grid(size_t image) const {
    const Json& g = json_["grids"][image];
    return {.rows = g[1].get<int64_t>(), .cols = g[2].get<int64_t>()};
  }
  // Patches and features of PaddleOCR-VL's fixtures are in raster order, other families' square after square.
  int64_t fixture_square() const { return family() == "paddleocr_vl" ? 1 : model_->config().vision->merge; }
  std::vector<int32_t> feature_order(size_t image) const;
  std::vector<float> expected_pixels() const;
  void compare_bf16(const Tensor& logits, Worst& worst);

  std::filesystem::path dir_;
  Json json_;
  Safetensors expected_;
  Backend& backend_;
  std::unique_ptr<Model> model_;
  std::vector<int32_t> ids_, rows_;
  std::vector<Position> positions_;
  Buffer x_memory_;
  Tensor x_;
  std::vector<int32_t> addend_rows_;  // of the prompt
  std::vector<Tensor> addends_;       // by layer
  std::vector<Buffer> memory_;
};

// The output of transformers' processor for all images, from their stored levels: see the fixtures' README.
std::vector<float> GoldenCase::expected_pixels() const {
  if (expected_.find("pixel_values") != nullptr) {
    const Tensor values = expected_.get("pixel_values");
    return {values.as<float>(), values.as<float>() + values.numel()};
  }
  const SafetensorsEntry& entry = *expected_.find("pixel_levels");  // [..., 3, h, w]: too many dimensions for a Tensor
  const std::string file = read_text_file(expected_.where());
  const std::string nested = std::filesystem::exists(dir_ / "processor_config.json") ? "processor_config.json" : "";
  Json settings = nested.empty() ? Json::object() : load_json(dir_ / nested).value("image_processor", Json::object());
  if (settings.empty()) settings = load_json(dir_ / "preprocessor_config.json");
  const auto mean = settings["image_mean"].get<std::vector<float>>(),
             std = settings["image_std"].get<std::vector<float>>();
  const double factor = settings["rescale_factor"].get<double>();
  const auto plane = static_cast<size_t>(entry.shape.back() * entry.shape[entry.shape.size() - 2]);
  std::vector<float> pixels(static_cast<size_t>(entry.end - entry.begin));
  for (size_t i = 0; i < pixels.size(); ++i) {
    const auto level = static_cast<unsigned char>(file[static_cast<size_t>(entry.begin) + i]);
    const size_t channel = i / plane % 3;
    pixels[i] = (static_cast<float>(static_cast<double>(level) * factor) - mean[channel]) / std[channel];
  }
  return pixels;
}

// Number `i` of a grid's patches, square after square, in raster order.
int64_t raster_patch(PatchGrid grid, int64_t square, int64_t i) {
  const int64_t n = i / (square * square), place = i % (square * square);
  const int64_t row = n / (grid.cols / square) * square + place / square,
                col = n % (grid.cols / square) * square + place % square;
  return row * grid.cols + col;
}

// The row of our features that each of the fixture's is, or nothing if all are.
std::vector<int32_t> GoldenCase::feature_order(size_t image) const {
  if (!json_.contains("grids") || fixture_square() != 1) return {};
  const PatchGrid g = grid(image);
  std::vector<int32_t> order(static_cast<size_t>(g.n()));
  for (int64_t i = 0; i < g.n(); ++i) {
    order[static_cast<size_t>(raster_patch(g, model_->config().vision->merge, i))] = static_cast<int32_t>(i);
  }
  return order;
}

// [3, h, w] of the fixture's [patches, 3, side, side].
std::vector<float> GoldenCase::planes(std::span<const float> patches, size_t image, int64_t side) const {
  const auto [rows, cols] = grid(image);
  std::vector<float> out(patches.size());
  for (int64_t i = 0; i < rows * cols; ++i) {
    const int64_t patch = raster_patch({rows, cols}, fixture_square(), i), row = patch / cols, col = patch % cols;
    for (int64_t line = 0; line < 3 * side; ++line) {  // of all channels
      const int64_t y = line / side * rows * side + row * side + line % side;
      std::copy_n(patches.begin() + (i * 3 * side + line) * side, side, out.begin() + y * cols * side + col * side);
    }
  }
  return out;
}

// Our processor's tiles, which must be the fixture's bit for bit.
std::vector<ImageTiles> GoldenCase::process_images() {
  const std::unique_ptr<ImageProcessor> processor = load_image_processor(Checkpoint(dir_), family());
  const std::vector<float> expected = expected_pixels();
  const std::vector<int64_t>& shape =
      expected_.find(expected_.find("pixel_levels") != nullptr ? "pixel_levels" : "pixel_values")->shape;
  // LLaVA-NeXT pads every image to the tile count of the largest.
  const int64_t padded_tiles = family() == "llava_next" ? shape[1] : 0;
  // Means of floats, which torch adds in another order.
  const bool exact = family() != "nanovlm";
  const auto equal = [exact](float a, float b) { return a == b || (!exact && std::abs(a - b) <= 2.5e-7f); };
  std::vector<ImageTiles> images;
  size_t at = 0;
  for (const auto& file : json_["images"]) {
    const std::filesystem::path path = dir_ / file.get<std::string>();
    const ImageTiles& image = images.emplace_back(processor->process(load_image(path)));
    const auto begin = expected.begin() + static_cast<std::ptrdiff_t>(at);
    const auto per_tile = static_cast<size_t>(image.tensor().row_size());
    const std::span pixels(image.tensor().as<float>(), static_cast<size_t>(image.n_tiles) * per_tile);
    at += per_tile * static_cast<size_t>(std::max(padded_tiles, image.n_tiles));
    CHECK(at <= expected.size());
    if (json_.contains("grids")) {
      const std::vector<float> whole = planes({begin, per_tile}, images.size() - 1, shape.back());
      EXPECT_TRUE(std::ranges::equal(pixels, whole)) << path;
    } else {
      EXPECT_TRUE(std::equal(pixels.begin(), pixels.end(), begin, equal)) << path;
    }
  }
  EXPECT_EQ(at, expected.size());
  return images;
}

std::vector<double> log_softmax(const Tensor& t, int64_t row) {
  std::vector<double> x(static_cast<size_t>(t.row_size()));
  for (size_t i = 0; i < x.size(); ++i) x[i] = at(t, row, static_cast<int64_t>(i));
  const double top = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (double v : x) sum += std::exp(v - top);
  for (double& v : x) v -= top + std::log(sum);
  return x;
}

// Kullback and Leibler's, of one row's tokens.
double divergence(const Tensor& expected, const Tensor& found, int64_t row) {
  const std::vector<double> p = log_softmax(expected, row), q = log_softmax(found, row);
  double kl = 0;
  for (size_t c = 0; c < p.size(); ++c) kl += std::exp(p[c]) * (p[c] - q[c]);
  return std::isnan(kl) ? INFINITY : kl;
}

// Against transformers in bf16, row by row.
void GoldenCase::compare_bf16(const Tensor& logits, Worst& worst) {
  const Tensor expected = expected_.get("logits_bf16");
  double largest = 0;
  for (int64_t i = 0; i < expected.rows(); ++i) {
    for (int64_t c = 0; c < expected.row_size(); ++c) largest = std::max(largest, std::abs(double{at(expected, i, c)}));
  }
  for (int64_t i = 0; i < expected.rows(); ++i) {
    const std::vector<double> p = log_softmax(expected, i), q = log_softmax(logits, rows_[static_cast<size_t>(i)]);
    double kl = 0;
    for (size_t c = 0; c < p.size(); ++c) kl += std::exp(p[c]) * (p[c] - q[c]);
    worst.kl = std::isnan(kl) ? INFINITY : std::max(worst.kl, kl);
    const auto ours = static_cast<size_t>(std::max_element(q.begin(), q.end()) - q.begin());
    const double lead = *std::max_element(p.begin(), p.end()) - p[ours];  // of the token that transformers prefers
    if (lead > 0) ++worst.flips;
    EXPECT_LE(lead, kBf16Margin * largest) << "row " << rows_[static_cast<size_t>(i)];
    ++worst.rows;
  }
}

Worst GoldenCase::run() {
  Worst worst;
  embed(worst);
  if (testing::Test::HasFatalFailure()) return worst;
  const TextConfig& text = model_->config().text;
  const auto n = static_cast<int64_t>(ids_.size());
  const KvCodec codec = is_f32() ? KvCodec::kF32 : KvCodec::kBF16;
  const auto greedy_tokens = json_["greedy"].get<std::vector<int32_t>>();
  const auto new_kv = [&] { return ContiguousKv(text, backend_, codec, n + std::ssize(greedy_tokens)); };
  ContiguousKv kv = new_kv();
  std::vector<std::vector<float>> hidden;
  std::vector<float> logits = prefill_by_layers(kv, hidden);
  const Tensor found(logits.data(), DType::kF32, {n, text.vocab_size});
  const double scale = text.residual_scale;
  worst.hidden = error_of(x_, expected_.get("hidden.embeds"), rows_, scale);
  for (size_t i = 0; i < hidden.size(); ++i) {
    const Tensor h(hidden[i].data(), DType::kF32, {n, text.hidden_size});
    worst.hidden =
        std::max(worst.hidden, error_of(h, expected_.get("hidden.layer." + std::to_string(i)), rows_, scale));
  }
  worst.logits = error_of(found, expected_.get(is_f32() ? "logits" : "logits_bf16"), rows_);
  if (!is_f32()) compare_bf16(found, worst);

  // Models added since the first; sanitized builds, which have the slow backend alone, compute one kind of chunk.
  const bool thorough = is_f32() && greedy_tokens.size() >= 40 && backend_names().size() > 1;
  for (const int64_t chunk : thorough ? std::vector{1, 64, 7} : std::vector{7}) {
    kv = new_kv();
    std::vector<float> chunked = prefill(kv, x_, chunk);
    const double error = error_of(Tensor(chunked.data(), DType::kF32, {n, text.vocab_size}), found);
    EXPECT_LE(error, is_f32() ? kPathError : kBf16Margin) << "chunks of " << chunk;
  }
  if (is_f32()) {
    std::vector<float> decoded(logits.end() - text.vocab_size, logits.end());
    EXPECT_EQ(greedy(kv, decoded, greedy_tokens.size()), greedy_tokens);
    kv = new_kv();
    std::vector<float> whole = with_tokens(kv, std::span(greedy_tokens).first(greedy_tokens.size() - 1));
    const int64_t m = std::ssize(greedy_tokens);
    EXPECT_LE(error_of(Tensor(decoded.data(), DType::kF32, {m, text.vocab_size}),
                       Tensor(whole.data(), DType::kF32, {n + m - 1, text.vocab_size}).slice_rows(n - 1, n + m - 1)),
              kPathError);
  }
  return worst;
}

struct Setting {
  std::string backend;
  DType dtype;
};

class Golden : public testing::TestWithParam<Setting> {
 protected:
  Golden() : backend_(make_backend(GetParam().backend, GetParam().dtype)) {}

  void run(const std::string& name, const ModelConfig& config) {
    SCOPED_TRACE(name);
    GoldenCase test(name, config, *backend_);
    const Worst worst = test.run();
    if (test.is_f32()) {
      EXPECT_LE(worst.features, kF32Error);
      EXPECT_LE(worst.hidden, kF32Error);
      EXPECT_LE(worst.logits, kF32Error);
    } else {
      EXPECT_LE(worst.kl, kBf16Kl);
    }
    families_[test.family()].merge(worst);
  }

  void print() const;

  std::unique_ptr<Backend> backend_;
  std::map<std::string, Worst> families_;
};

void Golden::print() const {
  const Setting& setting = GetParam();
  std::printf("| %s %s | vision | hidden | logits | KL | argmax flips |\n", setting.backend.c_str(),
              dtype_name(setting.dtype).data());
  for (const auto& [family, w] : families_) {
    std::printf("| %s | %.1e | %.1e | %.1e | %.1e | %d of %d |\n", family.c_str(), w.features, w.hidden, w.logits, w.kl,
                w.flips, w.rows);
  }
}

TEST_P(Golden, EqualsTransformers) {
  for (const std::string& name : case_names()) run(name, Model::read_config(Checkpoint(fixtures() / name)));
  ASSERT_EQ(families_.size(), 19u);
  print();
}

// The language models of vision checkpoints by themselves, with transformers' image features.
TEST_P(Golden, TextPartsEqualTransformers) {
  for (const std::string& name : text_part_cases()) run(name, text_part(fixtures() / name));
  ASSERT_EQ(families_.size(), 6u);
  print();
}

// M-RoPE's sections one after the other and interleaved are told apart by images that are not square.
TEST_P(Golden, SectionsAreDealtAsTheFamilyDoes) {
  if (GetParam().dtype != DType::kF32) GTEST_SKIP() << "one dtype is enough";
  for (const std::string& name : text_part_cases()) {
    ModelConfig config = text_part(fixtures() / name);
    config.text.ropes[0].interleaved = !config.text.ropes[0].interleaved;
    EXPECT_GT(GoldenCase(name, config, *backend_).logit_error(), 10 * kF32Error) << name;
  }
}

std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const std::string_view name : backend_names()) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) all.push_back({std::string(name), dtype});
  }
  return all;
}

// Every family with quantised weights: the products of the fast backend against those of the scalar one with the very
// same weights, and the prompt in pieces against the prompt at once.
TEST_P(Golden, QuantisedWeights) {
  if (GetParam().backend == "ref") GTEST_SKIP() << "it is what the others are compared with";
  // All three forms: embeddings, head and vision have 8 bits, v and down 6, the others 4.
  constexpr WeightForms kForms = {.text = WeightChoice::kInt4Plus, .vision = WeightChoice::kInt8};
  double sum_kl = 0;  // of 44 cases' worst rows: with codes mean 2.4e-4, most 1.6e-3; dense 2.1e-4, 9e-4
  const std::unique_ptr<Backend> ref = make_backend("ref", DType::kF32);
  for (const std::string& name : case_names()) {
    const ModelConfig config = Model::read_config(Checkpoint(fixtures() / name));
    SCOPED_TRACE(name);
    Worst worst;
    GoldenCase expected(name, config, *ref, {.forms = kForms}), found(name, config, *backend_, {.forms = kForms});
    EXPECT_GT(std::ranges::count_if(found.model().weights().matrices, &LoadedMatrix::quantised), config.text.n_layers);
    expected.embed(worst), found.embed(worst);
    std::vector<float> right = expected.logits(0), whole = found.logits(0), pieces = found.logits(1);
    const int64_t vocab = config.text.vocab_size, n = std::ssize(right) / vocab;
    const auto rows = [&](std::vector<float>& values) { return Tensor(values.data(), DType::kF32, {n, vocab}); };
    if (found.is_f32()) {
      EXPECT_LE(error_of(rows(whole), rows(right)), kF32Error);
      EXPECT_LE(error_of(rows(pieces), rows(whole)), kPathError);
      continue;
    }
    // Random routers have experts that are nearly equal, which roundings exchange.
    if (name.find("moe") != std::string::npos) continue;
    for (int64_t i = 0; i < n; ++i) {
      worst.kl = std::max(worst.kl, divergence(rows(right), rows(whole), i));
      EXPECT_LE(divergence(rows(whole), rows(pieces), i), 2 * kBf16Kl) << "row " << i << " in pieces";
    }
    EXPECT_LE(worst.kl, 2 * kBf16Kl);
    sum_kl += worst.kl;
  }
  EXPECT_LE(sum_kl, 44 * 0.4 * kBf16Kl);
}

// Checkpoints that come quantised: as they are, and dequantised, against transformers in f32 with the weights that the
// formats' own packages make of them; quantised again, they load.
TEST_P(Golden, CheckpointsOfCodes) {
  const std::filesystem::path folder = std::filesystem::path(VLCACHE_SOURCE_DIR) / "tests/fixtures/quantised";
  int n_cases = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string dir = entry.path().string();
    SCOPED_TRACE(dir);
    ++n_cases;
    const ModelConfig config = Model::read_config(Checkpoint(dir));
    std::set<std::array<uint8_t, 16>> fingerprints;
    for (const WeightChoice choice : {WeightChoice::kAuto, WeightChoice::kDense, WeightChoice::kInt4}) {
      GoldenCase found(dir, config, *backend_, {.forms = {.text = choice, .vision = WeightChoice::kAuto}});
      fingerprints.insert(found.model().fingerprint());
      const StoredCodes& stored = found.model().weights().stored;
      EXPECT_EQ(stored.n_kept + stored.n_widened, n_coded_matrices(entry.path()));
      EXPECT_TRUE(choice != WeightChoice::kInt4 || stored.n_kept == (entry.path().filename() == "vlm-ct" ? 1 : 0));
      if (choice != WeightChoice::kInt4) found.expect_logits();
    }
    EXPECT_GE(fingerprints.size(), 2u);
  }
  EXPECT_EQ(n_cases, 11);
}

INSTANTIATE_TEST_SUITE_P(Backends, Golden, testing::ValuesIn(settings()), [](const auto& info) {
  return info.param.backend + "_" + std::string(dtype_name(info.param.dtype));
});

}  // namespace
}  // namespace vlcache
