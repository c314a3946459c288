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
  throw Error(ErrorCode::kUnsupported, where + ": model_type \"" + model_type.substr(0, 100) +
                                           "\" is not a supported language model; supported: " + known);
}

// Sizes that a matrix may have: far above any model, far below overflow when multiplied.
int64_t size_of(const JsonObject& config, std::string_view key, int64_t fallback) {
  const int64_t x = config.integer(key, fallback);
  if (x < 1 || x > (int64_t{1} << 24)) config.fail(key, "a size from 1 to 16777216");
  return x;
}

void read_heads(const JsonObject& config, const TextFamily& d, TextConfig& text) {
  text.n_heads = size_of(config, "num_attention_heads", 32);
  const bool kv_given = config.raw().contains("num_key_value_heads");
  text.n_kv_heads = size_of(config, "num_key_value_heads", !kv_given && d.n_kv_heads > 0 ? d.n_kv_heads : text.n_heads);
  if (text.n_heads % text.n_kv_heads != 0) {
    config.fail("num_key_value_heads", "a divisor of num_attention_heads (" + std::to_string(text.n_heads) + ")");
  }
  if (!config.has("head_dim") && d.head_dim == 0 && text.hidden_size % text.n_heads != 0) {
    config.fail("num_attention_heads",
                "a divisor of hidden_size (" + std::to_string(text.hidden_size) + "), or a head_dim");
  }
  text.head_dim = size_of(config, "head_dim", d.head_dim > 0 ? d.head_dim : text.hidden_size / text.n_heads);
  if (text.head_dim % 2 != 0 || text.head_dim > kMaxHeadDim) {
    config.fail(config.has("head_dim") ? "head_dim" : "num_attention_heads",
                "an even head_dim of at most " + std::to_string(kMaxHeadDim) + " (it is " +
                    std::to_string(text.head_dim) + ")");
  }
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
  if (rope.has("mrope_section")) {
    throw Error(ErrorCode::kUnsupported, rope.where() + ": multimodal rope (mrope_section) is not supported");
  }
  if (name == "default") return RopeType::kDefault;
  if (name == "linear") return RopeType::kLinear;
  if (name == "dynamic") return RopeType::kDynamic;
  if (name == "llama3") return RopeType::kLlama3;
  if (name == "yarn") return RopeType::kYarn;
  throw Error(ErrorCode::kUnsupported, rope.where() + ": " + std::string(key) + " \"" + name +
                                           "\" is not supported; supported: default, linear, dynamic, llama3, yarn");
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

}  // namespace

RopeConfig parse_rope_config(const JsonObject& text, int64_t max_positions) {
  RopeConfig out;
  static const Json kEmpty = Json::object();
  const Json* found = rope_object(text);
  const JsonObject rope(found != nullptr ? *found : kEmpty, text.where() + ": rope");
  if (rope.number("partial_rotary_factor", text.number("partial_rotary_factor", 1.0)) != 1.0) {
    throw Error(ErrorCode::kUnsupported, text.where() + ": a partial_rotary_factor other than 1 is not supported");
  }
  out.theta = positive(rope, "rope_theta", positive(text, "rope_theta", 10000.0));
  out.type = rope_type(rope);
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

int32_t read_window(const JsonObject& config, int32_t fallback) {
  // An explicit null means "no window"; only an absent key means the default.
  if (config.raw().contains("sliding_window") && !config.has("sliding_window")) return 0;
  return static_cast<int32_t>(size_of(config, "sliding_window", fallback));
}

void read_qwen_windows(const JsonObject& config, TextConfig& text) {
  const int32_t window = config.boolean("use_sliding_window", false) ? read_window(config, 4096) : 0;
  const Json* types = config.find("layer_types");
  if (types == nullptr) {
    const int64_t first = std::max<int64_t>(config.integer("max_window_layers", 28), 0);
    for (int64_t i = first; i < text.n_layers; ++i) text.windows[static_cast<size_t>(i)] = window;
    return;
  }
  if (!types->is_array() || types->size() != text.windows.size()) {
    config.fail("layer_types", "one type for each of the " + std::to_string(text.n_layers) + " layers");
  }
  for (size_t i = 0; i < text.windows.size(); ++i) {
    if ((*types)[i] == "sliding_attention") {
      if (window == 0) config.fail("layer_types", "only full_attention, as there is no sliding_window in use");
      text.windows[i] = window;
    } else if ((*types)[i] != "full_attention") {
      config.fail("layer_types", "full_attention or sliding_attention");
    }
  }
}

TextConfig parse_text_config(const JsonObject& config, std::string_view default_model_type) {
  TextConfig text;
  text.model_type = config.string("model_type", default_model_type);
  const TextFamily& family = find_text_family(text.model_type, config.where());
  text.vocab_size = size_of(config, "vocab_size", family.vocab_size);
  text.hidden_size = size_of(config, "hidden_size", 4096);
  text.ffn_size = size_of(config, "intermediate_size", family.ffn_size);
  text.n_layers = size_of(config, "num_hidden_layers", 32);
  if (text.n_layers > 4096) config.fail("num_hidden_layers", "at most 4096 layers");
  read_heads(config, family, text);
  text.max_positions = size_of(config, "max_position_embeddings", family.max_positions);
  text.rms_norm_eps = read_eps(config, "rms_norm_eps", 1e-6);
  text.activation = activation_from_name(config.string("hidden_act", "silu"));
  text.tied_embeddings = config.boolean("tie_word_embeddings", false);
  text.rope = parse_rope_config(config, text.max_positions);
  text.windows.assign(static_cast<size_t>(text.n_layers), 0);
  family.read_switches(config, text);
  return text;
}

}  // namespace vlcache
