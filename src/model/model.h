// Model: a loaded model: text decoder, vision encoder and projector, with the few calls an engine needs. Owns weights,
// no KV, no policy.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/buffer.h"
#include "io/checkpoint/checkpoint.h"
#include "model/config.h"
#include "model/family.h"
#include "model/images/image_tiles.h"
#include "model/step.h"
#include "model/text_decoder.h"
#include "model/vision_encoder.h"
#include "model/weights/weights.h"
#include "ops/backend.h"

namespace vlcache {

// The encoder's output for an image. `extra` is what the first layers of the language model add to their output, for
// encoders that feed them (DeepStack: VisionConfig::tap_layers).
struct VisionOutput {
  Tensor embeds;              // [n_tokens, text hidden] compute dtype, in `storage`
  std::vector<Tensor> extra;  // [n_tokens, text hidden] each, in `storage`
  Buffer storage;

  // All of it as a record stores it, [n_tokens, (1 + extra) * text hidden] dense: the embeddings, then each of `extra`.
  Tensor record() const;
};

// Hash of the weights, the forms of quantised ones and their calibration (its digest), config.json and the arithmetic:
// two models with the same fingerprint compute the same. The version of the quantiser is part of it where it made
// codes.
std::array<uint8_t, 16> model_fingerprint(const WeightHash& weights, std::span<const LoadedMatrix> matrices,
                                          const Backend& backend, const std::string& config_json,
                                          const std::string& calibration = {});

class Model {
 public:
  // The backend must outlive the model. Throws Error for anything wrong in the checkpoint.
  static std::unique_ptr<Model> load(const Checkpoint& checkpoint, Backend& backend, const LoadOptions& options = {});
  // The same with a configuration already read by read_config.
  static std::unique_ptr<Model> load(const Checkpoint& checkpoint, const ModelConfig& config, Backend& backend,
                                     const LoadOptions& options = {});
  // Random weights of any configuration, for timing.
  static std::unique_ptr<Model> random(const ModelConfig& config, Backend& backend, uint64_t seed,
                                       const LoadOptions& options = {});
  // Reads only the configuration of a checkpoint: cheap.
  static ModelConfig read_config(const Checkpoint& checkpoint);

  const ModelConfig& config() const { return config_; }
  Backend& backend() const { return backend_; }
  ActivationBits activation_bits() const { return backend_.activation_bits(); }
  DType compute_dtype() const { return backend_.compute_dtype(); }
  bool sees_images() const { return encoder_.has_value(); }
  int64_t n_parameters() const { return weights_.n_parameters; }
  int64_t weight_bytes() const { return weights_.bytes; }
  PackedUse packed_file() const { return weights_.packed_file; }
  bool shares_weights() const { return weights_.shared; }  // with other processes
  const Weights& weights() const { return weights_; }
  const std::array<uint8_t, 16>& fingerprint() const { return fingerprint_; }
  // Of a checkpoint that is not loaded: what `load` would keep, and the fingerprint it would have. `hashed`: else there
  // is none, as it needs every byte of the weights. calibration: its digest.
  struct Listing {
    WeightList weights;
    std::optional<std::array<uint8_t, 16>> fingerprint;
  };
  static Listing list(const Checkpoint& checkpoint, const ModelConfig& config, Backend& backend,
                      const WeightForms& forms, bool hashed, const std::string& calibration = {});

  // The form of the weights that `load` would make, as a plan names it that was measured with it: "dense",
  // "int4, vision int8, quantiser 2". Reads headers alone. calibration: the digest of its prompts.
  static std::string weights_form(const Checkpoint& checkpoint, const WeightForms& forms, ActivationBits bits,
                                  const std::string& calibration = {});

  // ---- language ---------------------------------------------------------------------------------------------------
  void embed(std::span<const int32_t> ids, const Tensor& x) const { decoder_.embed(ids, x); }
  void forward(const StepInput& step) { decoder_.forward(step); }
  // Collects what the matrices of the decoder multiply from now on; null: no longer.
  void observe_inputs(InputStatistics* inputs) { decoder_.observe_inputs(inputs); }
  const RopeTables& ropes() const { return decoder_.ropes(); }  // of the text decoder's keys

  // ---- images -----------------------------------------------------------------------------------------------------
  std::string expand_prompt(std::string_view text, std::span<const ImageTiles> images) const {
    return vlcache::expand_prompt(config_, text, images);
  }
  // Number of tokens of the image in a prompt (rows of encode_image). Throws Error(kInput) for a text model.
  int64_t n_image_tokens(const ImageTiles& image) const;
  // Room for an image's output, and its elements per token.
  VisionOutput allocate_output(int64_t n_tokens) const {
    return allocate_rows(n_tokens, config_.text.hidden_size, n_extra());
  }
  int64_t output_width() const { return static_cast<int64_t>(1 + n_extra()) * config_.text.hidden_size; }
  // Encodes, projects and orders one image's tokens. Throws Error(kInput) for a text model, Error(kShape) for tiles of
  // a wrong size.
  VisionOutput encode_image(const ImageTiles& image, VisionCapture* capture = nullptr);
  // What of an image's features is projected so far.
  struct Projection {
    VisionOutput out;  // in the order of the features; room for the newline follows the embeddings
    int64_t n_rows = 0;
    int64_t n_done = 0;  // of the rows of the embeddings, then of each of the extra outputs
  };
  // The same in steps, between which anything else may be computed. The image must outlive it.
  class Encoding {
   public:
    bool step();                                              // false: that was the last step
    VisionOutput finish();                                    // after the last step
    double share_done() const { return pass_.share_done(); }  // of encoding_flops()

   private:
    friend Model;
    Encoding(Model& model, const ImageTiles& image, VisionCapture* capture, bool tile_by_tile);
    Model& model_;
    const ImageTiles& image_;
    std::vector<int32_t> order_;
    VisionOutput features_;
    VisionEncoder::Pass pass_;
    Projection projection_;
    bool encoded_ = false;
  };
  Encoding begin_encoding(const ImageTiles& image, VisionCapture* capture = nullptr, bool tile_by_tile = false);
  // FLOPs of the encoder's layers for this image, whose pixels are not read.
  double encoding_flops(const ImageTiles& image) const;
  // The encoder's features before projection, [n_tiles * tokens per tile, feature_size], those of taps in `extra`; for
  // tests and tools.
  VisionOutput encode_features(const ImageTiles& image, VisionCapture* capture = nullptr);

 private:
  Model(const ModelConfig& config, Weights weights, Backend& backend, const std::string& config_json);
  // Room for a vision encoder's or projector's output.
  VisionOutput allocate_rows(int64_t n, int64_t width, size_t n_extra) const;
  size_t n_extra() const { return config_.vision ? config_.vision->tap_layers.size() : 0; }
  VisionOutput features_of(const ImageTiles& image) const;
  // Projects features: all of them, or a piece. Returns whether more are left.
  Projection begin_projection(const ImageTiles& image, const VisionOutput& features) const;
  bool project_piece(const ImageTiles& image, const VisionOutput& features, Projection& projection) const;
  VisionOutput in_order(Projection projection, std::vector<int32_t> order) const;

  ModelConfig config_;
  Weights weights_;
  std::array<uint8_t, 16> fingerprint_{};
  Backend& backend_;
  TextDecoder decoder_;
  std::optional<VisionEncoder> encoder_;
};

}  // namespace vlcache
