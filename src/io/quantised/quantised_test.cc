// Quantised checkpoints: every format against its own package's dequantiser (tools/fixtures/quantised), and files that
// are not what they say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "base/at.h"
#include "base/sha256.h"
#include "io/quantised/module_patterns.h"
#include "io/quantised/module_tensors.h"
#include "io/quantised/quantised_tensors.h"
#include "io/safetensors.h"
#include "tests/testing.h"

namespace vlcache {
namespace {

using testing::AllOf;
using testing::HasSubstr;
namespace fs = std::filesystem;

fs::path quantised_fixture(const std::string& name) {
  return fs::path(VLCACHE_SOURCE_DIR) / "tests/fixtures/quantised" / name;
}

std::string digest(const std::vector<float>& values) {
  std::vector<float> unsigned_zeros;
  for (const float x : values) unsigned_zeros.push_back(x + 0.0f);  // the zero of a code is -0 in some packages
  Sha256 hash;
  hash.add(std::as_bytes(std::span(unsigned_zeros)));
  return hex(hash.finish());
}

// All rows, a panel at a time and in odd pieces.
std::vector<float> dequantised(const QuantSource& codes) {
  std::vector<float> values(at(codes.n_out() * codes.n_in()));
  QuantRows rows;
  for (int64_t first = 0, n = 0; first < codes.n_out(); first += n) {
    n = std::min<int64_t>(first == 0 ? 7 : kQuantBlock, codes.n_out() - first);
    codes.read(first, n, rows);
    for (int64_t i = 0; i < n; ++i) rows.dequantise(i, values.data() + (first + i) * codes.n_in());
  }
  const std::span<const int32_t> order = codes.input_order();
  if (order.empty()) return values;
  std::vector<float> in_place(values.size());
  for (int64_t i = 0; i < std::ssize(values); ++i) {
    const int64_t k = i % codes.n_in();
    in_place[at(i - k + order[at(k)])] = values[at(i)];
  }
  return in_place;
}

// All matrices of a stack, one after the other.
std::vector<float> stack_values(const QuantisedTensors& quantised, const std::string& name,
                                const std::array<int64_t, 3>& shape) {
  EXPECT_TRUE(quantised.has_stack(name));
  EXPECT_EQ(quantised.stack_shape(name), shape);
  const auto [n, n_out, n_in] = shape;
  std::vector<float> values(at(n * n_out * n_in));
  for (int64_t i = 0; i < n; ++i) {
    const auto matrix = quantised.stacked(name, {.i = i, .n = n}, n_out, n_in);
    EXPECT_EQ(matrix->codes(), nullptr);
    matrix->values(0, n_out, values.data() + i * n_out * n_in);
  }
  return values;
}

// The form in which the matrices of a fixture keep their codes; "": they become values.
struct ExpectedForm {
  const char *fixture, *module_end, *form;
};
constexpr ExpectedForm kForms[] = {
    {"ct-packed", "", "4 bits g32 bf16"},
    {"ct-packed-zeros", "down_proj", "8 bits g128 f16 zero"},
    {"ct-packed-zeros", "", "4 bits g32 f16 zero"},
    {"ct-int", "q_proj", ""},  // scales in f32
    {"ct-int", "", ""},
    {"ct-float", "", ""},
    {"ct-nvfp4", "v_proj", "4 bits fp4 g16 bf16"},  // whose quotients are bf16, by chance
    {"ct-nvfp4", "", ""},
    {"awq", "", "4 bits g32 f16 zero"},
    {"gptq", "", "4 bits g32 f16 zero"},
    {"gptq-order", "", "8 bits g32 bf16"},
    {"fp8-blocks", "", ""},
    {"vlm-fp8", "", ""},
    {"vlm-ct", "fc1", "8 bits g128 bf16"},
    {"vlm-ct", "", "4 bits g32 bf16"},
};

TEST(QuantisedTensors, AreWhatTheFormatsOwnDequantisersMake) {
  for (const auto& entry : fs::directory_iterator(quantised_fixture(""))) {
    const std::string fixture = entry.path().filename();
    const Json config = load_json(entry.path() / "config.json");
    const auto files = std::make_shared<const Safetensors>(Safetensors::open(entry.path() / "model.safetensors"));
    const auto quantised = QuantisedTensors::open(JsonObject(config, "config.json"), files);
    ASSERT_NE(quantised, nullptr);
    const Json matrices = load_json(entry.path() / "case.json")["matrices"];
    EXPECT_EQ(quantised->modules().size() + quantised->stacks().size(), matrices.size());
    for (const auto& [module, expected] : matrices.items()) {
      SCOPED_TRACE(fixture + " " + module);
      if (expected["shape"].size() == 3) {
        EXPECT_EQ(digest(stack_values(*quantised, module, expected["shape"])), expected["sha256"]);
        continue;
      }
      const int64_t n_out = expected["shape"][0], n_in = expected["shape"][1];
      EXPECT_EQ(quantised->shape(module), (std::array{n_out, n_in}));
      const auto matrix = quantised->matrix(module, n_out, n_in);
      std::vector<float> values(at(n_out * n_in));
      matrix->values(0, n_out / 2, values.data());
      matrix->values(n_out / 2, n_out - n_out / 2, values.data() + n_out / 2 * n_in);
      EXPECT_EQ(digest(values), expected["sha256"]);
      const auto* form = std::ranges::find_if(kForms, [&, name = std::string_view(module)](const ExpectedForm& f) {
        return fixture == f.fixture && name.ends_with(f.module_end);
      });
      ASSERT_NE(form, std::end(kForms));
      const QuantSource* codes = matrix->codes();
      EXPECT_EQ(codes == nullptr ? "" : codes->form().describe(), form->form);
      if (codes != nullptr) {
        EXPECT_EQ(digest(dequantised(*codes)), expected["sha256"]);
        const bool by_groups = fixture == "gptq-order" && (module.ends_with("down_proj") || module.ends_with("k_proj"));
        EXPECT_EQ(!codes->input_order().empty(), by_groups);
      }
    }
  }
}

struct FileTensor {
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;

