// Loading: names old and new, ties, misaligned files, missing ones; and the captures of an encoder.
#include "model/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "base/error.h"
#include "base/os/threads.h"
#include "io/safetensors.h"
#include "ops/factory.h"
#include "tests/testing.h"

namespace vlcache {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class ModelTest : public testing::Test {
 protected:
  ModelTest()
      : backend_(make_backend("ref", DType::kF32)),
        dir_(std::filesystem::temp_directory_path() / ("vlcache-model-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(dir_);
  }
  ~ModelTest() override { std::filesystem::remove_all(dir_); }

  void write(const char* name, const std::string& text) { std::ofstream(dir_ / name, std::ios::binary) << text; }
  // The fixture with some tensors renamed (to "": left out).
  void copy(const char* name, const std::map<std::string, std::string>& renamed = {}) {
    std::filesystem::copy_file(fixture_model(name) / "config.json", dir_ / "config.json",
                               std::filesystem::copy_options::overwrite_existing);
    const std::string file = read_text_file(fixture_model(name) / "model.safetensors");
    uint64_t length = 0;
    std::memcpy(&length, file.data(), sizeof length);
    Json header = parse_json(std::string_view(file).substr(sizeof length, length), "header");
    for (const auto& [from, to] : renamed) {
      header[to.empty() ? "unused." + from : to] = header.at(from);
      header.erase(from);
    }
    const std::string text = header.dump(), data = file.substr(sizeof length + length);
    length = text.size();
    write("model.safetensors", std::string(reinterpret_cast<const char*>(&length), sizeof length) + text + data);
  }
  // The first bytes of a tensor of the copy: as `bytes(n)` gives them, of n that the tensor has.
  template <typename Bytes>
  void change(const std::string& tensor, const Bytes& bytes) {
    std::string file = read_text_file(dir_ / "model.safetensors");
    uint64_t length = 0;
    std::memcpy(&length, file.data(), sizeof length);
    const Json header = parse_json(std::string_view(file).substr(sizeof length, length), "header");
    const auto begin = header.at(tensor)["data_offsets"][0].get<size_t>();
    const std::string changed = bytes(header.at(tensor)["data_offsets"][1].get<size_t>() - begin);
    write("model.safetensors", file.replace(sizeof length + length + begin, changed.size(), changed));
  }
  std::string load_error() {
    return error_of([&] { Model::load(Checkpoint(dir_), *backend_); });
  }

  std::unique_ptr<Backend> backend_;
  std::filesystem::path dir_;
};

std::filesystem::path coded_fixture(std::string_view name) {
  return std::filesystem::path(VLCACHE_SOURCE_DIR) / "tests/fixtures/quantised" / name;
}

TEST_F(ModelTest, FormsOfWeightsArePartOfTheFingerprint) {
  const Checkpoint checkpoint(fixture_model("llava-clip"));
  const auto load = [&](WeightForms forms) { return Model::load(checkpoint, *backend_, {.forms = forms}); };
  std::set<std::array<uint8_t, 16>> prints;
  for (const WeightChoice text :
       {WeightChoice::kDense, WeightChoice::kInt8, WeightChoice::kInt4Plus, WeightChoice::kInt4}) {
    for (const WeightChoice vision : {WeightChoice::kDense, WeightChoice::kInt8}) {
      const auto model = load({.text = text, .vision = vision});
      EXPECT_TRUE(prints.insert(model->fingerprint()).second) << weight_choice_name(text);
    }
  }
  EXPECT_EQ(load({})->fingerprint(), Model::load(checkpoint, *backend_)->fingerprint());
  EXPECT_EQ(load({.dense = DType::kF32})->fingerprint(), load({})->fingerprint());
  EXPECT_THAT(error_of([&] { load({.dense = DType::kBF16}); }), HasSubstr("--weights bf16 with arithmetic in f32"));
}

// Another version of the quantiser makes another model of values, and the same one of codes that the file has.
TEST_F(ModelTest, TheQuantiserIsPartOfTheFingerprintWhereItMadeCodes) {
  const auto bytes_of_x = make_backend("ref", DType::kBF16, {.activation_bits = ActivationBits::k8});
  const auto prints = [&](const WeightForms& forms) {
    std::vector<LoadedMatrix> matrices =
        Model::load(Checkpoint(coded_fixture("awq")), *backend_, {.forms = forms})->weights().matrices;
    const auto print = [&](const Backend& backend) { return model_fingerprint({}, matrices, backend, "{}"); };
    const auto now = print(*backend_);
    EXPECT_NE(print(*bytes_of_x), print(*make_backend("ref", DType::kBF16)));
    for (LoadedMatrix& m : matrices) m.quantiser += static_cast<int>(m.quantiser > 0);
    const auto later = print(*backend_);
    matrices[1].form = "another";
    EXPECT_NE(print(*backend_), later);
    return std::pair(now, later);
  };
  const auto [kept, kept_later] = prints({});
  EXPECT_EQ(kept, kept_later);
  const auto [made, made_later] = prints({.text = WeightChoice::kInt4});
  EXPECT_NE(made, made_later);
}

// v and down are told apart from what they are fused with, in files with one matrix for all and with one for each; so
// are k and v that heads share.
TEST_F(ModelTest, SensitiveMatricesHaveMoreBits) {
  for (const char* name : {"llama-gqa4", "gpt2-tied", "baichuan2"}) {
    for (const WeightChoice choice : {WeightChoice::kInt4, WeightChoice::kInt4Plus}) {
      SCOPED_TRACE(std::string(name) + " " + std::string(weight_choice_name(choice)));
      const auto model = Model::load(Checkpoint(fixture_model(name)), *backend_, {.forms = {.text = choice}});
      const TextLayer& l = model->config().text.layer(0);
      const bool shared = l.kv_size() < l.q_size(), plus = choice == WeightChoice::kInt4Plus;
      EXPECT_EQ(shared, std::string_view(name) == "llama-gqa4");
      for (const TextLayerWeights& w : model->weights().text.layers) {
        ASSERT_EQ(w.qkv.segments.size(), shared || plus ? 2u : 1u);
        EXPECT_EQ(w.qkv.segments[0].form, kInt4);
        if (shared || plus) {
          EXPECT_EQ(w.qkv.segments[1].form, kInt6);
          EXPECT_EQ(w.qkv.segments[1].n_out, (shared ? 2 : 1) * l.kv_size());
        }
        EXPECT_EQ(w.down.segments[0].form, plus ? kInt6 : kInt4);
        EXPECT_EQ(w.gate_up.segments[0].form, kInt4);
      }
      EXPECT_EQ(model->weights().text.output().segments[0].form, kInt8);
    }
  }
}

void expect_listed(const std::filesystem::path& folder, Backend& backend, const WeightForms& forms) {
  SCOPED_TRACE(folder.string());
  const Checkpoint checkpoint(folder);
  const ModelConfig config = Model::read_config(checkpoint);
  const auto model = Model::load(checkpoint, config, backend, {.forms = forms});
  const Weights& loaded = model->weights();
  for (const bool hashed : {true, false}) {
    const Model::Listing listing = Model::list(checkpoint, config, backend, forms, hashed);
    EXPECT_EQ(listing.weights.matrices, loaded.matrices);
    EXPECT_EQ(listing.weights.bytes, loaded.bytes);
    EXPECT_EQ(listing.weights.n_parameters, loaded.n_parameters);
    EXPECT_EQ(listing.fingerprint, hashed ? std::optional(model->fingerprint()) : std::nullopt);
  }
}

// Values 0.15 steps from a grid of 16, in bf16; rows of `width`.
std::string values_near_grid(size_t n_bytes, size_t width) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0.0f, 0.15f);
  std::vector<bf16> values(n_bytes / sizeof(bf16));
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t k = i % width % 32;
    const auto code = static_cast<float>(k == 0 ? 0 : k == 1 ? 15 : random() % 16);
    values[i] = to_bf16(0.01f * (code - 8 + normal(random)));
  }
  return {reinterpret_cast<const char*>(values.data()), n_bytes};
}

