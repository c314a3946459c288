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

#include "base/json.h"
#include "io/image/image.h"
#include "io/safetensors.h"
#include "model/contiguous_kv.h"
#include "model/model.h"
#include "model/processors/image_processor.h"
#include "ops/factory.h"
#include "tests/fixture_cases.h"

namespace vlcache {
namespace {

// f32: the bound. Features and hidden states meet it too, relative to their own largest value.
constexpr double kF32Error = 1e-4;
constexpr double kBf16Kl = 1e-3;
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

// Largest difference relative to the largest expected value. `rows` picks rows of `found`; empty: all.
double error_of(const Tensor& found, const Tensor& expected, std::span<const int32_t> rows = {}) {
  double worst = 0, largest = 0;
  const int64_t width = expected.row_size();
  EXPECT_EQ(found.row_size(), width);
  for (int64_t i = 0; i < expected.rows(); ++i) {
    const int64_t row = rows.empty() ? i : rows[static_cast<size_t>(i)];
    for (int64_t c = 0; c < width; ++c) {
      const double e = at(expected, i, c), f = at(found, row, c);
      worst = std::isnan(f) ? INFINITY : std::max(worst, std::abs(e - f));
      largest = std::max(largest, std::abs(e));
    }
  }
  return worst / largest;
}

Tensor flat(const Tensor& t) {  // [tiles, tokens, width] -> [tiles * tokens, width]
  return t.rank == 3 ? Tensor(t.data, t.dtype, {t.dim(0) * t.dim(1), t.dim(2)}) : t;
}

class GoldenCase {
 public:
  GoldenCase(const std::string& name, Backend& backend)
      : dir_(fixtures() / name),
        json_(load_json(dir_ / "case.json")),
        expected_(Safetensors::open(dir_ / json_["expected"].get<std::string>())),
        backend_(backend),
        model_(Model::load(Checkpoint(dir_), backend)),
        ids_(json_["input_ids"].get<std::vector<int32_t>>()) {
    const Tensor rows = expected_.get("rows");
    rows_.assign(rows.as<int32_t>(), rows.as<int32_t>() + rows.rows());
  }

  std::string family() const { return json_["family"]; }
  const Model& model() const { return *model_; }
  bool is_f32() const { return backend_.compute_dtype() == DType::kF32; }

  // Images through processor, encoder and projector; their rows replace the image tokens' embeddings.
  void embed(Worst& worst) {
    const int64_t hidden = model_->config().text.hidden_size;
    x_memory_ = Buffer(static_cast<int64_t>(ids_.size()) * hidden * dtype_bytes(backend_.compute_dtype()));
    x_ = Tensor(x_memory_.data(), backend_.compute_dtype(), {static_cast<int64_t>(ids_.size()), hidden});
    model_->embed(ids_, x_);
    if (!model_->sees_images()) return;
    const std::vector<ImageTiles> tiles = process_images();
    check_expansion(tiles);
    std::vector<int32_t> slots;
    for (size_t i = 0; i < ids_.size(); ++i) {
      if (ids_[i] == model_->config().image_token_id) slots.push_back(static_cast<int32_t>(i));
    }
    const Tensor features = flat(expected_.get("vision_features")), embeds = expected_.get("image_features");
    int64_t feature_row = 0, row = 0;
    for (const ImageTiles& image : tiles) {
      const VisionOutput f = model_->encode_features(image), e = model_->encode_image(image);
      ASSERT_LE(feature_row + f.embeds.rows(), features.rows());
      ASSERT_LE(row + e.embeds.rows(), std::min<int64_t>(embeds.rows(), static_cast<int64_t>(slots.size())));
      worst.features =
          std::max({worst.features, error_of(f.embeds, features.slice_rows(feature_row, feature_row + f.embeds.rows())),
                    error_of(e.embeds, embeds.slice_rows(row, row + e.embeds.rows()))});
      backend_.scatter_rows(
          e.embeds, std::span(slots).subspan(static_cast<size_t>(row), static_cast<size_t>(e.embeds.rows())), x_);
      feature_row += f.embeds.rows();
      row += e.embeds.rows();
    }
    EXPECT_EQ(feature_row, features.rows());
    EXPECT_EQ(row, static_cast<int64_t>(slots.size()));
  }

