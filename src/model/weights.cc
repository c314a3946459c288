// Reads a model's tensors by name, checks their shapes, packs them, lets go of the source.
#include "model/weights.h"

#include <cstring>

#include "base/error.h"
#include "model/family.h"

namespace vlcache {
namespace {

class Loader {
 public:
  Loader(TensorSource& source, Backend& backend, const LoadProgress& progress, Weights& out)
      : source_(source), backend_(backend), progress_(progress), out_(out) {}

  // The first prefix under which `probe` exists.
  std::string prefix(const std::vector<std::string_view>& prefixes, const std::string& probe) const {
    std::string tried;
    for (const std::string_view p : prefixes) {
      if (source_.has(std::string(p) + probe)) return std::string(p);
      tried += (tried.empty() ? "" : ", ") + std::string(p) + probe;
    }
    throw Error(ErrorCode::kNotFound, source_.where() + ": none of these tensors is there: " + tried);
  }

  // One packed matrix of several stacked ones, [sum of n_out, n_in].
  Weight matrix(const std::vector<std::string>& names, const std::vector<int64_t>& n_out, int64_t n_in) {
    std::vector<Tensor> parts;
    std::vector<Buffer> copies;
    for (size_t i = 0; i < names.size(); ++i) parts.push_back(aligned(names[i], {n_out[i], n_in}, copies));
    return pack(names, parts);
  }
  Weight matrix(const std::string& name, int64_t n_out, int64_t n_in) {
    return matrix(std::vector{name}, {n_out}, n_in);
  }

  // The kernel of a convolution whose stride is its size, [n_out, C, p, p], as a matrix.
  Weight patch_matrix(const std::string& name, const VisionConfig& v) {
    std::vector<Buffer> copies;
    const Tensor kernel = aligned(name, {v.hidden_size, v.n_channels, v.patch_size, v.patch_size}, copies);
    const std::vector<Tensor> parts = {kernel.view({v.hidden_size, v.n_channels * v.patch_size * v.patch_size})};
    return pack({name}, parts);
  }

  // Several vectors end to end, in the compute dtype.
  Tensor vector(const std::vector<std::string>& names, const std::vector<int64_t>& sizes) {
    int64_t n = 0;
    for (const int64_t size : sizes) n += size;
    const Tensor out = own({n});
    int64_t at = 0;
    for (size_t i = 0; i < names.size(); ++i) {
      convert(names[i], {sizes[i]}, out.slice_rows(at, at + sizes[i]));
      at += sizes[i];
    }
    return out;
  }
  Tensor vector(const std::string& name, int64_t n) { return vector(std::vector{name}, {n}); }

  // A small table of rows in the compute dtype; `stored` is its shape in the checkpoint.
  Tensor rows(const std::string& name, int64_t n, int64_t width, std::vector<int64_t> stored) {
    const Tensor out = own({n, width});
    convert(name, stored, out);
    return out;
  }

  // An embedding table that is only looked up: it stays where it is, in its own dtype.
  Weight table(const std::string& name, int64_t n, int64_t width) {
    std::vector<Buffer> copies;
    Weight w;
    w.n_out = n;
    w.n_in = width;
    w.rows = aligned(name, {n, width}, copies);
    w.dtype = w.rows.dtype;
    if (!copies.empty()) {
      w.owned = std::move(copies[0]);
      source_.release(name);
    }
    count(w.rows.numel(), w.rows.bytes(), w.rows.bytes());
    return w;
  }

  bool equal(const std::string& a, const std::string& b, std::initializer_list<int64_t> shape) {
    const Tensor x = source_.get(a, shape), y = source_.get(b, shape);
    const bool same = x.dtype == y.dtype && std::memcmp(x.data, y.data, static_cast<size_t>(x.bytes())) == 0;
    source_.release(b);
    return same;
  }
  bool has(const std::string& name) const { return source_.has(name); }
  std::string where() const { return source_.where(); }