// Of a fused matrix only the part whose values lie near a grid of 16.
TEST_F(ModelTest, WhatIsNearAGridIsKeptInEightBits) {
  copy("llama-gqa4");
  change("model.layers.1.self_attn.k_proj.weight", [](size_t n_bytes) { return values_near_grid(n_bytes, 128); });
  const auto load = [&](WeightChoice text) {
    return Model::load(Checkpoint(dir_), *backend_, {.forms = {.text = text}});
  };
  const auto model = load(WeightChoice::kInt4);
  const TextLayerWeights &first = model->weights().text.layers[0], &second = model->weights().text.layers[1];
  ASSERT_EQ(first.qkv.segments.size(), 2u);
  ASSERT_EQ(second.qkv.segments.size(), 3u);
  EXPECT_EQ(second.qkv.segments[0].form, kInt4);
  EXPECT_EQ(second.qkv.segments[1].form, kInt8);
  EXPECT_EQ(second.qkv.segments[1].n_out, model->config().text.layer(1).kv_size());
  EXPECT_EQ(second.qkv.segments[2].form, kInt6);
  EXPECT_EQ(std::ranges::count(model->weights().matrices, true, &LoadedMatrix::near_grid), 1);
  expect_listed(dir_, *backend_, {.text = WeightChoice::kInt4});
  for (const WeightChoice other : {WeightChoice::kDense, WeightChoice::kInt8}) {
    const auto unchanged = load(other);
    EXPECT_EQ(unchanged->weights().text.layers[1].qkv.segments.size(), 1u);
    EXPECT_EQ(std::ranges::count(unchanged->weights().matrices, true, &LoadedMatrix::near_grid), 0);
  }
}

