// Engine is a loaded checkpoint with everything a request needs around it: tokenizer, chat template, image processor,
// KV pages.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/page_pools.h"
#include "engine/calibration.h"
#include "engine/compute_pace.h"
#include "engine/kv_services.h"
#include "engine/prompt/input_media.h"
#include "engine/prompt/prompt.h"
#include "engine/sequence/sequence.h"
#include "engine/sequence/stepper.h"
#include "model/model.h"
#include "ops/factory.h"
#include "reuse/prefix/prefix_saver.h"

namespace vlcache {

class ChatTemplates;
class EngineCaches;
class PromptMedia;
class Tokenizer;
struct RenderedChat;

struct EngineOptions {
  std::string backend = "auto";
  BackendOptions backend_options;   // its strings must outlive loading
  std::optional<DType> dtype;       // bf16 or f32; default: the checkpoint's, f16 as bf16
  WeightForms weights;              // which matrices are quantised when they are loaded
  Calibration calibration;          // and by what their errors are weighed; default: by nothing
  PackedCacheOptions packed;        // where the result is stored for the next start; default: nowhere
  std::optional<KvCodec> kv_codec;  // default of requests; none: auto_codec
  // The codec named auto; none: bf16, f32 when computing in f32.
  std::optional<KvCodec> auto_codec;
  int32_t prefill_chunk = 512;  // rows of a step at most
  bool share_attention = true;  // sequences read pages together that they have in common (AttentionArgs::share)
  int64_t cache_bytes = 0;      // of caches beyond running requests; 0: none
  int64_t kv_memory_bytes = 0;  // limit of the page pool; 0: as in memory_plan.h
  // Storage of images' KV and embeddings beyond the process, searched in this order.
  std::vector<std::shared_ptr<KvTier>> tiers;
  int32_t cache_admit = 1;                          // an image is stored there from this use on
  PrefixSaving save_prefixes = PrefixSaving::kOff;  // when exact prefixes of prompts are stored there
  int64_t first_use_bytes = 0;                      // PrefixSaver: an hour, of prompts that were used once
  double cache_deadline_ms = 5000;                  // a request waits this long for them, then it computes
  ImageKvForm cache_form;                           // of the KV of images, in memory and there
  // Texts of conversations may contain special tokens and image markers, as with transformers; else they stay text.
  bool special_tokens_in_text = false;
  LoadProgress progress;
};

// The dtype that a model is computed in. f16 has no arithmetic of its own here: bf16 keeps its speed and range, f32
// (--dtype f32) its precision.
inline DType compute_dtype_of(const ModelConfig& config, std::optional<DType> asked) {
  return asked.value_or(config.dtype == DType::kF32 ? DType::kF32 : DType::kBF16);
}

// Bounds of a prompt that is prepared. Preparing throws TextTooLong or Error(kCancelled) (io/tokenizer/encode_limits.h)
// as soon as one is passed.
struct PromptLimits {
  static constexpr int64_t kNone = int64_t{1} << 40;
  int64_t max_tokens = kNone;                 // those of images included
  int64_t max_positions = kNone;              // of tokens outside images, which have fewer positions than tokens
  std::function<bool()> cancelled = nullptr;  // asked many times a second; empty: never
};

// What a head's size must be a multiple of, so that its pages can become codes of this codec.
constexpr int64_t head_multiple(KvCodec codec) { return codec == KvCodec::kInt8 ? 4 : 8; }
constexpr bool has_codes(KvCodec codec, int64_t head_dim) { return head_dim % head_multiple(codec) == 0; }
// The coded codecs that all its pages can have, the one of most bits first.
std::vector<KvCodec> coded_codecs(const TextConfig& text);
// The KV of a model under a codec: if that is one of codes, of full pages, which are written as values of the compute
// dtype. Throws Error(kUnsupported) if heads of the model's size cannot have them.
KvShape kv_shape_of(const Model& model, KvCodec codec);
// Of KV as values of the compute dtype, and under each coded codec that all its pages can have.
std::vector<KvShape> kv_shapes(const Model& model);
// The codec of values of the dtype that computes.
constexpr KvCodec value_codec(DType compute) { return compute == DType::kF32 ? KvCodec::kF32 : KvCodec::kBF16; }
KvCodec value_codec(const Model& model);
// Throws Error(kInput) if the policy reserves its slots (Policy::capacity), which pages of codes cannot be.
void check_codec_suits(KvCodec codec, const Policy& policy);

class Engine {
 public:
  static std::unique_ptr<Engine> load(const Checkpoint& checkpoint, const EngineOptions& options);
  // Random weights in the shape of a config.json, for timing: no tokenizer, no images.
  static std::unique_ptr<Engine> random(const ModelConfig& config, const EngineOptions& options, uint64_t seed);
  ~Engine();

