// The language model's part of a configuration. An absent key has the default of transformers' class for that
// model_type: checkpoints leave out values equal to the default.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "model/config.h"
#include "model/families/families.h"

namespace vlcache {
namespace {

const TextFamily& find_text_family(const std::string& model_type, const std::string& where) {
  std::string known;
  for (const TextFamily& family : text_families()) {
    if (family.model_type == model_type) return family;
    known += (known.empty() ? "" : ", ") + std::string(family.model_type);
  }
  throw Error(ErrorCode::kUnsupported, where + ": model_type " + shown_json(Json(model_type)) +
                                           " is not a supported language model; supported: " + known);
}

// Sizes that a matrix may have: far above any model, far below overflow when multiplied.
int64_t size_of(const JsonObject& config, std::string_view key, int64_t fallback) {
  const int64_t x = config.integer(key, fallback);
  if (x < 1 || x > (int64_t{1} << 24)) config.fail(key, "a size from 1 to 16777216");
  return x;
}

// The sizes that all layers have.
TextLayer read_layer(const JsonObject& config, const TextFamily& d, int64_t hidden_size) {
  TextLayer layer;
  const TextKeys& keys = d.keys;
  layer.ffn_size = size_of(config, keys.ffn_size, d.ffn_size > 0 ? d.ffn_size : 4 * hidden_size);
  layer.n_heads = size_of(config, keys.n_heads, d.n_heads);
  const bool kv_given = config.raw().contains(keys.n_kv_heads);
  layer.n_kv_heads = size_of(config, keys.n_kv_heads, !kv_given && d.n_kv_heads > 0 ? d.n_kv_heads : layer.n_heads);
  if (layer.n_heads % layer.n_kv_heads != 0) {
    config.fail(keys.n_kv_heads,
                "a divisor of " + std::string(keys.n_heads) + " (" + std::to_string(layer.n_heads) + ")");
  }
  if (!config.has("head_dim") && d.head_dim == 0 && hidden_size % layer.n_heads != 0) {
    config.fail(keys.n_heads, "a divisor of " + std::string(keys.hidden_size) + " (" + std::to_string(hidden_size) +
                                  "), or a head_dim");
  }
  layer.head_dim = size_of(config, "head_dim", d.head_dim > 0 ? d.head_dim : hidden_size / layer.n_heads);
  if (layer.head_dim % 2 != 0 || layer.head_dim > kMaxHeadDim) {
    config.fail(config.has("head_dim") ? "head_dim" : keys.n_heads, "an even head_dim of at most " +
                                                                        std::to_string(kMaxHeadDim) + " (it is " +
                                                                        std::to_string(layer.head_dim) + ")");
  }
  return layer;
}

// arXiv:2309.00071, §3.4, as transformers computes it.
double yarn_attention_factor(const JsonObject& rope, double factor) {
  if (rope.has("attention_factor")) return rope.number("attention_factor");
  const auto scale = [&](double m) { return factor <= 1.0 ? 1.0 : 0.1 * m * std::log(factor) + 1.0; };
  const double m = rope.number("mscale", 0.0), all = rope.number("mscale_all_dim", 0.0);
  return m != 0.0 && all != 0.0 ? scale(m) / scale(all) : scale(1.0);
}

RopeType rope_type(const JsonObject& rope) {
  const std::string_view key = rope.has("rope_type") ? "rope_type" : "type";
  const std::string name = rope.string(key, "default");
  if (name == "default" || name == "mrope") return RopeType::kDefault;
  if (name == "linear") return RopeType::kLinear;
  if (name == "dynamic") return RopeType::kDynamic;
  if (name == "llama3") return RopeType::kLlama3;
  if (name == "yarn") return RopeType::kYarn;
  throw Error(ErrorCode::kUnsupported, rope.where() + ": " + std::string(key) + " " + shown_json(Json(name)) +
                                           " is not supported; supported: default, linear, dynamic, llama3, yarn");
}

// rope_scaling and rope_theta of transformers 4, rope_parameters of 5; null if the file has neither.
const Json* rope_object(const JsonObject& text) {
  for (const std::string_view key : {"rope_scaling", "rope_parameters"}) {
    const Json* rope = text.find(key);
    if (rope == nullptr) continue;
    if (!rope->is_object()) text.fail(key, "an object");
    if (rope->contains("full_attention") || rope->contains("sliding_attention")) {
      throw Error(ErrorCode::kUnsupported,
                  text.where() + ": " + std::string(key) + " that differ by layer are not supported");
    }
    if (!rope->empty()) return rope;
  }
  return nullptr;
}

double positive(const JsonObject& object, std::string_view key, double fallback) {
  const double x = object.number(key, fallback);
  if (!(x > 0.0 && std::isfinite(x))) object.fail(key, "a number above 0");
  return x;
}

// mrope_section, which models without M-RoPE must not have: [t, h, w] frequencies of each head.
std::array<int64_t, 3> read_sections(const JsonObject& rope, const RopeConfig& defaults) {
  const Json* value = rope.find("mrope_section");
  if (!defaults.multimodal()) {
    if (value == nullptr) return {};
    throw Error(ErrorCode::kUnsupported,
                rope.where() + ": multimodal rope (mrope_section) is not supported for this model_type");
  }
  if (value == nullptr) return defaults.sections;
  std::array<int64_t, 3> sections{};
  bool good = value->is_array() && value->size() == sections.size();
  for (size_t i = 0; good && i < sections.size(); ++i) {
    good = (*value)[i].is_number_integer() && (*value)[i] >= 0 && (*value)[i] <= kMaxHeadDim;
    if (good) sections[i] = (*value)[i].get<int64_t>();
  }
  if (!good) rope.fail("mrope_section", "three numbers of frequencies: of time, height and width");
  return sections;
}

}  // namespace

RopeConfig parse_rope_config(const JsonObject& text, int64_t max_positions, const RopeConfig& defaults) {
  RopeConfig out;
  static const Json kEmpty = Json::object();
  const Json* found = rope_object(text);
  const JsonObject rope(found != nullptr ? *found : kEmpty, text.where() + ": rope");
  if (rope.number("partial_rotary_factor", text.number("partial_rotary_factor", 1.0)) != 1.0) {
    throw Error(ErrorCode::kUnsupported, text.where() + ": a partial_rotary_factor other than 1 is not supported");
  }
  out.theta = positive(rope, "rope_theta", positive(text, "rope_theta", defaults.theta));
  out.type = rope_type(rope);
  out.sections = read_sections(rope, defaults);
  out.interleaved = defaults.interleaved;
  if (out.type == RopeType::kDefault) return out;
  const bool derives_factor = out.type == RopeType::kYarn && !rope.has("factor");
  if (!derives_factor && !rope.has("factor")) rope.fail("factor", "a number above 0");
  out.original_positions =
      text.integer("original_max_position_embeddings", rope.integer("original_max_position_embeddings", max_positions));
  if (out.original_positions < 1) rope.fail("original_max_position_embeddings", "a number above 0");
  out.factor = derives_factor ? static_cast<double>(max_positions) / static_cast<double>(out.original_positions)
                              : positive(rope, "factor", 1.0);
  if (out.type == RopeType::kLlama3) {
    out.low_freq_factor = positive(rope, "low_freq_factor", 1.0);
    out.high_freq_factor = positive(rope, "high_freq_factor", 4.0);
    if (out.high_freq_factor <= out.low_freq_factor) rope.fail("high_freq_factor", "a number above low_freq_factor");
  } else if (out.type == RopeType::kYarn) {
    out.beta_fast = positive(rope, "beta_fast", 32.0);
    out.beta_slow = positive(rope, "beta_slow", 1.0);
    out.truncate = rope.boolean("truncate", true);
    out.attention_factor = yarn_attention_factor(rope, out.factor);
  }
  return out;
}

float read_eps(const JsonObject& config, std::string_view key, double fallback) {
  const double eps = config.number(key, fallback);
  if (!(eps >= 0.0 && eps <= 1.0)) config.fail(key, "a number from 0 to 1");
  return static_cast<float>(eps);
}

Activation read_activation(const JsonObject& config, std::string_view key, std::string_view fallback) {
  try {
    return activation_from_name(config.string(key, fallback));
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kUnsupported) throw;
    throw Error(e.code(), config.where() + ": " + std::string(key) + ": " + e.what());
  }
}