  template <typename T>
  void set(size_t i, T value) {
    std::memcpy(bytes.data() + i * sizeof value, &value, sizeof value);
  }
};

// A fixture that a test changes.
class ChangedCheckpoint {
 public:
  explicit ChangedCheckpoint(const std::string& fixture)
      : config(load_json(quantised_fixture(fixture) / "config.json")),
        path_(fs::temp_directory_path() / ("vlcache-quantised-" + std::to_string(::getpid()) + ".safetensors")) {
    const Safetensors files = Safetensors::open(quantised_fixture(fixture) / "model.safetensors");
    for (const std::string_view name : files.names()) {
      const SafetensorsEntry& e = *files.find(name);
      const std::span<const std::byte> bytes = files.bytes(name);
      tensors[e.name] = {e.dtype_name, e.shape, {reinterpret_cast<const char*>(bytes.data()), bytes.size()}};
    }
  }
  ~ChangedCheckpoint() { fs::remove(path_); }

  FileTensor& of_layer(const std::string& name) { return tensors.at(layer + name); }
  Json& quantisation() { return config["quantization_config"]; }
  std::unique_ptr<const QuantisedTensors> open() const {
    Json header = Json::object();
    std::string data;
    for (const auto& [name, t] : tensors) {
      header[name] = {
          {"dtype", t.dtype}, {"shape", t.shape}, {"data_offsets", {data.size(), data.size() + t.bytes.size()}}};
      data += t.bytes;
    }
    const std::string text = header.dump();
    const uint64_t length = text.size();
    std::ofstream(path_, std::ios::binary)
        << std::string(reinterpret_cast<const char*>(&length), sizeof length) << text << data;
    const auto files = std::make_shared<const Safetensors>(Safetensors::open(path_));
    return QuantisedTensors::open(JsonObject(config, "config.json"), files);
  }
  std::string error(const std::string& module, int64_t n_out, int64_t n_in) const {
    return error_of([&] { open()->matrix(layer + module, n_out, n_in); });
  }