// All experts of a stack have one form.
TEST_F(ModelTest, StacksOfExpertsNearAGridAreKeptInEightBits) {
  copy("qwen3-vl-moe");
  change("model.language_model.layers.1.mlp.experts.gate_up_proj",
         [](size_t n_bytes) { return values_near_grid(n_bytes, 48); });
  const auto model = Model::load(Checkpoint(dir_), *backend_, {.forms = {.text = WeightChoice::kInt4}});
  const TextLayerWeights& w = model->weights().text.layers[1];
  for (const Weight& expert : w.experts_gate_up) EXPECT_EQ(expert.segments[0].form, kInt8);
  for (const Weight& expert : w.experts_down) EXPECT_EQ(expert.segments[0].form, kInt4);
  expect_listed(dir_, *backend_, {.text = WeightChoice::kInt4});
}

TEST_F(ModelTest, RefusesToQuantiseWhatIsNotANumber) {
  copy("llama-gqa4");
  const std::string name = "model.layers.1.mlp.down_proj.weight";
  change(name, [](size_t) { return std::string(4, '\xff'); });
  EXPECT_EQ(load_error(), "no error");
  EXPECT_THAT(error_of([&] { Model::load(Checkpoint(dir_), *backend_, {.forms = {.text = WeightChoice::kInt4}}); }),
              AllOf(HasSubstr(name), HasSubstr("not a number"), HasSubstr("--weights dense")));
}

TEST_F(ModelTest, ReportsLoadProgress) {
  int64_t done = 0, total = 0;
  const LoadOptions options = {.progress = [&](int64_t d, int64_t t) { done = d, total = t; }};
  const auto model = Model::load(Checkpoint(fixture_model("llama-gqa4")), *backend_, options);
  EXPECT_EQ(done, total);
  EXPECT_EQ(model->n_parameters() * 2, total);  // a bf16 checkpoint
  EXPECT_FALSE(model->sees_images());
  EXPECT_THAT(error_of([&] { model->encode_image({}); }), HasSubstr("takes text only"));
}