  // Logits of every token of the prompt, `chunk` rows at a time.
  std::vector<float> prefill(ContiguousKv& kv, int64_t chunk) {
    const auto n = static_cast<int64_t>(ids_.size());
    const int64_t vocab = model_->config().text.vocab_size;
    std::vector<float> logits(static_cast<size_t>(n * vocab));
    Buffer copy(x_.bytes());  // forward overwrites its input
    for (int64_t begin = 0; begin < n; begin += chunk) {
      const int64_t end = std::min(begin + chunk, n);
      const std::vector<int32_t> rows = count_up(0, end - begin);
      const Tensor x(copy.data(), x_.dtype, {end - begin, x_.row_size()});
      backend_.gather_rows(x_.slice_rows(begin, end), rows, x);
      step(kv, x, count_up(begin, end), Tensor(logits.data() + begin * vocab, DType::kF32, {end - begin, vocab}));
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
      step(kv, x, count_up(0, n), last ? Tensor(logits.data(), DType::kF32, {n, text.vocab_size}) : Tensor(),
           {layer, layer + 1});
      backend_.convert(
          x, Tensor(hidden.emplace_back(static_cast<size_t>(x.numel())).data(), DType::kF32, {n, text.hidden_size}));
    }
    return logits;
  }

  std::vector<int32_t> greedy(ContiguousKv& kv, std::vector<float> last, size_t n) {
    std::vector<int32_t> tokens;
    Buffer memory(x_.row_size() * dtype_bytes(x_.dtype));
    const Tensor x(memory.data(), x_.dtype, {1, x_.row_size()});
    while (true) {
      tokens.push_back(static_cast<int32_t>(std::max_element(last.begin(), last.end()) - last.begin()));
      if (tokens.size() == n) return tokens;
      model_->embed(std::span(tokens).last(1), x);
      const std::vector<int32_t> position = {static_cast<int32_t>(ids_.size() + tokens.size()) - 1};
      step(kv, x, position, Tensor(last.data(), DType::kF32, {1, static_cast<int64_t>(last.size())}));
    }
  }

  Worst run();

 private:
  static std::vector<int32_t> count_up(int64_t begin, int64_t end) {
    std::vector<int32_t> numbers(static_cast<size_t>(end - begin));
    std::iota(numbers.begin(), numbers.end(), static_cast<int32_t>(begin));
    return numbers;
  }

  // Computes rows at these positions through some layers; the logits of all rows or of none.
  void step(KvAccess& kv, const Tensor& x, const std::vector<int32_t>& positions, const Tensor& logits,
            LayerRange layers = {}) {
    const RowRun run = {.seq = 0, .row_begin = 0, .n_rows = static_cast<int32_t>(positions.size())};
    const std::vector<int32_t> rows = count_up(0, logits.rows());
    StepInput input;
    input.x = x;
    const std::vector<Position> at = as_text(positions);
    input.tokens = positions;
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
    for (size_t i = text.find("<image>"); i != std::string::npos; i = text.find("<image>", i + 1)) ++n;
    for (const ImageTiles& t : tiles) expected += model_->n_image_tokens(t);
    EXPECT_EQ(n, expected);
    EXPECT_EQ(n, std::count(ids_.begin(), ids_.end(), model_->config().image_token_id));
  }

  std::vector<ImageTiles> process_images();
  std::vector<float> expected_pixels() const;
  void compare_bf16(const Tensor& logits, Worst& worst);