  const std::string layer = "model.layers.0.";
  Json config;
  std::map<std::string, FileTensor> tensors;

 private:
  fs::path path_;
};

TEST(QuantisedTensors, RefusesWhatDoesNotFit) {
  const std::string q = "self_attn.q_proj";
  {
    ChangedCheckpoint c("awq");
    EXPECT_EQ(c.error(q, 64, 64), "no error");
    EXPECT_THAT(c.error(q, 60, 64), AllOf(HasSubstr("q_proj.qweight"), HasSubstr("outputs by eights")));
    EXPECT_THAT(c.error(q, 64, 96), HasSubstr("expected I32[96, 8] (from config.json), found I32[64, 8]"));
    c.of_layer(q + ".scales").set<uint16_t>(3, 0x7c00);
    EXPECT_THAT(c.error(q, 64, 64), AllOf(HasSubstr("q_proj.scales"), HasSubstr("infinite or not a number")));
    c.tensors.erase(c.layer + q + ".scales");
    EXPECT_THAT(c.error(q, 64, 64), HasSubstr("q_proj.scales\": not there"));
  }
  {
    ChangedCheckpoint c("gptq");  // 4 bits; every other input is of the first group
    for (int32_t k = 0; k < 64; ++k) c.of_layer(q + ".g_idx").set<int32_t>(at(k), k % 2);
    const auto quantised = c.open();
    const auto matrix = quantised->matrix(c.layer + q, 64, 64);
    std::vector<float> values(64 * 64);
    matrix->values(0, 64, values.data());
    ASSERT_NE(matrix->codes(), nullptr);
    EXPECT_EQ(matrix->codes()->form().describe(), "4 bits g32 f16 zero");
    EXPECT_EQ(matrix->codes()->input_order()[33], 3);
    EXPECT_EQ(digest(dequantised(*matrix->codes())), digest(values));
  }
  {
    ChangedCheckpoint c("gptq-order");
    const auto has_codes = [&] { return c.open()->matrix(c.layer + "self_attn.k_proj", 32, 64)->codes() != nullptr; };
    EXPECT_TRUE(has_codes());
    FileTensor& groups = c.of_layer("self_attn.k_proj.g_idx");
    const std::string stored = groups.bytes;
    for (size_t k = 0; k < 33; ++k) groups.set<int32_t>(k, 0);  // more than a group has
    EXPECT_FALSE(has_codes());
    groups.bytes = stored;
    c.of_layer("self_attn.k_proj.g_idx").set<int32_t>(5, 2);
    EXPECT_THAT(c.error("self_attn.k_proj", 32, 64), HasSubstr("input 5 is of group 2, expected 0 to 1"));
    c.of_layer("self_attn.k_proj.g_idx").set<int32_t>(5, -1);
    EXPECT_THAT(c.error("self_attn.k_proj", 32, 64), HasSubstr("input 5 is of group -1"));
    c.of_layer(q + ".scales").set<uint16_t>(0, 0x7fc0);
    EXPECT_THAT(c.error(q, 64, 64), HasSubstr("infinite or not a number"));
    c.of_layer(q + ".qzeros").shape = {1, 32};
    EXPECT_THAT(c.error(q, 64, 64), HasSubstr("qzeros\": expected I32[2, 16] (from config.json), found I32[1, 32]"));
  }
  {
    ChangedCheckpoint c("ct-packed-zeros");
    FileTensor& zeros = c.of_layer(q + ".weight_zero_point");  // not packed, as some files are
    zeros = {"I8", {64, 2}, std::string(128, '\0')};
    EXPECT_THAT(c.error(q, 64, 64),
                HasSubstr("weight_zero_point\": expected I32[8, 2] (from config.json), found I8[64, 2]"));
    c.of_layer(q + ".weight_shape").set<int64_t>(1, 63);
    EXPECT_THAT(c.error(q, 64, 64), HasSubstr("weight_shape\": expected [64, 64] (from config.json), found [64, 63]"));
  }
  {
    ChangedCheckpoint c("fp8-blocks");
    EXPECT_EQ(c.error("mlp.gate_proj", 160, 64), "no error");
    c.quantisation()["weight_block_size"] = {64, 40};
    EXPECT_THAT(c.error("mlp.gate_proj", 160, 64),
                HasSubstr("weight_scale_inv\": expected [3, 2] (from config.json), found"));
    c.quantisation()["weight_block_size"] = {48, 0};
    EXPECT_THAT(error_of([&] { c.open(); }), HasSubstr("weight_block_size: expected the rows and inputs of a block"));
    c.quantisation().erase("weight_block_size");
    EXPECT_THAT(c.error("mlp.gate_proj", 160, 64), HasSubstr("weight_block_size: expected"));
  }
  {
    ChangedCheckpoint c("vlm-fp8");
    const std::string stack = "model.language_model.layers.0.mlp.experts.down_proj";
    const auto error = [&](int64_t n) {
      return error_of([&] { c.open()->stacked(stack, {.i = n - 1, .n = n}, 48, 20); });
    };
    EXPECT_EQ(error(8), "no error");
    EXPECT_THAT(error(7),
                HasSubstr("experts.down_proj\": expected F8_E4M3[7, 48, 20] (from config.json), found F8_E4M3[8"));
    c.quantisation()["weight_block_size"] = {8, 3};
    EXPECT_THAT(error(8),
                HasSubstr("down_proj_scale_inv\": expected [8, 6, 7] (from config.json), found F32[8, 6, 10]"));
    c.tensors.erase(stack + "_scale_inv");
    EXPECT_THAT(error(8), HasSubstr("down_proj_scale_inv\": not there"));
    c.config.erase("quantization_config");
    EXPECT_THAT(error_of([&] { c.open(); }), AllOf(HasSubstr("no quantization_config"), HasSubstr("FP8 in blocks")));
  }
  {
    ChangedCheckpoint c("ct-nvfp4");
    c.of_layer(q + ".weight_global_scale").set<float>(0, 0.0f);
    EXPECT_THAT(c.error(q, 64, 64), HasSubstr("weight_global_scale\": scales divided by it are infinite"));
    c.of_layer(q + ".weight_scale").bytes[0] = '\x7f';
    EXPECT_THAT(c.error(q, 64, 64), HasSubstr("weight_scale\": holds scales that are infinite or not a number"));
  }
}

// The values of all matrices, one after the other.
std::string values_digest(const ChangedCheckpoint& checkpoint) {
  const auto quantised = checkpoint.open();
  if (quantised == nullptr) return "none";
  std::vector<float> all;
  for (const std::string& module : quantised->modules()) {
    const auto [n_out, n_in] = quantised->shape(module);
    const size_t begin = all.size();
    all.resize(begin + at(n_out * n_in));
    quantised->matrix(module, n_out, n_in)->values(0, n_out, all.data() + begin);
  }
  return digest(all);
}

// Configurations of other programs, and other spellings, of the same tensors.
TEST(QuantisedTensors, AreReadUnderOtherLabels) {
  struct Label {
    const char *fixture, *settings;
  };
  for (const auto& [fixture, settings] : {
           Label{"gptq", R"({"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq", "bits": 4,
                             "group_size": 32, "sym": false, "data_type": "int", "autoround_version": "0.9.0"})"},
           {"gptq", R"({"quant_method": "intel/auto-round", "bits": "4", "group_size": "32", "sym": "False"})"},
           {"gptq", R"({"quant_method": "AUTO_ROUND", "backend": "auto_round:gptq:exllamav2", "bits": 4.0,
                        "group_size": 32.0, "sym": 0, "extra_config": {"lm_head": {"bits": 16}}})"},
           {"gptq-order", R"({"quant_method": "auto-round", "packing_format": "auto_round", "bits": 8, "group_size": 32,
                              "sym": false})"},
           {"gptq", R"({"bits": 4, "group_size": 32, "sym": false, "desc_act": false, "damp_percent": 0.01})"},
           {"awq", R"({"quant_method": "auto-round", "packing_format": "auto_round:auto_awq", "bits": 4,
                       "group_size": 32, "sym": true})"},
           {"awq", R"({"zero_point": true, "q_group_size": 32, "w_bit": 4, "version": "GEMM"})"},
           {"awq", R"({"quant_method": "AWQ", "bits": "4", "group_size": "32", "zero_point": "true"})"},
       }) {
    ChangedCheckpoint c(fixture);
    const std::string expected = values_digest(c);
    c.quantisation() = Json::parse(settings);
    EXPECT_EQ(values_digest(c), expected) << fixture << settings;
    for (const QuantFile& file : kQuantFiles) {  // in a file of its own
      ChangedCheckpoint alone(fixture);
      alone.config.erase("quantization_config");
      alone.config[std::string(file.name)] = c.quantisation();
      EXPECT_EQ(values_digest(alone), expected) << file.name << settings;
    }
  }
}