// A matrix moves several times while it is quantised, and never back.
TEST_F(ModelTest, ReportsProgressWithinAMatrix) {
  set_threads(3);
  for (const char* name : {"llama-gqa4", "qwen3-vl-moe"}) {
    std::vector<int64_t> done;
    const LoadOptions options = {.progress = [&](int64_t d, int64_t) { done.push_back(d); },
                                 .forms = {.text = WeightChoice::kInt4}};
    const auto model = Model::load(Checkpoint(fixture_model(name)), *backend_, options);
    EXPECT_TRUE(std::ranges::is_sorted(done));
    const std::set<int64_t> places(done.begin(), done.end());
    EXPECT_GT(places.size(), model->weights().matrices.size() + model->weights().vectors.size()) << name;
  }
  // Codes count as what they are in the file, kept or quantised again.
  for (const char* name : {"awq", "fp8-blocks"}) {
    for (const WeightChoice choice : {WeightChoice::kAuto, WeightChoice::kInt4}) {
      std::vector<int64_t> done;
      const LoadOptions options = {.progress = [&](int64_t d, int64_t) { done.push_back(d); },
                                   .forms = {.text = choice}};
      const auto model = Model::load(Checkpoint(coded_fixture(name)), *backend_, options);
      EXPECT_TRUE(std::ranges::is_sorted(done)) << name;
    }
  }
}

// A list of weights is what loading keeps, to the byte: of matrices that are fused, tied, turned, stacked or exchanged,
// and of codes that are kept, widened or quantised again.
TEST_F(ModelTest, ListsWhatItWouldLoad) {
  constexpr WeightForms kQuantised = {.text = WeightChoice::kInt4Plus, .vision = WeightChoice::kInt8};
  constexpr WeightForms kDense = {.text = WeightChoice::kDense, .vision = WeightChoice::kDense};
  for (const std::string_view backend_name : backend_names()) {
    const auto backend = make_backend(backend_name, DType::kBF16);
    for (const char* name : {"llama-gqa4", "gpt2-tied", "baichuan2", "llava-clip", "qwen2.5-vl-flat", "qwen3-vl-moe",
                             "qwen3-vl-moe-published", "paddleocr-vl-flat"}) {
      for (const WeightForms& forms : {WeightForms{}, kQuantised}) expect_listed(fixture_model(name), *backend, forms);
    }
    for (const char* name : {"awq", "gptq-order", "ct-nvfp4", "fp8-blocks", "vlm-ct"}) {
      for (const WeightForms& forms : {WeightForms{}, kDense, kQuantised})
        expect_listed(coded_fixture(name), *backend, forms);
    }
  }
  const auto bytes_of_x = make_backend("ref", DType::kBF16, {.activation_bits = ActivationBits::k8});
  expect_listed(fixture_model("llama-gqa4"), *bytes_of_x, kQuantised);
}

// Activations of 8 bits are refused before a matrix is loaded where none will be quantised, and taken where any is.
TEST_F(ModelTest, RefusesActivationsOfBytesWithDenseWeights) {
  const auto bytes_of_x = make_backend("ref", DType::kBF16, {.activation_bits = ActivationBits::k8});
  bool began = false;
  const auto error = [&](const std::filesystem::path& folder, const WeightForms& forms) {
    began = false;
    const LoadOptions options = {.progress = [&](int64_t, int64_t) { began = true; }, .forms = forms};
    return error_of([&] { Model::load(Checkpoint(folder), *bytes_of_x, options); });
  };
  constexpr WeightForms kDense = {.text = WeightChoice::kDense, .vision = WeightChoice::kDense};
  constexpr WeightForms kVision = {.text = WeightChoice::kDense, .vision = WeightChoice::kInt8};
  const struct {
    std::filesystem::path folder;
    WeightForms forms;
  } dense[] = {
      {fixture_model("llama-gqa4"), {}},      {fixture_model("llama-gqa4"), kDense},  // auto means dense
      {fixture_model("llama-gqa4"), kVision},                                         // there is no encoder
      {coded_fixture("awq"), kDense},         {coded_fixture("fp8-blocks"), {}},      // codes that become values
  };
  for (const auto& [folder, forms] : dense) {
    EXPECT_THAT(error(folder, forms), HasSubstr("--activations int8 without quantised weights has no effect"));
    EXPECT_FALSE(began) << folder;
  }
  for (const auto& [folder, forms] : {std::pair{fixture_model("llava-clip"), kVision}, {coded_fixture("awq"), {}}}) {
    EXPECT_EQ(error(folder, forms), "no error");
    EXPECT_TRUE(began);
  }
}

