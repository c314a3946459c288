#include "model/weights.h"

#include "base/error.h"
#include "model/family.h"
#include "model/projector.h"
#include "model/weight_loader.h"

namespace vlcache {
namespace {

TextLayerWeights load_text_layer(WeightLoader& load, const TextConfig& c, const TextLayer& l, const std::string& p) {
  const std::string attn = p + "self_attn.", mlp = p + "mlp.";
  TextLayerWeights w;
  w.attn_norm = load.vector(p + "input_layernorm.weight", c.hidden_size);
  const std::vector<int64_t> qkv = {l.q_size(), l.kv_size(), l.kv_size()};
  w.qkv = load.matrix({attn + "q_proj.weight", attn + "k_proj.weight", attn + "v_proj.weight"}, qkv, c.hidden_size);
  if (c.qkv_bias) w.qkv_bias = load.vector({attn + "q_proj.bias", attn + "k_proj.bias", attn + "v_proj.bias"}, qkv);
  if (c.qk_norm) {
    w.q_norm = load.vector(attn + "q_norm.weight", l.head_dim);
    w.k_norm = load.vector(attn + "k_norm.weight", l.head_dim);
  }
  w.o = load.matrix(attn + "o_proj.weight", c.hidden_size, l.q_size());
  if (c.o_bias) w.o_bias = load.vector(attn + "o_proj.bias", c.hidden_size);
  w.mlp_norm = load.vector(p + "post_attention_layernorm.weight", c.hidden_size);
  w.gate_up = load.matrix({mlp + "gate_proj.weight", mlp + "up_proj.weight"}, {l.ffn_size, l.ffn_size}, c.hidden_size);
  w.down = load.matrix(mlp + "down_proj.weight", c.hidden_size, l.ffn_size);
  if (c.mlp_bias) {
    w.gate_up_bias = load.vector({mlp + "gate_proj.bias", mlp + "up_proj.bias"}, {l.ffn_size, l.ffn_size});
    w.down_bias = load.vector(mlp + "down_proj.bias", c.hidden_size);
  }
  return w;
}

// tie_word_embeddings is trusted only if the checkpoint agrees, as in transformers: an output matrix with other values
// is used, and a missing one is the embedding table.
void load_output(WeightLoader& load, const ModelConfig& config, const std::string& embed, TextWeights& w) {
  const TextConfig& c = config.text;
  std::string name;
  for (const std::string_view p : config.family->prefixes.lm_head) {
    if (name.empty() && load.has(std::string(p) + "lm_head.weight")) name = std::string(p) + "lm_head.weight";
  }
  if (name.empty() && !c.tied_embeddings) {
    throw Error(ErrorCode::kNotFound,
                load.where() + ": no lm_head.weight, and config.json does not say tie_word_embeddings");
  }
  w.tied = c.tied_embeddings && (name.empty() || load.equal(embed, name, {c.vocab_size, c.hidden_size}));
  w.embed = w.tied ? load.matrix(embed, c.vocab_size, c.hidden_size) : load.table(embed, c.vocab_size, c.hidden_size);
  if (!w.tied) w.lm_head = load.matrix(name, c.vocab_size, c.hidden_size);
}

TextWeights load_text(WeightLoader& load, const ModelConfig& config) {
  TextWeights w;
  const std::string p = load.prefix(config.family->prefixes.text, "embed_tokens.weight");
  load_output(load, config, p + "embed_tokens.weight", w);
  for (int64_t i = 0; i < config.text.n_layers; ++i) {
    w.layers.push_back(
        load_text_layer(load, config.text, config.text.layer(i), p + "layers." + std::to_string(i) + "."));
  }
  w.final_norm = load.vector(p + "norm.weight", config.text.hidden_size);
  return w;
}

VisionLayerWeights load_vision_layer(WeightLoader& load, const VisionConfig& c, const std::string& p) {
  const std::string attn = p + "self_attn.", mlp = p + "mlp.";
  const int64_t h = c.hidden_size, f = c.ffn_size;
  VisionLayerWeights w;
  w.norm1_w = load.vector(p + "layer_norm1.weight", h);
  w.norm1_b = load.vector(p + "layer_norm1.bias", h);
  w.qkv = load.matrix({attn + "q_proj.weight", attn + "k_proj.weight", attn + "v_proj.weight"}, {h, h, h}, h);
  w.qkv_bias = load.vector({attn + "q_proj.bias", attn + "k_proj.bias", attn + "v_proj.bias"}, {h, h, h});
  w.out = load.matrix(attn + "out_proj.weight", h, h);
  w.out_bias = load.vector(attn + "out_proj.bias", h);
  w.norm2_w = load.vector(p + "layer_norm2.weight", h);
  w.norm2_b = load.vector(p + "layer_norm2.bias", h);
  w.fc1 = load.matrix(mlp + "fc1.weight", f, h);
  w.fc1_bias = load.vector(mlp + "fc1.bias", f);
  w.fc2 = load.matrix(mlp + "fc2.weight", h, f);
  w.fc2_bias = load.vector(mlp + "fc2.bias", h);
  return w;
}

VisionWeights load_vision(WeightLoader& load, const ModelConfig& config) {
  const VisionConfig& c = *config.vision;
  const int64_t h = c.hidden_size;
  const std::string p = load.prefix(config.family->prefixes.vision, "embeddings.patch_embedding.weight");
  VisionWeights w;
  w.patch = load.patch_matrix(p + "embeddings.patch_embedding.weight", c);
  w.positions = load.rows(p + "embeddings.position_embedding.weight", c.n_positions(), h, {c.n_positions(), h});
  if (c.traits.class_token) w.class_embedding = load.rows(p + "embeddings.class_embedding", 1, h, {h});
  if (c.traits.patch_bias) w.patch_bias = load.vector(p + "embeddings.patch_embedding.bias", h);
  if (c.traits.pre_norm) {
    w.pre_norm_w = load.vector(p + "pre_layrnorm.weight", h);  // as CLIP's checkpoints spell it
    w.pre_norm_b = load.vector(p + "pre_layrnorm.bias", h);
  }
  if (c.traits.post_norm) {
    w.post_norm_w = load.vector(p + "post_layernorm.weight", h);
    w.post_norm_b = load.vector(p + "post_layernorm.bias", h);
  }
  for (int64_t i = 0; i < c.n_used_layers(); ++i) {
    w.layers.push_back(load_vision_layer(load, c, p + "encoder.layers." + std::to_string(i) + "."));
  }
  return w;
}

}  // namespace

Weights load_weights(const ModelConfig& config, std::unique_ptr<TensorSource> source, Backend& backend,
                     const LoadProgress& progress) {
  Weights weights;
  WeightLoader load(*source, backend, progress, weights);
  weights.text = load_text(load, config);
  if (config.vision) {
    weights.vision = load_vision(load, config);
    weights.projector = config.projector.kind->load(load, config);
  }
  weights.hash = load.hash();
  weights.source = std::move(source);
  return weights;
}

}  // namespace vlcache
