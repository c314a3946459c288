// nanoVLM: SigLIP, a pixel shuffle and a small Llama, under names of their own. Three generations: one tile whose rows
// stand before the text; one tile with a token; tiles that the prompt names. Public code:
// github.com/huggingface/nanoVLM (4e0c096; 351ed4b and ab060c5 for the first two).
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"
#include "model/families/families.h"
#include "model/projector.h"

namespace vlcache {
namespace {

constexpr std::string_view kImageToken = "<|image|>";

const TextNames kNanoTextNames = {.embed = "token_embedding.",
                                  .layers = "blocks.",
                                  .norm1 = "norm1.",
                                  .norm2 = "norm2.",
                                  .qkv = {"attn.q_proj.", "attn.k_proj.", "attn.v_proj."},
                                  .o = "attn.out_proj.",
                                  .lm_head = "head."};

void read_nano_text(const JsonObject& config, TextConfig& text) {
  const double theta = config.number("lm_re_base", 100000.0);
  if (!(theta > 0.0 && theta < 1e30)) config.fail("lm_re_base", "a number above 0");
  text.ropes[0].theta = theta;
  if (config.number("lm_attn_scaling", 1.0) != 1.0) config.fail("lm_attn_scaling", "1");
}

// Defaults of VLMConfig.
constexpr TextFamily kNanoText = {.model_type = "nanovlm",
                                  .keys = {.vocab_size = "lm_vocab_size",
                                           .hidden_size = "lm_hidden_dim",
                                           .n_layers = "lm_n_blocks",
                                           .n_heads = "lm_n_heads",
                                           .n_kv_heads = "lm_n_kv_heads",
                                           .ffn_size = "lm_inter_dim",
                                           .max_positions = "lm_max_position_embeddings",
                                           .eps = "lm_rms_eps",
                                           .tied = "lm_tie_weights"},
                                  .names = &kNanoTextNames,
                                  .vocab_size = 49152,
                                  .ffn_size = 1536,
                                  .max_positions = 8192,
                                  .n_kv_heads = 3,
                                  .hidden_size = 576,
                                  .n_layers = 30,
                                  .n_heads = 9,
                                  .eps = 1e-5,
                                  .tied = true,
                                  .read_switches = read_nano_text};

const VisionNames kNanoVisionNames = {.patch = "patch_embedding.conv.",
                                      .positions = "patch_embedding.position_embedding",
                                      .one_batch_of_positions = true,
                                      .post_norm = "layer_norm.",
                                      .layers = "blocks.",
                                      .norm1 = "ln1.",
                                      .norm2 = "ln2.",
                                      .qkv = {"attn.qkv_proj."},
                                      .out = "attn.out_proj."};

const VisionFamily kNanoVision = {.name = "SigLIP",
                                  .traits = {.patch_bias = true, .post_norm = true},
                                  .names = &kNanoVisionNames,
                                  .hidden_size = 768,
                                  .ffn_size = 3072,
                                  .n_layers = 12,
                                  .n_heads = 12,
                                  .image_size = 224,
                                  .patch_size = 16,
                                  .eps = 1e-6,
                                  .activation = "gelu_pytorch_tanh"};

void read_nano_vision(const JsonObject& root, ModelConfig& out) {
  if (root.boolean("vit_cls_flag", false)) root.fail("vit_cls_flag", "false");
  Json vision = Json::object();
  constexpr std::array<std::pair<const char*, const char*>, 7> kKeys = {{{"vit_hidden_dim", "hidden_size"},
                                                                         {"vit_inter_dim", "intermediate_size"},
                                                                         {"vit_n_blocks", "num_hidden_layers"},
                                                                         {"vit_n_heads", "num_attention_heads"},
                                                                         {"vit_img_size", "image_size"},
                                                                         {"vit_patch_size", "patch_size"},
                                                                         {"vit_ln_eps", "layer_norm_eps"}}};
  for (const auto& [own, usual] : kKeys) {
    if (root.has(own)) vision[usual] = *root.find(own);
  }
  out.vision =
      parse_vision_config(JsonObject(vision, root.where() + ": its vit_… keys, as SigLIP names them"), kNanoVision);
}

// The tokens that stand for images. Added tokens follow the tokenizer's, in their order. The first generation has none:
// its images have the id after the last.
void read_nano_tokens(const JsonObject& root, ModelConfig& out) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kTexts = {
      {{"image_token", kImageToken}, {"global_image_token", "<|global_image|>"}, {"r1c1", "<row_1_col_1>"}}};
  const Json* tokens = root.find("vlm_extra_tokens");
  if (tokens == nullptr) {
    out.image_token_id = static_cast<int32_t>(out.text.vocab_size);
    out.image_token_beyond = true;
    return;
  }
  const int64_t n_plain = root.integer("lm_base_vocab_size");
  if (n_plain < 1 || n_plain >= out.text.vocab_size) {
    root.fail("lm_base_vocab_size", "less than lm_vocab_size (" + std::to_string(out.text.vocab_size) + ")");
  }
  if (!tokens->is_array()) root.fail("vlm_extra_tokens", "tokens");
  int64_t at = n_plain;
  for (const Json& token : *tokens) {
    const JsonObject named(token, root.where() + ": vlm_extra_tokens");
    const std::string name = named.string("name"), content = named.string("content");
    for (const auto& [known, text] : kTexts) {
      if (name == known && content != text) named.fail("content", std::string(text));
    }
    if (name == "global_image_token") out.tile_text = TileText::kRowsAndGlobal;
    if (name == "r1c1" && out.tile_text == TileText::kNone) out.tile_text = TileText::kRows;
    if (name == "image_token") out.image_token_id = static_cast<int32_t>(at);
    ++at;
  }
  if (out.image_token_id < 0) root.fail("vlm_extra_tokens", "an image_token among them");
}

void read_nanovlm(const JsonObject& root, ModelConfig& out) {
  out.text = read_text_config(root, kNanoText);
  read_nano_vision(root, out);
  const int64_t scale = root.integer("mp_pixel_shuffle_factor", 2);
  if (scale < 1 || scale > 64) root.fail("mp_pixel_shuffle_factor", "a number from 1 to 64");
  out.projector = {.kind = &kPixelShuffleProjector, .bias = false, .scale = scale};
  read_nano_tokens(root, out);
  const int64_t side = out.vision->side() / scale;
  for (const std::string_view key : {"mp_image_token_length", "IMAGE_TOKEN_LENGTH"}) {
    if (root.integer(key, side * side) != side * side) {
      root.fail(key, "the " + std::to_string(side * side) + " tokens that a tile of vit_img_size has");
    }
  }
}

std::vector<int32_t> nanovlm_token_rows(const ModelConfig& config, const ImageTiles& image) {
  const int64_t side = config.vision->side() / config.projector.scale;
  const int64_t grid = std::max<int64_t>(1, image.tile_rows * image.tile_cols);
  if (image.tile_rows < 0 || image.tile_cols < 0 || image.n_tiles != grid + (image.overview == 0)) {
    throw Error(ErrorCode::kInput, "an image of " + std::to_string(image.tile_rows) + " x " +
                                       std::to_string(image.tile_cols) + " tiles has " + std::to_string(image.n_tiles));
  }
  std::vector<int32_t> rows(static_cast<size_t>(image.n_tiles * side * side));
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

// get_image_string of data/processors.py.
std::string nanovlm_image_text(const ModelConfig& config, const ImageTiles& image, const ImageNumber& number) {
  const int64_t side = config.vision->side() / config.projector.scale;
  const std::string tile = repeat(kImageToken, side * side);
  if (config.tile_text == TileText::kNone) return tile;
  std::string text;
  if (number.count > 1) text += "<image: " + std::to_string(number.index) + ">";
  if (config.tile_text == TileText::kRowsAndGlobal) {
    text += "<|global_image|>" + tile;
    if (image.tile_rows * image.tile_cols == 1) return text;
  }
  for (int64_t row = 1; row <= image.tile_rows; ++row) {
    for (int64_t col = 1; col <= image.tile_cols; ++col) {
      text += "<row_" + std::to_string(row) + "_col_" + std::to_string(col) + ">" + tile;
    }
  }
  return text;
}

}  // namespace

const Family kNanoVlm = {
    .model_type = "nanovlm",
    .prefixes = {.text = {"decoder."}, .lm_head = {"decoder."}, .vision = {"vision_encoder."}, .projector = {"MP."}},
    .read_config = read_nanovlm,
    .image_placeholder = kImageToken,
    .token_rows = nanovlm_token_rows,
    .image_text = nanovlm_image_text};

}  // namespace vlcache