int32_t read_window(const JsonObject& config, int32_t fallback) {
  // An explicit null means "no window"; only an absent key means the default.
  if (config.raw().contains("sliding_window") && !config.has("sliding_window")) return 0;
  return static_cast<int32_t>(size_of(config, "sliding_window", fallback));
}

void read_layer_types(const JsonObject& config, const Json& types, int32_t window, TextConfig& text) {
  if (!types.is_array() || types.size() != text.layers.size()) {
    config.fail("layer_types", "one type for each of the " + std::to_string(text.n_layers) + " layers");
  }
  for (size_t i = 0; i < text.layers.size(); ++i) {
    if (types[i] == "sliding_attention") {
      if (window == 0) config.fail("layer_types", "only full_attention, as there is no sliding_window in use");
      text.layers[i].window = window;
    } else if (types[i] == "linear_attention" || types[i] == "conv") {
      throw Error(ErrorCode::kUnsupported, config.where() + ": layer_types: layer " + std::to_string(i) + " is " +
                                               types[i].get<std::string>() +
                                               "; layers with a state instead of KV are not supported");
    } else if (types[i] != "full_attention") {
      config.fail("layer_types", "full_attention or sliding_attention");
    }
  }
}

void read_qwen_windows(const JsonObject& config, TextConfig& text) {
  const int32_t window = config.boolean("use_sliding_window", false) ? read_window(config, 4096) : 0;
  if (const Json* types = config.find("layer_types"); types != nullptr) {
    read_layer_types(config, *types, window, text);
    return;
  }
  const int64_t first = std::max<int64_t>(config.integer("max_window_layers", 28), 0);
  for (int64_t i = first; i < text.n_layers; ++i) text.layers[static_cast<size_t>(i)].window = window;
}