 private:
  // A tensor of float type, at an address its type may have. Files may put tensors anywhere: copies what is misaligned.
  Tensor aligned(const std::string& name, std::span<const int64_t> shape, std::vector<Buffer>& copies) {
    Tensor t = source_.get(name, shape);
    if (t.dtype != DType::kF32 && t.dtype != DType::kBF16 && t.dtype != DType::kF16) {
      throw Error(ErrorCode::kUnsupported,
                  source_.where() + ": tensor \"" + name + "\": expected f32, bf16 or f16, found " + t.describe());
    }
    if (reinterpret_cast<uintptr_t>(t.data) % static_cast<uintptr_t>(dtype_bytes(t.dtype)) != 0) {
      Buffer& copy = copies.emplace_back(t.bytes());
      std::memcpy(copy.data(), t.data, static_cast<size_t>(t.bytes()));
      t.data = copy.data();
    }
    return t;
  }
  Tensor aligned(const std::string& name, std::initializer_list<int64_t> shape, std::vector<Buffer>& copies) {
    return aligned(name, std::span(shape.begin(), shape.size()), copies);
  }

  Weight pack(const std::vector<std::string>& names, const std::vector<Tensor>& parts) {
    Weight w = backend_.pack(parts);
    int64_t n = 0, bytes = 0;
    for (const Tensor& part : parts) {
      n += part.numel();
      bytes += part.bytes();
    }
    for (const std::string& name : names) source_.release(name);
    count(n, bytes, w.bytes());
    return w;
  }

  Tensor own(std::initializer_list<int64_t> shape) {
    Tensor t(nullptr, backend_.compute_dtype(), shape);
    t.data = out_.vectors.emplace_back(t.bytes()).data();
    return t;
  }

  void convert(const std::string& name, std::span<const int64_t> shape, const Tensor& to) {
    std::vector<Buffer> copies;
    const Tensor from = aligned(name, shape, copies);
    const int64_t width = to.row_size();
    Tensor flat(from.data, from.dtype, {to.rows(), width});
    backend_.convert(flat, to.view({to.rows(), width}));
    source_.release(name);
    count(from.numel(), from.bytes(), to.bytes());
  }
  void convert(const std::string& name, std::initializer_list<int64_t> shape, const Tensor& to) {
    convert(name, std::span(shape.begin(), shape.size()), to);
  }

  void count(int64_t n_parameters, int64_t source_bytes, int64_t kept_bytes) {
    out_.n_parameters += n_parameters;
    out_.bytes += kept_bytes;
    done_bytes_ += source_bytes;
    if (progress_) progress_(done_bytes_, source_.total_bytes());
  }