  Model& model() { return *model_; }
  const Model& model() const { return *model_; }
  Backend& backend() { return *backend_; }
  PagePools& pools() { return *pools_; }
  Stepper& stepper() { return *stepper_; }
  const EngineOptions& options() const { return options_; }
  // The codec of requests that name neither a codec nor a policy, and the shape of KV under it.
  KvCodec kv_codec() const { return kv_shape_.full_codec(); }
  const KvShape& kv_shape() const { return kv_shape_; }
  KvCodec auto_codec() const { return options_.auto_codec.value_or(value_codec(*model_)); }
  double load_ms() const { return load_ms_; }
  bool has_tokenizer() const { return tokenizer_ != nullptr; }
  const Tokenizer& tokenizer() const;  // CHECKs that there is one
  int32_t max_positions() const { return static_cast<int32_t>(model_->config().text.max_positions); }
  // Ids that end a generation: generation_config.json's, else the tokenizer's; and its stop strings that are special
  // tokens.
  std::vector<int32_t> stop_token_ids() const;

  // Text exactly as given (placeholders included) and its images and videos, as transformers' processor would tokenise
  // them.
  Prompt prepare_raw(std::string_view text, InputMedia media, const PromptLimits& limits = {},
                     bool add_special_tokens = true) const;
  // A conversation as the chat template has rendered it; its images and its videos, each in the order of their
  // placeholders.
  Prompt prepare_rendered(const RenderedChat& chat, InputMedia media, const PromptLimits& limits = {}) const;
  // Reads images, videos and documents.
  const PromptMedia& media() const { return *media_; }
  // Null: the model has no tokenizer, hence no text.
  const ChatTemplates* chat_templates() const { return chat_templates_.get(); }
  // Token ids as they are, no images.
  Prompt prepare_tokens(std::vector<int32_t> tokens) const;

  // A sequence with nothing computed, whose KV has the codec, or default_codec(). Throws Error(kMemory) if the policy
  // reserves more slots than there are pages, and as check_codec_suits and kv_shape_of.
  std::unique_ptr<Sequence> new_sequence(const Prompt& prompt, PolicyPtr policy, std::optional<KvCodec> codec = {});
  // Bytes of the pages of a sequence of n tokens, nothing evicted.
  int64_t kv_bytes(int64_t n_tokens) const { return kv_bytes(n_tokens, kv_shape_); }
  int64_t kv_bytes(int64_t n_tokens, const KvShape& shape) const;
  // Slots per head that a policy reserves; 0: none, they are added as needed.
  int64_t slot_capacity(const Policy& policy) const;
  // What callers may do with what is kept beyond running requests; the caches themselves, for engine/ alone.
  KvServices& kv() { return *kv_; }
  const KvServices& kv() const { return *kv_; }
  EngineCaches& caches() { return *caches_; }
  // For the thread that computes.
  ComputePace& pace() { return pace_; }

 private:
  Engine() = default;
  void start(std::unique_ptr<Model> model, const EngineOptions& options);
  Prompt prepare(const RenderedChat& text, InputMedia media, bool add_special_tokens, const PromptLimits& limits) const;
  void classify(Prompt& prompt) const;
  std::vector<int32_t> instruction(std::string_view text) const;

  EngineOptions options_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatTemplates> chat_templates_;
  std::unique_ptr<PromptMedia> media_;
  ReplayText replay_text_;
  KvShape kv_shape_;
  std::unique_ptr<PagePools> pools_;
  std::unique_ptr<EngineCaches> caches_;
  std::unique_ptr<KvServices> kv_;
  std::unique_ptr<Stepper> stepper_;
  ComputePace pace_;
  double load_ms_ = 0;
};

// The codec of requests with the policy that name auto: values, if auto means codes and the policy reserves its slots.
KvCodec auto_codec(const Engine& engine, const Policy& policy);
// The codec of requests with the policy that name none.
KvCodec default_codec(const Engine& engine, const Policy& policy);

}  // namespace vlcache
