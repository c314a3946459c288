// PaddleOCR-VL: a SigLIP encoder with 2-D rope over grids of any size. arXiv:2510.14528.
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "model/families/families.h"
#include "model/projector.h"

namespace vlcache {
namespace {

constexpr MergerNames kPaddleMerger = {.norm = "pre_norm.", .fc1 = "linear_1.", .fc2 = "linear_2."};

// Defaults of PaddleOCRVisionConfig (transformers 5.23).
const VisionFamily kPaddleVision = {.name = "PaddleOCR-ViT",
                                    .model_type = "paddleocr_vl_vision",
                                    .traits = {.patch_bias = true,
                                               .post_norm = true,
                                               .rope = true,
                                               .any_grid = true,
                                               .positions = VisionPositions::kAlignedEdges},
                                    .hidden_size = 1152,
                                    .ffn_size = 4304,
                                    .n_layers = 27,
                                    .n_heads = 16,
                                    .image_size = 384,
                                    .patch_size = 14,
                                    .eps = 1e-6,
                                    .activation = "gelu_pytorch_tanh"};

constexpr GridTokens kPaddleTokens = {.image = 100295,
                                      .video = 100296,
                                      .start_key = "vision_start_token_id",
                                      .start = 101305,
                                      .end_key = "vision_end_token_id",
                                      .end = 101306};

void read_paddleocr_vl(const JsonObject& root, ModelConfig& out) {
  read_grid_text(root, kPaddleTokens, out);
  out.text.tied_embeddings = out.text.tied_embeddings || root.boolean("tie_word_embeddings", true);
  read_grid_vision(vision_part(root), kPaddleVision, {.names = &kPaddleMerger, .norm_eps = 1e-5f}, out);
}

}  // namespace

const Family kPaddleOcrVl = {.model_type = "paddleocr_vl",
                             .prefixes = {.text = {"model.language_model.", "model."},
                                          .lm_head = {""},
                                          .vision = {"model.visual.vision_model.", "visual.vision_model."},
                                          .projector = {"model.projector.", "mlp_AR."}},
                             .read_config = read_paddleocr_vl,
                             .image_placeholder = "<|IMAGE_PLACEHOLDER|>",
                             .token_rows = grid_token_rows,
                             .image_positions = grid_positions};

}  // namespace vlcache
