// Weights: all weights of a model, a shape on every line. Matrices are packed by the backend; vectors are in its
// compute dtype.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "model/config.h"
#include "model/weights/input_statistics.h"
#include "model/weights/packed_weights.h"
#include "model/weights/tensor_source.h"
#include "model/weights/weight_forms.h"
#include "ops/backend.h"

namespace vlcache {

// H heads, Hk kv heads, d head_dim, f ffn_size. Tensors that the architecture lacks are empty.
struct TextLayerWeights {
  Tensor attn_norm, attn_norm_b;  // [hidden]; biases of norms: with layer_norm, here and below
  Weight qkv;                     // [(H + 2 Hk) d, hidden]: rows of q, then k, then v
  Tensor qkv_bias;                // [(H + 2 Hk) d]
  Tensor q_norm, k_norm;          // [d]
  std::vector<float> attn_sinks;  // [H] with attention_sinks: AttentionArgs::sink_logits
  Weight o;                       // [hidden, H d]
  Tensor o_bias;                  // [hidden]
  Tensor post_attn_norm;          // [hidden]; with post_norms
  Tensor mlp_norm, mlp_norm_b;    // [hidden]
  Weight gate_up;                 // [2 f, hidden]: rows of gate, then up; without gated_mlp [f, hidden]
  Tensor gate_up_bias;            // [2 f] or [f]
  Weight down;                    // [hidden, f]
  Tensor down_bias;               // [hidden]
  Tensor post_mlp_norm;           // [hidden]; with post_norms
  // Of a layer with experts, instead of gate_up and down: router [E, hidden], and of each expert the same two matrices.
  Weight router;
  std::vector<Weight> experts_gate_up, experts_down;
};

struct TextWeights {
  Weight
      embed;  // [vocab, hidden]; when tied, packed and used as lm_head too; else plain rows, maybe in the mapped file
  Weight positions;                      // [max_positions, hidden] plain rows; with learned_positions
  std::vector<TextLayerWeights> layers;  // [n_layers]
  Tensor final_norm, final_norm_b;       // [hidden]
  Weight lm_head;                        // [vocab, hidden]; empty when tied
  bool tied = false;
  const Weight& output() const { return tied ? embed : lm_head; }
};

// h hidden_size of the encoder, f its ffn_size.
struct VisionLayerWeights {
  Tensor norm1_w, norm1_b;  // [h]; biases are empty with rms_norm, here and below
  Weight qkv;               // [3 h, h]
  Tensor qkv_bias;          // [3 h]
  Weight out;               // [h, h]
  Tensor out_bias;          // [h]
  Tensor norm2_w, norm2_b;  // [h]
  Tensor q_norm, k_norm;    // [head_dim]; with qk_norm
  Weight fc1;               // [f, h]; with gated_mlp [2 f, h]: rows of gate, then up
  Tensor fc1_bias;          // [f] or [2 f]
  Weight fc2;               // [h, f]
  Tensor fc2_bias;          // [h]
};

struct VisionWeights {
  Weight patch;                            // [h, n_frames C p p]
  Tensor patch_bias;                       // [h]; with patch_bias
  Tensor class_embedding;                  // [1, h]; with class_token
  Tensor positions;                        // [n_positions, h]; empty without learned positions
  Tensor pre_norm_w, pre_norm_b;           // [h]; with pre_norm
  std::vector<VisionLayerWeights> layers;  // [n_used_layers]
  Tensor post_norm_w, post_norm_b;         // [h]; with post_norm
};

struct ProjectorWeights {
  Tensor norm_w, norm_b;  // [feature_size], or [scale^2 feature_size] of a tap; of a merger
  Weight linear1;         // [text hidden, scale^2 feature_size]; of a merger [scale^2 feature_size, the same]
  Tensor bias1;           // [rows of linear1]
  Weight linear2;         // [text hidden, rows of linear1]; of two layers
  Tensor bias2;           // [text hidden]
  Weight gate_up, down;   // [2 f, text hidden], [text hidden, f]; of a gated projector
  Tensor newline;         // [1, text hidden]; LLaVA-NeXT
};

// A matrix as it was loaded.
struct LoadedMatrix {
  std::string name;  // of its first tensor
  std::string form;  // QuantForm::describe, or the dtype; several with " | " between them
  bool quantised = false;
  bool ordered = false;    // inputs in another order than the model's (GPTQ's g_idx), by which x is sorted first
  int quantiser = 0;       // kQuantiserVersion where it made codes; else 0, as for codes of the checkpoint
  bool near_grid = false;  // in 8 bits where fewer were asked for (form_near_grid)
  int64_t n_parameters = 0, bytes = 0;
  bool operator==(const LoadedMatrix&) const = default;
};

// The matrices that a checkpoint stores as codes.
struct StoredCodes {
  std::string format;     // "AWQ"; empty: the checkpoint has none
  int64_t n_kept = 0;     // that are kept bit for bit
  int64_t n_widened = 0;  // that became values, since no form holds them or another was asked for
  int64_t widened_bytes_stored = 0, widened_bytes = 0;  // of widened matrices, in the file and as values
};

struct Weights {
  TextWeights text;
  std::optional<VisionWeights> vision;
  ProjectorWeights projector;
  std::vector<ProjectorWeights> taps;  // of VisionConfig::tap_layers
  WeightHash hash{};                   // of every byte that was loaded
  int64_t n_parameters = 0;            // of the loaded tensors
  int64_t bytes = 0;                   // that stay in memory: packed matrices, vectors, tables
  std::vector<LoadedMatrix> matrices;  // packed ones, in the order of loading
  StoredCodes stored;
  std::vector<Buffer> vectors;           // own every small tensor above
  std::unique_ptr<TensorSource> source;  // keeps mapped tables alive
  PackedUse packed_file = PackedUse::kOff;
  bool shared = false;      // matrices are in memory that is shared with other processes
  std::string calibration;  // its digest; empty: not calibrated
};

// done and total are bytes of the source; total is 0 if unknown. Called by one thread at a time, not always the same
// one, and several times while a matrix is quantised.
using LoadProgress = std::function<void(int64_t done, int64_t total)>;

// What the quantiser weighs errors by.
struct WeightCalibration {
  std::string digest;                             // of all that the statistics are made from; empty: there are none
  std::function<InputStatistics()> measure = {};  // called at most once, and only if something is quantised
};

struct LoadOptions {
  LoadProgress progress;
  WeightForms forms;
  WeightCalibration calibration = {};
  // The folder of packed files; without an identity of the source's files and configuration it is not used.
  PackedCacheOptions packed = {};
  std::string source_identity = {};
};

// Reads and packs everything `config` needs; pages of the source are released as soon as they were packed, so the peak
// is the packed weights plus one matrix, quantised or not: rows are quantised a panel at a time. What a packed file has
// is taken from it instead. Throws Error naming the tensor, its expected shape, and the prefixes tried.
Weights load_weights(const ModelConfig& config, std::unique_ptr<TensorSource> source, Backend& backend,
                     const LoadOptions& options = {});

// What load_weights would keep, to the byte.
struct WeightList {
  std::vector<LoadedMatrix> matrices;
  int64_t n_parameters = 0, bytes = 0;  // of all weights
  WeightHash hash{};                    // with `hashed`
};
// Finds and checks the same tensors without packing them. hashed: reads every byte; else small tensors, and both
// tables of a checkpoint that may have tied ones. Throws as load_weights does.
WeightList list_weights(const ModelConfig& config, std::unique_ptr<TensorSource> source, Backend& backend,
                        const WeightForms& forms, bool hashed = false);

}  // namespace vlcache