  std::filesystem::path dir_;
  Json json_;
  Safetensors expected_;
  Backend& backend_;
  std::unique_ptr<Model> model_;
  std::vector<int32_t> ids_, rows_;
  Buffer x_memory_;
  Tensor x_;
};

// The output of transformers' processor for all images, from their stored levels: see the fixtures' README.
std::vector<float> GoldenCase::expected_pixels() const {
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

// Our processor's tiles, which must be the fixture's bit for bit.
std::vector<ImageTiles> GoldenCase::process_images() {
  const std::unique_ptr<ImageProcessor> processor = load_image_processor(Checkpoint(dir_), family());
  const std::vector<float> expected = expected_pixels();
  const std::vector<int64_t>& shape = expected_.find("pixel_levels")->shape;
  // LLaVA-NeXT pads every image to the tile count of the largest.
  const int64_t padded_tiles = family() == "llava_next" ? shape[1] : 0;
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
    EXPECT_TRUE(std::equal(pixels.begin(), pixels.end(), begin)) << path;
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
  ContiguousKv kv(text, backend_, codec, n + 32);
  std::vector<std::vector<float>> hidden;
  std::vector<float> logits = prefill_by_layers(kv, hidden);
  const Tensor found(logits.data(), DType::kF32, {n, text.vocab_size});
  worst.hidden = error_of(x_, expected_.get("hidden.embeds"), rows_);
  for (size_t i = 0; i < hidden.size(); ++i) {
    const Tensor h(hidden[i].data(), DType::kF32, {n, text.hidden_size});
    worst.hidden = std::max(worst.hidden, error_of(h, expected_.get("hidden.layer." + std::to_string(i)), rows_));
  }
  worst.logits = error_of(found, expected_.get(is_f32() ? "logits" : "logits_bf16"), rows_);
  if (!is_f32()) compare_bf16(found, worst);

  ContiguousKv chunked_kv(text, backend_, codec, n + 32);
  std::vector<float> chunked = prefill(chunked_kv, 7);
  EXPECT_LE(error_of(Tensor(chunked.data(), DType::kF32, {n, text.vocab_size}), found), is_f32() ? 1e-5 : kBf16Margin);
  if (is_f32()) {
    const std::vector<float> last(logits.end() - text.vocab_size, logits.end());
    const auto expected = json_["greedy"].get<std::vector<int32_t>>();
    EXPECT_EQ(greedy(chunked_kv, last, expected.size()), expected);
  }
  return worst;
}

struct Setting {
  std::string backend;
  DType dtype;
};

class Golden : public testing::TestWithParam<Setting> {};

TEST_P(Golden, EqualsTransformers) {
  const Setting& setting = GetParam();
  // CI runs the tests once more as on a machine with fewer instructions (tools/test.sh).
  const char* max_isa = std::getenv("VLCACHE_TEST_MAX_ISA");
  BackendOptions options;
  if (max_isa != nullptr && setting.backend != "ref") options.max_isa = max_isa;
  const std::unique_ptr<Backend> backend = make_backend(setting.backend, setting.dtype, options);
  std::map<std::string, Worst> families;
  for (const std::string& name : case_names()) {
    SCOPED_TRACE(name);
    GoldenCase test(name, *backend);
    const Worst worst = test.run();
    if (setting.dtype == DType::kF32) {
      EXPECT_LE(worst.features, kF32Error);
      EXPECT_LE(worst.hidden, kF32Error);
      EXPECT_LE(worst.logits, kF32Error);
    } else {
      EXPECT_LE(worst.kl, kBf16Kl);
    }
    families[test.family()].merge(worst);
  }
  ASSERT_EQ(families.size(), 8u);
  std::printf("| %s %s | vision | hidden | logits | KL | argmax flips |\n", setting.backend.c_str(),
              dtype_name(setting.dtype).data());
  for (const auto& [family, w] : families) {
    std::printf("| %s | %.1e | %.1e | %.1e | %.1e | %d of %d |\n", family.c_str(), w.features, w.hidden, w.logits, w.kl,
                w.flips, w.rows);
  }
}

std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const std::string_view name : backend_names()) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) all.push_back({std::string(name), dtype});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Backends, Golden, testing::ValuesIn(settings()), [](const auto& info) {
  return info.param.backend + "_" + std::string(dtype_name(info.param.dtype));
});

}  // namespace
}  // namespace vlcache