TEST_F(ModelTest, ErrorsNameTheMissingTensor) {
  copy("llama-gqa4", {{"model.layers.1.mlp.up_proj.weight", ""}});
  EXPECT_THAT(load_error(), HasSubstr("no tensor \"model.layers.1.mlp.up_proj.weight\""));
  copy("llama-gqa4", {{"model.embed_tokens.weight", "decoder.embed_tokens.weight"}});
  EXPECT_THAT(load_error(),
              HasSubstr("none of these tensors is there: model.embed_tokens.weight, embed_tokens.weight"));
  copy("llama-gqa4", {{"lm_head.weight", ""}});
  EXPECT_THAT(load_error(), HasSubstr("no lm_head.weight, and config.json does not say tie_word_embeddings"));
  copy("llama-gqa4");
  Json config = load_json(dir_ / "config.json");
  config["intermediate_size"] = config["intermediate_size"].get<int>() + 1;
  write("config.json", config.dump());
  EXPECT_THAT(load_error(), testing::AllOf(HasSubstr("gate_proj.weight\": expected shape ["),
                                           HasSubstr("(from config.json), found [")));
}

// Nothing is allocated for a table of 2^28 positions before the file is known to have another.
TEST_F(ModelTest, SizesAreComparedBeforeTheyAreAllocated) {
  copy("paddleocr-vl-nested");
  Json config = load_json(dir_ / "config.json");
  config["vision_config"]["image_size"] = 65536;
  write("config.json", config.dump());
  EXPECT_THAT(load_error(), HasSubstr("position_embedding.weight\": expected shape [268435456, "));
}

TEST_F(ModelTest, ExpertsMustBeThereOnce) {
  const std::string experts = "model.language_model.layers.1.mlp.experts.";
  copy("qwen3-vl-moe", {{experts + "down_proj", ""}});
  EXPECT_THAT(load_error(), HasSubstr("no tensor \"" + experts + "down_proj\""));
  copy("qwen3-vl-moe", {{"model.language_model.norm.weight", experts + "0.gate_proj.weight"}});
  EXPECT_THAT(load_error(), HasSubstr("are there twice: stacked"));
  copy("qwen3-vl-moe", {{experts + "gate_up_proj", ""}});
  EXPECT_THAT(load_error(), HasSubstr("no tensor \"" + experts + "0.gate_proj.weight\""));
}

// A configuration of one family beside the tensors of another, and parts that are missing.
TEST_F(ModelTest, ConfigurationsAndTensorsMustBelongTogether) {
  copy("qwen2.5-vl-nested");
  Json config = load_json(dir_ / "config.json");
  config["model_type"] = "qwen2_vl";
  config["text_config"]["model_type"] = "qwen2_vl_text";
  config["vision_config"] = {
      {"embed_dim", 64}, {"depth", 1}, {"num_heads", 1}, {"hidden_size", config["text_config"]["hidden_size"]}};
  write("config.json", config.dump());
  EXPECT_THAT(load_error(), HasSubstr("visual."));
  config["model_type"] = "qwen3_vl";
  config["text_config"]["model_type"] = "qwen3_vl_text";
  write("config.json", config.dump());
  EXPECT_FALSE(load_error().empty());
  copy("qwen3-vl-deepstack", {{"model.language_model.embed_tokens.weight", ""}});
  EXPECT_THAT(load_error(), HasSubstr("model.language_model.embed_tokens.weight"));
  copy("qwen3-vl-deepstack", {{"model.visual.deepstack_merger_list.1.norm.weight", ""}});
  EXPECT_THAT(load_error(), HasSubstr("deepstack_merger_list.1.norm.weight"));
}

