#include "model/config.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "model/family.h"
#include "model/generation_rules.h"

namespace vlcache {
namespace {

constexpr int64_t kDefaultTopK = 50;

std::optional<DType> parse_dtype(const JsonObject& config) {
  const std::string_view key = config.find("dtype") != nullptr ? "dtype" : "torch_dtype";
  if (!config.has(key)) {
    return config.find("text_config") != nullptr ? parse_dtype(config.object("text_config")) : std::nullopt;
  }
  const Json& value = *config.find(key);
  std::string name = value.is_string() ? value.get<std::string>() : "";
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (name.starts_with("torch.")) name.erase(0, std::string_view("torch.").size());
  if (name == "float32" || name == "float" || name == "fp32") return DType::kF32;
  if (name == "bfloat16" || name == "bf16") return DType::kBF16;
  if (name == "float16" || name == "half" || name == "fp16") return DType::kF16;
  config.fail(key, "float32, bfloat16 or float16");
}

// One id or a list of them. Ids outside the vocabulary, which no step can choose, are left out: published checkpoints
// have such ids (-1, or an added token without a row in the matrices).
std::vector<int32_t> parse_ids(const JsonObject& object, std::string_view key, int64_t vocab_size) {
  const Json* value = object.find(key);
  std::vector<int32_t> ids;
  if (value == nullptr) return ids;
  const Json list = value->is_array() ? *value : Json::array({*value});
  for (const Json& id : list) {
    if (!id.is_number_integer()) object.fail(key, "a token id or a list of them");
    const double x = id.get<double>();  // an unsigned one may be beyond int64_t
    if (x >= 0 && x < static_cast<double>(vocab_size)) ids.push_back(id.get<int32_t>());
  }
  return ids;
}

std::optional<double> optional_number(const JsonObject& object, std::string_view key, double least, double most) {
  if (!object.has(key)) return std::nullopt;
  const double x = object.number(key);
  if (!(x >= least && x <= most))
    object.fail(key, "a number from " + std::to_string(least) + " to " + std::to_string(most));
  return x;
}

void check_vision(const JsonObject& root, const ModelConfig& config) {
  if (config.image_token_id < 0 || config.image_token_id >= config.text.vocab_size + config.image_token_beyond) {
    throw Error(ErrorCode::kInput, root.where() + ": the image token id " + std::to_string(config.image_token_id) +
                                       " is outside the vocabulary of " + std::to_string(config.text.vocab_size));
  }
  const int64_t side = config.vision->side();
  if (!config.vision->traits.any_grid && side % config.projector.scale != 0) {
    throw Error(ErrorCode::kInput, root.where() + ": scale_factor " + std::to_string(config.projector.scale) +
                                       " does not divide the encoder's " + std::to_string(side) + " patches a side");
  }
}

// From generation_config.json; ids that it lacks, from config.json.
GenerationDefaults parse_generation(const JsonObject& config, const Json* generation, int64_t vocab) {
  GenerationDefaults g;
  const auto take = [&](const JsonObject& from) {
    if (g.eos_token_ids.empty()) g.eos_token_ids = parse_ids(from, "eos_token_id", vocab);
    if (!g.bos_token_id) {
      const std::vector<int32_t> bos = parse_ids(from, "bos_token_id", vocab);
      if (!bos.empty()) g.bos_token_id = bos[0];
    }
  };
  if (generation != nullptr) {
    const JsonObject own(*generation,
                         std::filesystem::path(config.where()).replace_filename("generation_config.json").string());
    take(own);
    g.do_sample = own.boolean("do_sample", false);
    g.temperature = optional_number(own, "temperature", 0.0, 1e3);
    g.top_p = optional_number(own, "top_p", 0.0, 1.0);
    g.min_p = optional_number(own, "min_p", 0.0, 1.0);
    g.repetition_penalty = optional_number(own, "repetition_penalty", 1e-3, 1e3);
    if (own.has("top_k")) g.top_k = std::max<int64_t>(0, own.integer("top_k"));
    // The files leave out values equal to transformers' default, which for sampling is top_k 50.
    if (g.do_sample && !g.top_k) g.top_k = kDefaultTopK;
    read_generation_rules(own, vocab, g);
  }
  take(config);
  if (config.find("text_config") != nullptr) take(config.object("text_config"));
  return g;
}

}  // namespace

TextLayer TextConfig::widest() const {
  TextLayer most;
  for (const TextLayer& l : layers) {
    most.n_heads = std::max(most.n_heads, l.n_heads);
    most.n_kv_heads = std::max(most.n_kv_heads, l.n_kv_heads);
    most.head_dim = std::max(most.head_dim, l.head_dim);
    most.ffn_size = std::max(most.ffn_size, l.ffn_size);
    most.n_experts = std::max(most.n_experts, l.n_experts);
    most.n_experts_used = std::max(most.n_experts_used, l.n_experts_used);
  }
  return most;
}

double TextConfig::layers_weights(double n_rows) const {
  double n = 0;
  for (const TextLayer& l : layers) {
    double n_mlps = 1;
    if (l.n_experts > 0) {
      const auto experts = static_cast<double>(l.n_experts);
      n_mlps = experts * (1 - std::pow(1 - static_cast<double>(l.n_experts_used) / experts, n_rows));
    }
    n += static_cast<double>(hidden_size * (2 * l.q_size() + 2 * l.kv_size() + l.n_experts)) +
         n_mlps * static_cast<double>((gated_mlp ? 3 : 2) * hidden_size * l.ffn_size);
  }
  return n;
}

double TextConfig::layers_flops(double cached) const {
  double n = 2 * layers_weights(/*n_rows=*/1);
  for (const TextLayer& l : layers) n += 4 * static_cast<double>(l.q_size()) * cached;
  return n;
}

int64_t TextConfig::kv_elements() const {
  int64_t n = 0;
  for (const TextLayer& l : layers) n += l.shares_kv < 0 ? 2 * l.kv_size() : 0;
  return n;
}

int64_t VisionConfig::n_used_layers() const {
  if (traits.post_norm || feature_layers.empty()) return n_layers;
  return *std::max_element(feature_layers.begin(), feature_layers.end());
}

bool VisionConfig::windowed(int32_t layer) const {
  return window > 0 && std::ranges::find(full_layers, layer) == full_layers.end();
}

ModelConfig parse_model_config(const Json& json, std::string_view where, const Json* generation) {
  const JsonObject root(json, std::string(where));
  ModelConfig config;
  config.model_type = root.string("model_type");
  config.family = &find_family(config.model_type, where);
  const std::optional<DType> dtype = parse_dtype(root);
  config.dtype = dtype.value_or(DType::kF32);
  config.states_dtype = dtype.has_value();
  config.family->read_config(root, config);
  if (config.vision) check_vision(root, config);
  config.generation = parse_generation(root, generation, config.text.vocab_size);
  return config;
}

}  // namespace vlcache