TEST(QuantisedTensors, AFileOfSettingsNamesItsMethod) {
  ChangedCheckpoint c("gptq");
  const std::string expected = values_digest(c);
  c.config.erase("quantization_config");
  Json& settings = c.config["quantize_config.json"];
  settings = {{"bits", 4}, {"group_size", 32}, {"sym", false}};
  EXPECT_EQ(values_digest(c), expected);
  for (const char* bits : {" 4", "four", "4x", ""}) {
    settings["bits"] = bits;
    EXPECT_EQ(error_of([&] { c.open(); }),
              "quantize_config.json: bits: expected an integer, found \"" + std::string(bits) + "\"");
  }
  c.tensors.clear();  // another program wrote it: no tensor is stored as codes
  EXPECT_EQ(values_digest(c), "none");
}

TEST(QuantisedTensors, NumbersAndNamesOfOtherFormatsHaveManySpellings) {
  ChangedCheckpoint blocks("fp8-blocks");
  std::string expected = values_digest(blocks);
  Json& size = blocks.quantisation()["weight_block_size"];
  size = {size[0].dump(), size[1].get<double>()};
  blocks.quantisation()["quant_method"] = "FP8", blocks.quantisation()["fmt"] = "E4M3";
  EXPECT_EQ(values_digest(blocks), expected);
  ChangedCheckpoint packed("ct-packed");
  expected = values_digest(packed);
  Json& weights = packed.quantisation()["config_groups"]["group_0"]["weights"];
  weights["num_bits"] = "4", weights["symmetric"] = "True", weights["type"] = "INT";
  weights["group_size"] = weights["group_size"].dump();
  packed.quantisation()["quant_method"] = "compressed_tensors";
  EXPECT_EQ(values_digest(packed), expected);
}

