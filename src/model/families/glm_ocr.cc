// GLM-OCR: norms on q and k in the encoder, a convolution joins patches, a gated MLP projects them.
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "model/families/families.h"
#include "model/projector.h"

namespace vlcache {
namespace {

const VisionNames kGlmNames = {.patch = "patch_embed.proj.",
                               .layers = "blocks.",
                               .norm1 = "norm1.",
                               .norm2 = "norm2.",
                               .qkv = {"attn.qkv."},
                               .q_norm = "attn.q_norm.",
                               .k_norm = "attn.k_norm.",
                               .out = "attn.proj.",
                               .fc1 = {"mlp.gate_proj.", "mlp.up_proj."},
                               .fc2 = "mlp.down_proj."};

// Defaults of GlmOcrVisionConfig (transformers 5.23).
const VisionFamily kGlmVision = {.name = "GLM-ViT",
                                 .model_type = "glm_ocr_vision",
                                 .traits = {.patch_bias = true,
                                            .post_norm = true,
                                            .rms_norm = true,
                                            .gated_mlp = true,
                                            .qk_norm = true,
                                            .rope = true,
                                            .any_grid = true,
                                            .positions = VisionPositions::kNone},
                                 .names = &kGlmNames,
                                 .n_frames = 2,
                                 .hidden_size = 1024,
                                 .ffn_size = 4096,
                                 .n_layers = 24,
                                 .n_heads = 16,
                                 .patch_size = 14,
                                 .eps = 1e-5,
                                 .activation = "silu"};

constexpr GridTokens kGlmTokens = {.image = 59280,
                                   .video = 59281,
                                   .start_key = "image_start_token_id",
                                   .start = 59256,
                                   .end_key = "image_end_token_id",
                                   .end = 59257};

constexpr float kNormEps = 1e-5f;  // torch's default

int64_t joined_rows(const ProjectorConfig& config, int64_t n_features) {
  const int64_t area = config.scale * config.scale;
  CHECK(n_features % area == 0);
  return n_features / area;
}

// The convolution's columns in the order of joined rows: patch after patch.
ProjectorWeights load_projector(WeightLoader& loader, const ModelConfig& config) {
  const int64_t hidden = config.text.hidden_size, from = config.vision->hidden_size, k = config.projector.scale,
                wide = hidden * config.vision->n_channels;
  const std::string p = loader.prefix(config.family->prefixes.projector, "downsample.weight"), merger = p + "merger.";
  const int64_t stored[] = {hidden, from, k, k};
  ProjectorWeights w;
  w.linear1 = loader.exchanged_matrix(p + "downsample.weight", stored, {hidden, from, k * k, 1});
  w.bias1 = loader.vector(p + "downsample.bias", hidden);
  w.linear2 = loader.matrix(merger + "proj.weight", hidden, hidden);
  w.norm_w = loader.vector(merger + "post_projection_norm.weight", hidden);
  w.norm_b = loader.vector(merger + "post_projection_norm.bias", hidden);
  w.gate_up = loader.matrix({merger + "gate_proj.weight", merger + "up_proj.weight"}, {wide, wide}, hidden);
  w.down = loader.matrix(merger + "down_proj.weight", hidden, wide);
  return w;
}

void project(const ProjectorConfig& config, const ProjectorWeights& w, Backend& backend, const Tensor& features,
             const Tensor& out) {
  const int64_t joined = w.linear1.n_in, hidden = w.linear1.n_out, wide = w.down.n_in;
  CHECK(features.dense());
  const Tensor rows(features.data, features.dtype, {out.rows(), joined});
  const auto room = [&](Buffer& memory, int64_t width) {
    memory = Buffer(out.rows() * width * dtype_bytes(out.dtype));
    return Tensor(memory.data(), out.dtype, {out.rows(), width});
  };
  Buffer memory[4];
  const Tensor a = room(memory[0], hidden), b = room(memory[1], hidden), gate_up = room(memory[2], 2 * wide),
               gated = room(memory[3], wide);
  backend.matmul(rows, w.linear1, a, {.bias = &w.bias1});
  backend.matmul(a, w.linear2, b);
  backend.layer_norm(b, w.norm_w, w.norm_b, config.norm_eps, b);
  backend.activate(b, Activation::kGelu, b);
  backend.matmul(b, w.gate_up, gate_up);
  backend.gated_act(gate_up, config.activation, gated);
  backend.matmul(gated, w.down, out);
}

const Projector kGlmProjector = {.by_rows = true, .n_rows = joined_rows, .load = load_projector, .project = project};

void read_glm_ocr(const JsonObject& root, ModelConfig& out) {
  read_grid_text(root, kGlmTokens, out);
  const JsonObject config = vision_part(root);
  read_grid_vision(config, kGlmVision, {.kind = &kGlmProjector, .norm_eps = kNormEps}, out);
  out.vision->traits.layer_bias = config.boolean("attention_bias", true);
  out.projector.activation = out.vision->activation;
  check_output_size(config, "out_hidden_size", 1536, out);
}

}  // namespace

const Family kGlmOcr = {.model_type = "glm_ocr",
                        .prefixes = {.text = {"model.language_model."},
                                     .lm_head = {""},
                                     .vision = {"model.visual."},
                                     .projector = {"model.visual."}},
                        .read_config = read_glm_ocr,
                        .image_placeholder = "<|image|>",
                        .token_rows = grid_token_rows,
                        .image_positions = grid_positions};

}  // namespace vlcache