TextConfig parse_text_config(const JsonObject& config, std::string_view default_model_type) {
  return read_text_config(config, find_text_family(config.string("model_type", default_model_type), config.where()));
}

TextConfig read_text_config(const JsonObject& config, const TextFamily& family) {
  const TextKeys& keys = family.keys;
  TextConfig text;
  text.model_type = family.model_type;
  text.names = family.names;
  text.vocab_size = size_of(config, keys.vocab_size, family.vocab_size);
  text.hidden_size = size_of(config, keys.hidden_size, family.hidden_size);
  text.n_layers = size_of(config, keys.n_layers, family.n_layers);
  if (text.n_layers > 4096) config.fail(keys.n_layers, "at most 4096 layers");
  text.layers.assign(static_cast<size_t>(text.n_layers), read_layer(config, family, text.hidden_size));
  text.max_positions = size_of(config, keys.max_positions, family.max_positions);
  text.norm_eps = read_eps(config, keys.eps, family.eps);
  text.activation = read_activation(config, keys.activation, family.activation);
  text.tied_embeddings = config.boolean(keys.tied, family.tied);
  text.learned_positions = family.learned_positions;
  const RopeConfig rope =
      text.learned_positions
          ? RopeConfig{.type = RopeType::kNone}
          : parse_rope_config(config, text.max_positions,
                              {.theta = family.theta, .sections = family.sections, .interleaved = family.interleaved});
  const int64_t head_dim = text.layers[0].head_dim;
  if (rope.multimodal() && rope.sections[0] + rope.sections[1] + rope.sections[2] != head_dim / 2) {
    config.fail("mrope_section", "numbers that add up to half of head_dim (" + std::to_string(head_dim) + ")");
  }
  text.ropes = {rope};
  family.read_switches(config, text);
  return text;
}

}  // namespace vlcache