TEST(QuantisedTensors, OtherLayoutsOfAutoRoundAreRefusedByName) {
  ChangedCheckpoint c("gptq");
  c.quantisation() = {{"quant_method", "auto-round"}, {"bits", 4}, {"group_size", 32}, {"sym", true}};
  c.quantisation()["packing_format"] = "auto_round:llm_compressor";
  EXPECT_THAT(error_of([&] { c.open(); }),
              HasSubstr("packing_format: expected auto_round:auto_gptq, auto_round:auto_awq"));
  c.quantisation()["packing_format"] = "auto_round:auto_gptq";
  c.quantisation()["data_type"] = "mx_fp";
  EXPECT_THAT(error_of([&] { c.open(); }), HasSubstr("data_type: expected \"int\""));
}

// weight F8_E4M3 with one factor, under either name, or one of each row.
TEST(QuantisedTensors, Fp8MayHaveOneFactorAMatrix) {
  for (const char* method : {"fp8", "FBGEMM_FP8"}) {
    for (const char* name : {"weight_scale", "weight_scale_inv"}) {
      for (const std::vector<int64_t>& shape : {std::vector<int64_t>{}, {1}, {1, 1}, {2}, {2, 1}}) {
        ChangedCheckpoint c("fp8-blocks");
        c.config["quantization_config"] = {{"quant_method", method}, {"activation_scheme", "static"}};
        c.tensors.clear();
        c.tensors["a.weight"] = {"F8_E4M3", {2, 3}, "\x38\x40\x44\xb8\x30\x01"};  // 1 2 3 -1 0.5 2^-9
        const size_t n = shape.empty() || shape[0] == 1 ? 1 : 2;
        c.tensors[std::string("a.") + name] = {"F32", shape, std::string(4 * n, '\0')};
        for (size_t i = 0; i < n; ++i) c.tensors[std::string("a.") + name].set<float>(i, i == 0 ? 0.5f : 4.0f);
        c.tensors["a.input_scale"] = {"F32", {}, std::string(4, '\1')};
        const auto quantised = c.open();
        EXPECT_EQ(quantised->name(), "FP8");
        EXPECT_EQ(quantised->modules(), std::vector<std::string>{"a"});
        std::vector<float> values(6);
        quantised->matrix("a", 2, 3)->values(0, 2, values.data());
        const float s = n == 1 ? 0.5f : 4.0f;
        EXPECT_EQ(values, (std::vector<float>{0.5f, 1, 1.5f, -s, 0.5f * s, s / 512})) << name;
        c.tensors[std::string("a.") + name].set<float>(0, INFINITY);
        EXPECT_THAT(error_of([&] { c.open()->matrix("a", 2, 3); }), HasSubstr("infinite or not a number"));
      }
    }
  }
  ChangedCheckpoint c("fp8-blocks");
  c.config["quantization_config"] = {{"quant_method", "fp8"}};
  c.tensors.clear();
  c.tensors["a.weight"] = {"F8_E4M3", {2, 3}, std::string(6, '\1')};
  EXPECT_THAT(error_of([&] { c.open()->matrix("a", 2, 3); }), HasSubstr("a.weight_scale_inv\": not there"));
}

