#include "model/weights/weights.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "model/family.h"
#include "model/projector.h"
#include "model/weights/weight_loader.h"

namespace vlcache {
namespace {

// One stacked tensor for each of the two products, or the matrices of every expert by themselves.
void load_experts(WeightLoader& load, const TextConfig& c, const TextLayer& l, const std::string& mlp,
                  TextLayerWeights& w) {
  const int64_t f = l.ffn_size, h = c.hidden_size;
  w.router = load.matrix(mlp + "gate.weight", l.n_experts, h);  // small, and a wrong expert is no small error: dense
  const RowForms up_form = load.text_form(2 * f, MatrixRole::kUsual);
  const RowForms down_form = load.text_form(h, MatrixRole::kSensitive);
  const std::string experts = mlp + "experts.";
  const auto single = [&](int64_t i) { return experts + std::to_string(i) + "."; };
  const bool stacked = load.has(experts + "gate_up_proj");
  if (stacked && load.has(single(0) + "gate_proj.weight")) {
    throw Error(ErrorCode::kInput, load.where() + ": the experts of " + mlp + " are there twice: stacked (" + experts +
                                       "gate_up_proj) and one by one (" + single(0) + "gate_proj.weight)");
  }
  if (stacked) {
    // Qwen's published checkpoints have both transposed; at most one of the two can be square.
    const std::string gate_up = experts + "gate_up_proj", down = experts + "down_proj";
    const bool transposed =
        2 * f != h ? load.has_shape(gate_up, {l.n_experts, h, 2 * f}) : load.has_shape(down, {l.n_experts, f, h});
    w.experts_gate_up = load.stacked({gate_up, l.n_experts, 2 * f, h, transposed}, up_form);
    w.experts_down = load.stacked({down, l.n_experts, h, f, transposed}, down_form);
    return;
  }
  for (int64_t i = 0; i < l.n_experts; ++i) {
    const std::vector<std::string> gate_up = {single(i) + "gate_proj.weight", single(i) + "up_proj.weight"};
    w.experts_gate_up.push_back(load.matrix(gate_up, {f, f}, h, up_form));
    w.experts_down.push_back(load.matrix(single(i) + "down_proj.weight", h, f, down_form));
  }
}

// The weight and, with layer norms, the bias of a norm of the language model.
void load_text_norm(WeightLoader& load, const TextConfig& c, const std::string& name, Tensor& w, Tensor& b) {
  w = load.vector(name + "weight", c.hidden_size);
  if (c.layer_norm) b = load.vector(name + "bias", c.hidden_size);
}

// A matrix whose rows are those of one module after the other, [n_out[i], n_in] each, and their biases.
struct TextLinear {
  std::vector<std::string> modules;
  std::vector<int64_t> n_out;
  int64_t n_in = 0;
  bool bias = false;
  RowForms forms;
  std::vector<int64_t> pairs = {};  // as of WeightLoader::matrix
};
void load_text_linear(WeightLoader& load, const TextConfig& c, const TextLinear& l, Weight& w, Tensor& bias) {
  std::vector<std::string> weights, biases;
  for (const std::string& module : l.modules) {
    weights.push_back(module + "weight");
    biases.push_back(module + "bias");
  }
  w = c.names->transposed ? load.transposed_matrix(weights.at(0), l.n_out.at(0), l.n_in, l.forms)
                          : load.matrix(weights, l.n_out, l.n_in, l.forms, l.pairs);
  if (l.bias) bias = load.vector(biases, l.n_out);
}

// Names after a prefix.
std::vector<std::string> after(const std::string& p, const std::vector<std::string_view>& names) {
  std::vector<std::string> all;
  for (const std::string_view name : names) all.push_back(p + std::string(name));
  return all;
}

// Logits of the query heads that belong to no slot; -inf: none.
std::vector<float> load_sinks(WeightLoader& load, const std::string& name, int64_t n_heads) {
  const Tensor stored = load.vector(name, n_heads);
  std::vector<float> sinks;
  for (int64_t h = 0; h < n_heads; ++h) {
    sinks.push_back(stored.dtype == DType::kBF16 ? to_float(stored.as<bf16>()[h]) : stored.as<float>()[h]);
    if (!(sinks.back() < std::numeric_limits<float>::infinity())) {
      throw Error(ErrorCode::kInput, load.where() + ": " + name + ": the logit of head " + std::to_string(h) + " is " +
                                         (std::isnan(sinks.back()) ? "NaN" : "infinite"));
    }
  }
  return sinks;
}

void load_text_attention(WeightLoader& load, const TextConfig& c, const TextLayer& l, const std::string& p,
                         TextLayerWeights& w) {
  const TextNames& names = *c.names;
  const int64_t q = l.q_size(), kv = l.kv_size();
  const bool joined = names.qkv.size() == 1;
  const bool shared = kv < q;
  RowForms forms = load.text_form(q, MatrixRole::kUsual);
  for (const MatrixRole role : {MatrixRole::kUsual, MatrixRole::kSensitive})
    forms.push_back(load.text_form(kv, shared ? MatrixRole::kShared : role)[0]);
  load_text_linear(load, c,
                   {.modules = after(p, names.qkv),
                    .n_out = joined ? std::vector{q + 2 * kv} : std::vector{q, kv, kv},
                    .n_in = c.hidden_size,
                    .bias = c.qkv_bias,
                    .forms = forms,
                    .pairs = c.pair_rope ? std::vector<int64_t>{l.head_dim, l.head_dim, 0} : std::vector<int64_t>{}},
                   w.qkv, w.qkv_bias);
  if (c.qk_norm) {
    w.q_norm = load.vector(p + std::string(names.q_norm) + "weight", l.head_dim);
    w.k_norm = load.vector(p + std::string(names.k_norm) + "weight", l.head_dim);
  }
  if (c.attention_sinks) w.attn_sinks = load_sinks(load, p + std::string(names.sinks), l.n_heads);
  load_text_linear(load, c,
                   {.modules = after(p, {names.o}),
                    .n_out = {c.hidden_size},
                    .n_in = q,
                    .bias = c.o_bias,
                    .forms = load.text_form(c.hidden_size, MatrixRole::kUsual)},
                   w.o, w.o_bias);
}

void load_text_mlp(WeightLoader& load, const TextConfig& c, const TextLayer& l, const std::string& p,
                   TextLayerWeights& w) {
  const TextNames& names = *c.names;
  const int64_t f = l.ffn_size;
  TextLinear up = {.modules = after(p, names.up),
                   .n_out = std::vector<int64_t>(names.up.size(), f),
                   .n_in = c.hidden_size,
                   .bias = c.mlp_bias,
                   .forms = load.text_form(f * std::ssize(names.up), MatrixRole::kUsual)};
  const std::string joined = p + "mlp.gate_up_proj.";
  if (c.gated_mlp && load.has(joined + "weight")) up.modules = {joined}, up.n_out = {2 * f};
  load_text_linear(load, c, up, w.gate_up, w.gate_up_bias);
  load_text_linear(load, c,
                   {.modules = after(p, {names.down}),
                    .n_out = {c.hidden_size},
                    .n_in = f,
                    .bias = c.mlp_bias,
                    .forms = load.text_form(c.hidden_size, MatrixRole::kSensitive)},
                   w.down, w.down_bias);
}

TextLayerWeights load_text_layer(WeightLoader& load, const TextConfig& c, const TextLayer& l, const std::string& p) {
  const TextNames& names = *c.names;
  TextLayerWeights w;
  load_text_norm(load, c, p + std::string(names.norm1), w.attn_norm, w.attn_norm_b);
  load_text_attention(load, c, l, p, w);
  load_text_norm(load, c, p + std::string(names.norm2), w.mlp_norm, w.mlp_norm_b);
  if (c.post_norms) {
    w.post_attn_norm = load.vector(p + std::string(names.post_attn_norm) + "weight", c.hidden_size);
    w.post_mlp_norm = load.vector(p + std::string(names.post_mlp_norm) + "weight", c.hidden_size);
  }
  if (l.n_experts > 0) {
    load_experts(load, c, l, p + std::string(names.experts), w);
  } else {
    load_text_mlp(load, c, l, p, w);
  }
  return w;
}

// tie_word_embeddings is trusted only if the checkpoint agrees, as in transformers: an output matrix with other values
// is used, and a missing one is the embedding table.
void load_output(WeightLoader& load, const ModelConfig& config, const std::string& embed, TextWeights& w) {
  const TextConfig& c = config.text;
  std::string name;
  for (const std::string_view p : config.family->prefixes.lm_head) {
    const std::string here = std::string(p) + std::string(c.names->lm_head) + "weight";
    if (name.empty() && load.has(here)) name = here;
  }
  if (name.empty() && !c.tied_embeddings) {
    throw Error(ErrorCode::kNotFound, load.where() + ": no " + std::string(c.names->lm_head) +
                                          "weight, and config.json does not say tie_word_embeddings");
  }
  const RowForms form = load.text_form(c.vocab_size, MatrixRole::kTokens);
  // A table that is only looked up stays in the file, unless it is to take less memory than there, or is codes there.
  const auto load_table = [&] {
    return form[0].form || load.coded(embed) ? load.matrix(embed, c.vocab_size, c.hidden_size, form)
                                             : load.table(embed, c.vocab_size, c.hidden_size);
  };
  if (c.unit_head && !name.empty()) {
    w.embed = load_table();
    w.lm_head = load.unit_rows(name, c.vocab_size, c.hidden_size, form);
    return;
  }
  w.tied = c.tied_embeddings && (name.empty() || load.equal(embed, name, {c.vocab_size, c.hidden_size}));
  w.embed = w.tied ? load.matrix(embed, c.vocab_size, c.hidden_size, form) : load_table();
  if (!w.tied) w.lm_head = load.matrix(name, c.vocab_size, c.hidden_size, form);
}

TextWeights load_text(WeightLoader& load, const ModelConfig& config) {
  const TextConfig& c = config.text;
  const TextNames& names = *c.names;
  TextWeights w;
  const WeightPrefixes& prefixes = config.family->prefixes;
  const std::string embed = std::string(names.embed) + "weight", norm = std::string(names.final_norm) + "weight";
  const auto find = [&](const std::vector<std::string_view>& in, const std::string& name) -> std::string {
    for (const std::string_view prefix : in) {
      if (load.has(std::string(prefix) + name)) return std::string(prefix) + name;
    }
    return "";
  };
  // safetensors' save_model keeps one of the names of tied matrices, which may be the output's.
  const bool one_name = c.tied_embeddings && find(prefixes.text, embed).empty() && !find(prefixes.text, norm).empty();
  const std::string head = one_name ? find(prefixes.lm_head, std::string(names.lm_head) + "weight") : "";
  const std::string p = load.prefix(prefixes.text, head.empty() ? embed : norm);
  load_output(load, config, head.empty() ? p + embed : head, w);
  if (c.learned_positions) {
    w.positions = load.table(p + std::string(names.positions) + "weight", c.max_positions, c.hidden_size);
  }
  for (int64_t i = 0; i < c.n_layers; ++i) {
    w.layers.push_back(load_text_layer(load, c, c.layer(i), p + std::string(names.layers) + std::to_string(i) + "."));
  }
  load_text_norm(load, c, p + std::string(names.final_norm), w.final_norm, w.final_norm_b);
  return w;
}

// Vectors of a norm; an RMS norm has no bias.
void load_norm(WeightLoader& load, const VisionConfig& c, const std::string& name, Tensor& w, Tensor& b) {
  w = load.vector(name + "weight", c.hidden_size);
  if (!c.traits.rms_norm) b = load.vector(name + "bias", c.hidden_size);
}

// One matrix [n_out, n_in] of a layer, and its bias if it has one, from modules that have equal shares of the rows.
void load_linear(WeightLoader& load, const VisionConfig& c, const std::string& p,
                 const std::vector<std::string_view>& modules, std::array<int64_t, 2> shape, Weight& w, Tensor& bias) {
  std::vector<std::string> weights, biases;
  for (const std::string_view module : modules) {
    weights.push_back(p + std::string(module) + "weight");
    biases.push_back(p + std::string(module) + "bias");
  }
  const std::vector<int64_t> shares(modules.size(), shape[0] / std::ssize(modules));
  w = load.matrix(weights, shares, shape[1], load.vision_form(shape[0]));
  if (c.traits.layer_bias) bias = load.vector(biases, shares);
}

VisionLayerWeights load_vision_layer(WeightLoader& load, const VisionConfig& c, const std::string& p) {
  const VisionNames& names = *c.names;
  const int64_t h = c.hidden_size, f = c.ffn_size;
  VisionLayerWeights w;
  load_norm(load, c, p + std::string(names.norm1), w.norm1_w, w.norm1_b);
  load_linear(load, c, p, names.qkv, {3 * h, h}, w.qkv, w.qkv_bias);
  if (c.traits.qk_norm) {
    w.q_norm = load.vector(p + std::string(names.q_norm) + "weight", c.head_dim());
    w.k_norm = load.vector(p + std::string(names.k_norm) + "weight", c.head_dim());
  }
  load_linear(load, c, p, {names.out}, {h, h}, w.out, w.out_bias);
  load_norm(load, c, p + std::string(names.norm2), w.norm2_w, w.norm2_b);
  load_linear(load, c, p, names.fc1, {c.traits.gated_mlp ? 2 * f : f, h}, w.fc1, w.fc1_bias);
  load_linear(load, c, p, {names.fc2}, {h, f}, w.fc2, w.fc2_bias);
  return w;
}

VisionWeights load_vision(WeightLoader& load, const ModelConfig& config) {
  const VisionConfig& c = *config.vision;
  const VisionNames& names = *c.names;
  const int64_t h = c.hidden_size;
  const std::string p = load.prefix(config.family->prefixes.vision, std::string(names.patch) + "weight");
  VisionWeights w;
  w.patch = load.patch_matrix(p + std::string(names.patch) + "weight", c);
  if (c.traits.positions != VisionPositions::kNone) {
    std::vector<int64_t> stored = {c.n_positions(), h};
    if (names.one_batch_of_positions) stored.insert(stored.begin(), 1);
    w.positions = load.rows(p + std::string(names.positions), c.n_positions(), h, stored);
  }
  if (c.traits.class_token) w.class_embedding = load.rows(p + std::string(names.class_embedding), 1, h, {h});
  if (c.traits.patch_bias) w.patch_bias = load.vector(p + std::string(names.patch) + "bias", h);
  if (c.traits.pre_norm) load_norm(load, c, p + std::string(names.pre_norm), w.pre_norm_w, w.pre_norm_b);
  if (c.traits.post_norm) load_norm(load, c, p + std::string(names.post_norm), w.post_norm_w, w.post_norm_b);
  for (int64_t i = 0; i < c.n_used_layers(); ++i) {
    w.layers.push_back(load_vision_layer(load, c, p + std::string(names.layers) + std::to_string(i) + "."));
  }
  return w;
}

void check_arithmetic(const Backend& backend, const WeightForms& forms) {
  const DType compute = backend.compute_dtype();
  if (const DType asked = forms.dense.value_or(compute); asked != compute) {
    throw Error(ErrorCode::kInput, "--weights " + std::string(dtype_name(asked)) + " with arithmetic in " +
                                       std::string(dtype_name(compute)) + ": expected --weights dense, or --dtype " +
                                       std::string(dtype_name(asked)));
  }
  if (backend.activation_bits() == ActivationBits::k8 && compute == DType::kF32) {
    throw Error(ErrorCode::kInput,
                "--activations int8 with arithmetic in f32, which is exact: leave out one of the two");
  }
}

void load_all(const ModelConfig& config, WeightLoader& load, Weights& weights) {
  weights.text = load_text(load, config);
  if (!config.vision) return;
  weights.vision = load_vision(load, config);
  weights.projector = config.projector.kind->load(load, config);
  for (int64_t i = 0; i < std::ssize(config.vision->tap_layers); ++i) {
    weights.taps.push_back(config.projector.kind->load_tap(load, config, i));
  }
}

struct Listed {
  Weights weights;
  WeightHash hash{};
};
Listed list_all(const ModelConfig& config, TensorSource& source, Backend& backend, const WeightForms& forms,
                WeightLoader::Mode mode) {
  const LoadOptions options{.progress = {}, .forms = forms};
  Listed listed;
  PackedWeights packed(options, backend, source.where());  // off
  WeightLoader load(source, backend, options, packed, listed.weights, mode);
  load_all(config, load, listed.weights);
  listed.hash = load.hash();
  return listed;
}

void check_activations(const Backend& backend, bool any_quantised) {
  if (backend.activation_bits() != ActivationBits::k8 || any_quantised) return;
  throw Error(ErrorCode::kInput,
              "--activations int8 without quantised weights has no effect: expected --weights int8, int4 or int4+ "
              "beside it");
}

bool any_quantised(const Weights& weights) { return std::ranges::any_of(weights.matrices, &LoadedMatrix::quantised); }

// Whether any matrix will be; which codes of a checkpoint are kept is known once their scales were read.
bool will_quantise(const ModelConfig& config, TensorSource& source, Backend& backend, const WeightForms& forms) {
  if (quantises(forms.text) || (config.vision && quantises(forms.vision))) return true;
  return !source.format().empty() &&
         any_quantised(list_all(config, source, backend, forms, WeightLoader::Mode::kList).weights);
}

Weights load_once(const ModelConfig& config, TensorSource& source, Backend& backend, const LoadOptions& options) {
  Weights weights;
  weights.stored.format = source.format();
  PackedWeights packed(options, backend, source.where());
  WeightLoader load(source, backend, options, packed, weights);
  load_all(config, load, weights);
  weights.hash = packed.hit() ? packed.hash() : load.hash();
  weights.calibration = options.calibration.digest;
  weights.packed_file = packed.finish(weights.hash);
  weights.shared = packed.shared();
  return weights;
}

}  // namespace

Weights load_weights(const ModelConfig& config, std::unique_ptr<TensorSource> source, Backend& backend,
                     const LoadOptions& options) {
  check_arithmetic(backend, options.forms);
  if (backend.activation_bits() == ActivationBits::k8) {
    check_activations(backend, will_quantise(config, *source, backend, options.forms));
  }
  Weights weights = load_once(config, *source, backend, options);
  if (options.packed.share && weights.packed_file == PackedUse::kBuilt) {
    weights = {};  // memory of this process, in place of which comes the file's
    weights = load_once(config, *source, backend, options);
    if (weights.packed_file == PackedUse::kHit) weights.packed_file = PackedUse::kBuilt;
  }
  weights.source = std::move(source);
  return weights;
}

WeightList list_weights(const ModelConfig& config, std::unique_ptr<TensorSource> source, Backend& backend,
                        const WeightForms& forms, bool hashed) {
  check_arithmetic(backend, forms);
  Listed listed =
      list_all(config, *source, backend, forms, hashed ? WeightLoader::Mode::kHash : WeightLoader::Mode::kList);
  check_activations(backend, any_quantised(listed.weights));
  return {std::move(listed.weights.matrices), listed.weights.n_parameters, listed.weights.bytes, listed.hash};
}

}  // namespace vlcache