  TensorSource& source_;
  Backend& backend_;
  const LoadProgress& progress_;
  Weights& out_;
  int64_t done_bytes_ = 0;
};

TextLayerWeights load_text_layer(Loader& load, const TextConfig& c, const std::string& p) {
  const std::string attn = p + "self_attn.", mlp = p + "mlp.";
  TextLayerWeights w;
  w.attn_norm = load.vector(p + "input_layernorm.weight", c.hidden_size);
  const std::vector<int64_t> qkv = {c.q_size(), c.kv_size(), c.kv_size()};
  w.qkv = load.matrix({attn + "q_proj.weight", attn + "k_proj.weight", attn + "v_proj.weight"}, qkv, c.hidden_size);
  if (c.qkv_bias) w.qkv_bias = load.vector({attn + "q_proj.bias", attn + "k_proj.bias", attn + "v_proj.bias"}, qkv);
  if (c.qk_norm) {
    w.q_norm = load.vector(attn + "q_norm.weight", c.head_dim);
    w.k_norm = load.vector(attn + "k_norm.weight", c.head_dim);
  }
  w.o = load.matrix(attn + "o_proj.weight", c.hidden_size, c.q_size());
  if (c.o_bias) w.o_bias = load.vector(attn + "o_proj.bias", c.hidden_size);
  w.mlp_norm = load.vector(p + "post_attention_layernorm.weight", c.hidden_size);
  w.gate_up = load.matrix({mlp + "gate_proj.weight", mlp + "up_proj.weight"}, {c.ffn_size, c.ffn_size}, c.hidden_size);
  w.down = load.matrix(mlp + "down_proj.weight", c.hidden_size, c.ffn_size);
  if (c.mlp_bias) {
    w.gate_up_bias = load.vector({mlp + "gate_proj.bias", mlp + "up_proj.bias"}, {c.ffn_size, c.ffn_size});
    w.down_bias = load.vector(mlp + "down_proj.bias", c.hidden_size);
  }
  return w;
}

// tie_word_embeddings is taken at its word only where the checkpoint agrees, as transformers does: an output matrix of
// other values is used, and one that is missing is the embedding table.
void load_output(Loader& load, const ModelConfig& config, const std::string& embed, TextWeights& w) {
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

TextWeights load_text(Loader& load, const ModelConfig& config) {
  TextWeights w;
  const std::string p = load.prefix(config.family->prefixes.text, "embed_tokens.weight");
  load_output(load, config, p + "embed_tokens.weight", w);
  for (int64_t i = 0; i < config.text.n_layers; ++i) {
    w.layers.push_back(load_text_layer(load, config.text, p + "layers." + std::to_string(i) + "."));
  }
  w.final_norm = load.vector(p + "norm.weight", config.text.hidden_size);
  return w;
}

VisionLayerWeights load_vision_layer(Loader& load, const VisionConfig& c, const std::string& p) {
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

VisionWeights load_vision(Loader& load, const ModelConfig& config) {
  const VisionConfig& c = *config.vision;
  const int64_t h = c.hidden_size;
  const std::string p = load.prefix(config.family->prefixes.vision, "embeddings.patch_embedding.weight");
  VisionWeights w;
  w.patch = load.patch_matrix(p + "embeddings.patch_embedding.weight", c);
  w.positions = load.rows(p + "embeddings.position_embedding.weight", c.n_positions(), h, {c.n_positions(), h});
  if (c.kind == VisionKind::kClip) {
    w.class_embedding = load.rows(p + "embeddings.class_embedding", 1, h, {h});
    w.pre_norm_w = load.vector(p + "pre_layrnorm.weight", h);
    w.pre_norm_b = load.vector(p + "pre_layrnorm.bias", h);
  } else {
    w.patch_bias = load.vector(p + "embeddings.patch_embedding.bias", h);
    w.post_norm_w = load.vector(p + "post_layernorm.weight", h);
    w.post_norm_b = load.vector(p + "post_layernorm.bias", h);
  }
  for (int64_t i = 0; i < c.n_used_layers(); ++i) {
    w.layers.push_back(load_vision_layer(load, c, p + "encoder.layers." + std::to_string(i) + "."));
  }
  return w;
}

ProjectorWeights load_projector(Loader& load, const ModelConfig& config) {
  const ProjectorConfig& c = config.projector;
  const int64_t hidden = config.text.hidden_size, features = config.vision->feature_size();
  const auto& prefixes = config.family->prefixes.projector;
  ProjectorWeights w;
  if (c.kind == ProjectorKind::kPixelShuffle) {
    const std::string name = "modality_projection.proj.weight";
    w.linear1 = load.matrix(load.prefix(prefixes, name) + name, hidden, features * c.scale * c.scale);
    return w;
  }
  const std::string p = load.prefix(prefixes, "linear_1.weight");
  w.linear1 = load.matrix(p + "linear_1.weight", hidden, features);
  w.linear2 = load.matrix(p + "linear_2.weight", hidden, hidden);
  if (c.bias) {
    w.bias1 = load.vector(p + "linear_1.bias", hidden);
    w.bias2 = load.vector(p + "linear_2.bias", hidden);
  }
  if (c.newline)
    w.newline = load.rows(load.prefix({"", "model."}, "image_newline") + "image_newline", 1, hidden, {hidden});
  return w;
}

}  // namespace

Weights load_weights(const ModelConfig& config, std::unique_ptr<TensorSource> source, Backend& backend,
                     const LoadProgress& progress) {
  Weights weights;
  Loader load(*source, backend, progress, weights);
  weights.text = load_text(load, config);
  if (config.vision) {
    weights.vision = load_vision(load, config);
    weights.projector = load_projector(load, config);
  }
  weights.source = std::move(source);
  return weights;
}

}  // namespace vlcache