TEST(QuantisedTensors, RefusesOtherMethodsByName) {
  ChangedCheckpoint c("awq");
  const auto error = [&] { return error_of([&] { c.open(); }); };
  for (const char* method : {"bitsandbytes", "hqq", "torchao", "mlx"}) {
    c.quantisation()["quant_method"] = method;
    EXPECT_THAT(error(), AllOf(HasSubstr("quant_method \"" + std::string(method) + "\" is not read"),
                               HasSubstr("--weights int8 or int4")));
  }
  c.quantisation()["quant_method"] = "awq";
  c.quantisation()["bits"] = 3;
  EXPECT_THAT(error(), HasSubstr("bits: expected 4"));
  c.quantisation()["bits"] = 4, c.quantisation()["version"] = "gemv";
  EXPECT_THAT(error(), HasSubstr("version: expected \"gemm\""));
  c.config.erase("quantization_config");
  EXPECT_THAT(error(), AllOf(HasSubstr("no quantization_config"), HasSubstr("is one of AWQ and GPTQ")));

  // A method and another's tensors.
  c.quantisation() = ChangedCheckpoint("ct-packed").quantisation();
  EXPECT_THAT(error(), AllOf(HasSubstr("says compressed-tensors"), HasSubstr("is one of AWQ and GPTQ")));
  c.quantisation() = ChangedCheckpoint("gptq").quantisation();
  EXPECT_THAT(c.error("self_attn.q_proj", 64, 64),
              HasSubstr("expected I32[8, 64] (from config.json), found I32[64, 8]"));

  ChangedCheckpoint packed("ct-packed");
  Json& weights = packed.quantisation()["config_groups"]["group_0"]["weights"];
  weights["num_bits"] = 2;
  EXPECT_THAT(error_of([&] { packed.open(); }), HasSubstr("num_bits: expected 4 or 8"));
  weights["num_bits"] = 4;
  packed.quantisation()["config_groups"]["group_0"]["format"] = "marlin-24";
  EXPECT_THAT(error_of([&] { packed.open(); }), AllOf(HasSubstr("marlin-24"), HasSubstr("expected pack-quantized")));
  packed.quantisation()["config_groups"]["group_0"]["format"] = "pack-quantized";
  packed.quantisation()["ignore"] = {"re:("};
  EXPECT_THAT(error_of([&] { packed.open(); }), HasSubstr("regular expression, found \"re:(\""));
}