// The language model may come alone, beside the configuration of the whole; an encoder of unknown names is no such
// file.
TEST_F(ModelTest, OnlyALanguageModelMayLackTheEncoder) {
  for (const char* model : {"qwen3-vl-deepstack", "qwen2.5-vl-flat", "paddleocr-vl-flat", "glm-ocr-two"}) {
    const Safetensors file = Safetensors::open(fixture_model(model) / "model.safetensors");
    std::map<std::string, std::string> renamed, unread;
    for (const std::string_view view : file.names()) {
      const std::string name(view);
      if (name.find("visual.") == std::string::npos && name.find("mlp_AR.") == std::string::npos) continue;
      const size_t at = name.find("visual.");
      renamed[name] = "vision_tower." + (at == std::string::npos ? name : name.substr(at + 7));
      const bool flat = !name.starts_with("model.");
      unread[name] = std::string(flat ? "model.layers.99." : "model.language_model.layers.99.") + name;
    }
    copy(model, renamed);
    EXPECT_THAT(load_error(), testing::AllOf(HasSubstr("none of these tensors is there: "),
                                             HasSubstr("the names of its vision encoder are not known")));
    copy(model, unread);
    EXPECT_FALSE(Model::read_config(Checkpoint(dir_)).vision) << model;
  }
}

// The same of language models, whose tensors have names and shapes of their own.
TEST_F(ModelTest, LanguageModelsMustFindTheirTensors) {
  copy("gpt2-tied", {{"transformer.wpe.weight", ""}});
  EXPECT_THAT(load_error(), HasSubstr("no tensor \"transformer.wpe.weight\""));
  copy("gpt2-tied", {{"transformer.h.1.mlp.c_fc.bias", ""}});
  EXPECT_THAT(load_error(), HasSubstr("no tensor \"transformer.h.1.mlp.c_fc.bias\""));
  copy("baichuan2", {{"model.layers.0.self_attn.W_pack.weight", "model.layers.0.self_attn.q_proj.weight"}});
  EXPECT_THAT(load_error(), HasSubstr("no tensor \"model.layers.0.self_attn.W_pack.weight\""));
  const auto as = [&](const char* family, const char* tensors) {
    copy(tensors);
    std::filesystem::copy_file(fixture_model(family) / "config.json", dir_ / "config.json",
                               std::filesystem::copy_options::overwrite_existing);
    return load_error();
  };
  EXPECT_THAT(as("gpt2-tied", "llama-gqa4"), HasSubstr("none of these tensors is there: model.wte.weight, wte.weight"));
  EXPECT_THAT(as("llama-gqa4", "gpt2-published"), HasSubstr("embed_tokens.weight"));
  EXPECT_THAT(as("baichuan2", "baichuan"), HasSubstr("expected shape ["));
}

// A checkpoint may declare its embeddings tied and still have an output matrix of its own: then that is used.
TEST_F(ModelTest, TiesOnlyEqualEmbeddings) {
  copy("mistral-full");
  EXPECT_TRUE(Model::load(Checkpoint(dir_), *backend_)->weights().text.tied);
  copy("llama-gqa4");
  Json config = load_json(dir_ / "config.json");
  config["tie_word_embeddings"] = true;
  write("config.json", config.dump());
  EXPECT_FALSE(Model::load(Checkpoint(dir_), *backend_)->weights().text.tied);
}

TEST_F(ModelTest, MisalignedTensorsAreCopied) {
  const std::string file = read_text_file(fixture_model("llama-gqa4") / "model.safetensors");
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  ++length;  // one more space in the header: every tensor moves to an odd address
  std::string moved(reinterpret_cast<const char*>(&length), sizeof length);
  moved += file.substr(8, length - 1) + " " + file.substr(8 + length - 1);
  copy("llama-gqa4");
  write("model.safetensors", moved);
  const auto model = Model::load(Checkpoint(fixture_model("llama-gqa4")), *backend_);
  const auto other = Model::load(Checkpoint(dir_), *backend_);
  const std::vector<int32_t> ids = {5, 17};
  const int64_t hidden = model->config().text.hidden_size;
  std::vector<float> a(static_cast<size_t>(2 * hidden)), b(a.size());
  model->embed(ids, Tensor(a.data(), DType::kF32, {2, hidden}));
  other->embed(ids, Tensor(b.data(), DType::kF32, {2, hidden}));
  EXPECT_EQ(a, b);
}