// The zero points of symmetric GPTQ tell how they are stored, whatever checkpoint_format says; others do not.
TEST(QuantisedTensors, ZerosOfGptqAreDecidedByTheirValues) {
  const auto first_row = [](const ChangedCheckpoint& c) {
    const auto tensors = c.open();
    std::vector<float> values(64);
    tensors->matrix(c.layer + "self_attn.q_proj", 64, 64)->values(0, 1, values.data());
    return values;
  };
  ChangedCheckpoint second("gptq-order");
  const std::vector<float> right = first_row(second);
  second.quantisation()["checkpoint_format"] = "gptq";
  EXPECT_EQ(first_row(second), right);
  for (char& z : second.of_layer("self_attn.q_proj.qzeros").bytes) z = 0x7f;  // as the first version stores 128
  EXPECT_EQ(first_row(second), right);
  second.quantisation()["sym"] = false;
  EXPECT_EQ(first_row(second), right);
  second.quantisation()["checkpoint_format"] = "gptq_v2";
  EXPECT_NE(first_row(second), right);
}

// A matrix that is there as codes and as values is what `ignore` says.
TEST(QuantisedTensors, IgnoredModulesWithValuesAreNotCodes) {
  ChangedCheckpoint c("ct-packed");
  const std::string module = c.layer + "self_attn.q_proj";
  c.tensors[module + ".weight"] = {"F32", {64, 64}, std::string(64 * 64 * 4, '\0')};
  EXPECT_TRUE(c.open()->has(module));
  c.quantisation()["ignore"] = {"lm_head", "re:.*q_proj"};
  EXPECT_FALSE(c.open()->has(module));
  EXPECT_TRUE(c.open()->has(c.layer + "self_attn.k_proj"));
  c.tensors.erase(module + ".weight");
  EXPECT_TRUE(c.open()->has(module));  // quantised although it is to be ignored: read
}

TEST(ModulePatterns, MatchAsTheirPackagesDo) {
  const Json config = {{"ignore", {"lm_head", "re:.*mlp\\.gate$", "re:model"}},
                       {"skip", {"lm_head", "visual", "layers.1", "h.*.mlp", "("}},
                       {"slow", {"re:(a|a)*[^a]"}},
                       {"bad", "lm_head"}};
  const JsonObject object(config, "c");
  using enum ModulePatterns::Style;
  const ModulePatterns own(object, "ignore", kCompressedTensors), others(object, "skip", kTransformers);
  for (const char* name : {"lm_head", "x.mlp.gate", "model.layers.0"}) EXPECT_TRUE(own.matches(name)) << name;
  for (const char* name : {"x.lm_head", "x.mlp.gate_proj", "language_model.x"}) EXPECT_FALSE(own.matches(name)) << name;
  for (const char* name : {"lm_head", "model.lm_head", "visual.blocks.0", "layers.1.mlp", "h.3.mlp.up", "x("}) {
    EXPECT_TRUE(others.matches(name)) << name;
  }
  for (const char* name : {"visuals", "layers.11", "model.visual.blocks"}) EXPECT_FALSE(others.matches(name)) << name;
  EXPECT_FALSE(ModulePatterns(object, "none", kTransformers).matches("x"));
  EXPECT_THAT(error_of([&] { ModulePatterns(object, "slow", kCompressedTensors).matches(std::string(200, 'a')); }),
              HasSubstr("takes too many steps"));
  EXPECT_THAT(error_of([&] { ModulePatterns(object, "bad", kTransformers); }), HasSubstr("expected an array of names"));
}

}  // namespace
}  // namespace vlcache