TEST_F(ModelTest, RandomWeightsHaveTheShapesAndTheSeed) {
  const ModelConfig config = Model::read_config(Checkpoint(fixture_model("smolvlm-split")));
  const auto a = Model::random(config, *backend_, 1), b = Model::random(config, *backend_, 1),
             c = Model::random(config, *backend_, 2);
  EXPECT_EQ(a->n_parameters(), Model::load(Checkpoint(fixture_model("smolvlm-split")), *backend_)->n_parameters());
  const auto row = [&](const Model& model) {
    std::vector<float> x(static_cast<size_t>(config.text.hidden_size));
    model.embed(std::vector<int32_t>{3}, Tensor(x.data(), DType::kF32, {1, config.text.hidden_size}));
    return x;
  };
  EXPECT_EQ(row(*a), row(*b));
  EXPECT_NE(row(*a), row(*c));
  const WeightList shapes = list_weights(config, shape_source(!config.text.tied_embeddings), *backend_, {});
  EXPECT_EQ(shapes.matrices, a->weights().matrices);
}

TEST_F(ModelTest, CapturesTheClassTokensAttention) {
  const auto model = Model::load(Checkpoint(fixture_model("llava-layers")), *backend_);
  const VisionConfig& v = *model->config().vision;
  ImageTiles image;
  image.allocate(2, v.image_size, v.image_size);
  float* pixels = image.tensor().as<float>();
  for (int64_t i = 0; i < image.tensor().numel(); ++i) pixels[i] = static_cast<float>(i * 7 % 11) / 5.0f - 1.0f;
  VisionCapture capture = {.layers = {0, 2}, .probs = {}};
  const VisionOutput with = model->encode_features(image, &capture), without = model->encode_features(image);
  EXPECT_EQ(std::memcmp(with.storage.data(), without.storage.data(), static_cast<size_t>(with.embeds.bytes())), 0);
  const int64_t rows = v.n_positions();
  ASSERT_EQ(capture.probs.size(), 2u);
  for (const Buffer& buffer : capture.probs) {
    const Tensor probs(buffer.data(), DType::kF32, {2 * rows, v.n_heads});
    for (int64_t tile = 0; tile < 2; ++tile) {
      for (int64_t head = 0; head < v.n_heads; ++head) {
        float sum = 0;
        for (int64_t i = 0; i < rows; ++i) sum += probs.row<float>(tile * rows + i)[head];
        EXPECT_NEAR(sum, 1.0f, 1e-5f);
      }
    }
  }
  capture.layers = {99};
  EXPECT_THAT(error_of([&] { model->encode_features(image, &capture); }), HasSubstr("layer 99"));
  ImageTiles wrong;
  wrong.allocate(1, v.image_size + 1, v.image_size);
  EXPECT_THAT(error_of([&] { model->encode_features(wrong); }), HasSubstr("the vision encoder (config.json) takes"));
}

// A head may have no sink (-inf); NaN, infinity and another number of heads are errors that name the tensor.
TEST_F(ModelTest, SinkLogitsAreChecked) {
  const std::string name = "model.layers.0.self_attn.sinks";
  const auto with = [&](float x) {
    copy("granite-swa");
    const bf16 value = to_bf16(x);
    change(name, [&](size_t) { return std::string(reinterpret_cast<const char*>(&value), sizeof value); });
  };
  constexpr float kInf = std::numeric_limits<float>::infinity();
  with(-kInf);
  const std::vector<float> sinks = Model::load(Checkpoint(dir_), *backend_)->weights().text.layers[0].attn_sinks;
  ASSERT_EQ(sinks.size(), 4u);
  EXPECT_EQ(sinks[0], -kInf);
  EXPECT_TRUE(std::isfinite(sinks[1]));
  with(kInf);
  EXPECT_THAT(load_error(), HasSubstr(name + ": the logit of head 0 is infinite"));
  with(std::numeric_limits<float>::quiet_NaN());
  EXPECT_THAT(load_error(), HasSubstr(name + ": the logit of head 0 is NaN"));
  copy("granite-swa", {{name, ""}, {"model.layers.2.input_layernorm.weight", name}});
  EXPECT_THAT(load_error(), AllOf(HasSubstr(name), HasSubstr("[4]"), HasSubstr("[128]")));
  copy("granite-swa", {{name, ""}});
  EXPECT_THAT(load_error(), HasSubstr(name));
}

}  // namespace
}  // namespace vlcache
