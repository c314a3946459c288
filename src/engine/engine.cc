#include "engine/engine.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/clock.h"
#include "base/error.h"
#include "base/os/machine.h"
#include "engine/engine_caches.h"
#include "engine/memory_plan.h"
#include "engine/prompt/prompt_media.h"
#include "io/chat/chat_templates.h"
#include "io/tokenizer/tokenizer.h"
#include "model/processors/image_processor.h"
#include "model/processors/video_processor.h"
#include "reuse/prefix/prefix_cache.h"
#include "reuse/prefix/prefix_store.h"

namespace vlcache {
namespace {

// Throws Error(kUnsupported) for head sizes that pages of the codec cannot have.
KvCodec checked_codec(KvCodec codec, int64_t head_dim) {
  if (has_codes(codec, head_dim)) return codec;
  std::string allowed = "f32 and bf16";
  if (has_codes(KvCodec::kInt8, head_dim)) allowed = "f32, bf16 and int8";
  throw Error(ErrorCode::kUnsupported, "KV pages of " + std::string(kv_codec_name(codec)) +
                                           " need a head size that is a multiple of " +
                                           std::to_string(head_multiple(codec)) + ", and this model's is " +
                                           std::to_string(head_dim) + "; allowed are " + allowed);
}

// The largest bias that a layer with K adds to it, without its sign.
float largest_k_bias(const Model& model, size_t layer) {
  const Tensor& bias = model.weights().text.layers[layer].qkv_bias;
  if (bias.empty()) return 0.0f;
  const TextLayer& shape = model.config().text.layers[layer];
  const int64_t begin = shape.q_size(), end = begin + shape.kv_size();
  float largest = 0.0f;
  for (int64_t i = begin; i < end; ++i) {
    const float b = bias.dtype == DType::kF32 ? bias.as<float>()[i] : to_float(bias.as<bf16>()[i]);
    largest = std::max(largest, std::abs(b));
  }
  return largest;
}

// int4 for a layer, or k8v4 where biases of K are large. Qwen2's first layers add up to 200 to few dimensions of K: the
// rotation spreads a bias over 32 values, whose steps of 4 bits then leave nothing of the rest. A bias of 16 makes
// steps as large as other values of a deviation of 1.5 do. Qwen2.5-Coder-0.5B after 1,000 tokens, K in 4 bits: a
// divergence of 0.97 nats; in all but 6 of 24 layers: 0.05.
KvCodec layer_codec(const Model& model, size_t layer, KvCodec codec) {
  if (const int32_t shared = model.config().text.layers[layer].shares_kv; shared >= 0) {
    layer = static_cast<size_t>(shared);
  }
  constexpr float kMostBias = 16.0f;
  return codec == KvCodec::kInt4 && largest_k_bias(model, layer) > kMostBias ? KvCodec::kK8V4 : codec;
}

// Runs of image tokens and of video tokens, each with the rows of its image's embeddings it stands for.
std::vector<ImageSpan> find_spans(const Model& model, const Prompt& prompt) {
  const ModelConfig& config = model.config();
  std::vector<int64_t> rows;
  std::map<int32_t, int64_t> n_found, n_expected;  // by token
  const auto token_of = [&](size_t image) {
    return prompt.images[image].unit ? config.video_token_id : config.image_token_id;
  };
  for (size_t image = 0; image < prompt.images.size(); ++image) {
    rows.push_back(model.n_image_tokens(prompt.images[image]));
    n_expected[token_of(image)] += rows.back();
  }
  std::vector<ImageSpan> spans;
  size_t image = 0;
  int64_t row = 0;
  for (int32_t i = 0; i < prompt.n_tokens(); ++i) {
    const int32_t token = prompt.tokens[static_cast<size_t>(i)];
    if (!config.is_vision_token(token)) continue;
    ++n_found[token];
    while (image < rows.size() && row == rows[image]) {
      ++image;
      row = 0;
    }
    if (image == rows.size() || token != token_of(image)) continue;
    ImageSpan* last = spans.empty() ? nullptr : &spans.back();
    if (last != nullptr && last->end == i && last->image == static_cast<int32_t>(image)) {
      ++last->end;
    } else {
      spans.push_back({i, i + 1, static_cast<int32_t>(image), static_cast<int32_t>(row)});
    }
    ++row;
  }
  for (const auto& [token, n] : n_found) n_expected.try_emplace(token, 0);
  for (const auto& [token, n] : n_expected) {
    if (n_found[token] == n) continue;
    throw Error(ErrorCode::kInput, "the prompt has " + std::to_string(n_found[token]) +
                                       (token == config.image_token_id ? " image" : " video") + " tokens (id " +
                                       std::to_string(token) + " in config.json), its " + std::to_string(rows.size()) +
                                       " images and units of videos need " + std::to_string(n));
  }
  return spans;
}

}  // namespace

KvCodec value_codec(const Model& model) { return value_codec(model.compute_dtype()); }

KvShape kv_shape_of(const Model& model, KvCodec codec) {
  KvShape shape{.layers = {}, .codec = is_coded(codec) ? value_codec(model) : codec};
  for (const TextLayer& layer : model.config().text.layers) {
    shape.layers.push_back({.n_kv_heads = static_cast<int32_t>(layer.n_kv_heads),
                            .head_dim = static_cast<int32_t>(layer.head_dim),
                            .shares = layer.shares_kv,
                            .window = layer.window});
    if (!is_coded(codec) || layer.n_kv_heads == 0) continue;
    shape.layers.back().coded = layer_codec(model, shape.layers.size() - 1, checked_codec(codec, layer.head_dim));
  }
  if (shape.has_codes()) shape.named = codec;
  return shape;
}

std::vector<KvShape> kv_shapes(const Model& model) {
  std::vector<KvShape> shapes{kv_shape_of(model, value_codec(model))};
  for (const KvCodec codec : coded_codecs(model.config().text)) shapes.push_back(kv_shape_of(model, codec));
  return shapes;
}

Engine::~Engine() = default;

std::unique_ptr<Engine> Engine::load(const Checkpoint& checkpoint, const EngineOptions& options) {
  const auto begin = Clock::now();
  const ModelConfig config = Model::read_config(checkpoint);
  auto engine = std::unique_ptr<Engine>(new Engine());
  engine->backend_ = make_backend(options.backend, compute_dtype_of(config, options.dtype), options.backend_options);
  // Small files first: a tokenizer that cannot be read should not wait for the weights.
  engine->tokenizer_ = std::make_unique<Tokenizer>(Tokenizer::load(checkpoint));
  engine->chat_templates_ = std::make_unique<ChatTemplates>(ChatTemplates::load(checkpoint));
  const std::string image_marker(config.family->image_placeholder);
  engine->chat_templates_->set_markers(image_marker, std::string(config.family->video_placeholder));
  if (!options.special_tokens_in_text) engine->chat_templates_->keep_texts(*engine->tokenizer_, image_marker);
  const auto make_processor = [checkpoint, type = config.model_type](const std::string& settings) {
    return load_image_processor(checkpoint, type, settings);
  };
  ImageReader::ProcessorPtr processor = config.vision ? make_processor("") : nullptr;
  std::unique_ptr<const VideoProcessor> video_processor;
  if (config.vision && !config.family->video_placeholder.empty()) {
    video_processor = load_video_processor(checkpoint, config.model_type);
    if (video_processor->frames_per_unit() != config.vision->n_frames) {
      throw Error(ErrorCode::kInput, checkpoint.video_settings().where() + ": temporal_patch_size: expected " +
                                         std::to_string(config.vision->n_frames) + ", the encoder's, found " +
                                         std::to_string(video_processor->frames_per_unit()));
    }
  }
  LoadOptions load{.progress = options.progress, .forms = options.weights, .packed = options.packed};
  if (!options.calibration.digest.empty()) {
    load.calibration = {.digest = calibration_digest(checkpoint, options),
                        .measure = [&] { return measure_inputs(checkpoint, options); }};
  }
  engine->start(Model::load(checkpoint, config, *engine->backend_, load), options);
  if (processor != nullptr) {
    engine->media_ = std::make_unique<PromptMedia>(*engine->model_, std::move(processor), make_processor,
                                                   std::move(video_processor));
  }
  engine->load_ms_ = ms_since(begin);
  return engine;
}

std::unique_ptr<Engine> Engine::random(const ModelConfig& config, const EngineOptions& options, uint64_t seed) {
  const auto begin = Clock::now();
  auto engine = std::unique_ptr<Engine>(new Engine());
  engine->backend_ = make_backend(options.backend, compute_dtype_of(config, options.dtype), options.backend_options);
  engine->start(Model::random(config, *engine->backend_, seed, {.forms = options.weights}), options);
  engine->load_ms_ = ms_since(begin);
  return engine;
}

void Engine::start(std::unique_ptr<Model> model, const EngineOptions& options) {
  options_ = options;
  model_ = std::move(model);
  for (WeightChoice* choice : {&options_.weights.text, &options_.weights.vision}) {
    // As the checkpoint has them, where it has values alone.
    if (*choice == WeightChoice::kAuto && model_->weights().stored.format.empty()) *choice = WeightChoice::kDense;
  }
  kv_shape_ = kv_shape_of(*model_, options.kv_codec.value_or(auto_codec()));
  const int64_t limit = options.kv_memory_bytes > 0
                            ? options.kv_memory_bytes
                            : default_kv_bytes(usable_memory(), model_->weight_bytes(), options.cache_bytes);
  pools_ = std::make_unique<PagePools>(*backend_, kv_shape_, limit);
  media_ = std::make_unique<PromptMedia>(*model_);
  caches_ = std::make_unique<EngineCaches>(*model_, *pools_, kv_codec(), options_);
  kv_ = std::make_unique<KvServices>(*caches_);
  stepper_ = std::make_unique<Stepper>(*model_, options_.share_attention);
  replay_text_.max_positions = max_positions();
  if (tokenizer_ == nullptr) return;
  // As kvpress words them (KVzipPress).
  replay_text_.first = instruction("\n\nRepeat the previous context exactly.");
  replay_text_.later = instruction("\n\nRepeat the part of the previous context exactly, starting with");
  replay_text_.suffix = instruction(chat_templates_->frame(*tokenizer_).before_answer);
}

// Tokens of an instruction to the model. The tokenizer may have tokens that the model lacks.
std::vector<int32_t> Engine::instruction(std::string_view text) const {
  std::vector<int32_t> tokens = tokenizer_->encode(text, /*add_special_tokens=*/false);
  const int64_t vocab = model_->config().text.vocab_size;
  std::erase_if(tokens, [&](int32_t token) { return token >= vocab; });
  return tokens;
}

const Tokenizer& Engine::tokenizer() const {
  CHECK(tokenizer_ != nullptr);
  return *tokenizer_;
}

std::vector<int32_t> Engine::stop_token_ids() const {
  std::vector<int32_t> ids = model_->config().generation.eos_token_ids;
  if (ids.empty() && tokenizer_ != nullptr && tokenizer_->eos_id() >= 0) ids.push_back(tokenizer_->eos_id());
  if (tokenizer_ == nullptr) return ids;
  // A stop string that is a special token never appears in the text.
  for (const std::string& text : model_->config().generation.stop_strings) {
    const int32_t id = tokenizer_->token_id(text);
    if (id >= 0 && tokenizer_->is_special(id)) ids.push_back(id);
  }
  return ids;
}

Prompt Engine::prepare(const RenderedChat& text, InputMedia media, bool add_special_tokens,
                       const PromptLimits& limits) const {
  media_->check_takes(media);
  Prompt prompt;
  media_->read(text.text, std::move(media), prompt);
  const std::string expanded = model_->expand_prompt(text.text, prompt.images);
  EncodeLimits tokens{.max_tokens = limits.max_positions, .cancelled = limits.cancelled};
  for (const ImageTiles& image : prompt.images) tokens.max_tokens += model_->n_image_tokens(image);
  tokens.max_tokens = std::min(tokens.max_tokens, limits.max_tokens);
  prompt.tokens = text.mark ? tokenizer_->encode_marked(expanded, *text.mark, add_special_tokens, tokens)
                            : tokenizer_->encode(expanded, add_special_tokens, tokens);
  classify(prompt);
  if (model_->sees_images()) prompt.spans = find_spans(*model_, prompt);
  if (prompt.tokens.empty()) throw Error(ErrorCode::kInput, "the prompt is empty: not one token");
  prompt.positions = place_tokens(model_->config(), prompt.n_tokens(), prompt.spans, prompt.images);
  prompt.replay_text = replay_text_;
  if (text.frame) {
    prompt.replay_text.suffix = instruction(text.frame->before_answer);
    const std::vector<int32_t> first = tokenizer_->encode(text.frame->before_message, add_special_tokens);
    const auto differs = std::ranges::mismatch(first, prompt.tokens).in1;
    prompt.n_template = static_cast<int32_t>(differs - first.begin());
  }
  prompt.in_thought = text.in_thought;
  return prompt;
}

// Sets each token's class. The tokenizer may have tokens that the model lacks: a fine-tune's added <pad>.
void Engine::classify(Prompt& prompt) const {
  const int64_t vocab = model_->config().text.vocab_size;
  for (size_t i = 0; i < prompt.tokens.size(); ++i) {
    const int32_t token = prompt.tokens[i];
    const bool is_image = model_->sees_images() && token == model_->config().image_token_id;
    if (token >= vocab && !is_image) {
      throw Error(ErrorCode::kInput, "the prompt has \"" + tokenizer_->token_text(token) + "\", token " +
                                         std::to_string(token) + " of the tokenizer; the model's vocabulary ends at " +
                                         std::to_string(vocab) + " (vocab_size in config.json)");
    }
    // The many tokens of an image are all the same.
    const bool same = i > 0 && token == prompt.tokens[i - 1];
    prompt.classes.push_back(same ? prompt.classes.back() : tokenizer_->token_class(token));
  }
}

Prompt Engine::prepare_raw(std::string_view text, InputMedia media, const PromptLimits& limits,
                           bool add_special_tokens) const {
  return prepare({.text = std::string(text)}, std::move(media), add_special_tokens, limits);
}

Prompt Engine::prepare_rendered(const RenderedChat& chat, InputMedia media, const PromptLimits& limits) const {
  // As transformers: a processor adds special tokens unless the template has written the first one, a bare tokenizer
  // never does.
  const std::string bos = tokenizer_->special_token("bos_token");
  const bool add_special_tokens = media_->takes_images() && !(!bos.empty() && chat.text.starts_with(bos));
  return prepare(chat, std::move(media), add_special_tokens, limits);
}

Prompt Engine::prepare_tokens(std::vector<int32_t> tokens) const {
  const TextConfig& text = model_->config().text;
  if (tokens.empty()) throw Error(ErrorCode::kInput, "the prompt is empty: not one token");
  for (int32_t token : tokens) {
    if (token < 0 || token >= text.vocab_size) {
      throw Error(ErrorCode::kInput, "token " + std::to_string(token) + " is outside the vocabulary of " +
                                         std::to_string(text.vocab_size));
    }
    if (model_->config().is_vision_token(token)) {
      const bool image = token == model_->config().image_token_id;
      throw Error(ErrorCode::kInput, "token " + std::to_string(token) + " stands for " +
                                         (image ? "an image; give images" : "a video; give videos") +
                                         " with a prompt, not with token ids");
    }
  }
  Prompt prompt;
  prompt.tokens = std::move(tokens);
  prompt.replay_text = replay_text_;
  return prompt;
}

int64_t Engine::kv_bytes(int64_t n_tokens, const KvShape& shape) const {
  const int64_t n_pages = (n_tokens + kPageSlots - 1) / kPageSlots;
  const int64_t passed = held_begin(static_cast<int32_t>(n_tokens), shape.largest_window());
  int64_t bytes = 0;
  for (int32_t l = 0; l < shape.n_layers(); ++l) {
    const KvLayerShape& layer = shape.layers[static_cast<size_t>(l)];
    if (shape.n_own_heads(l) == 0) continue;
    const int64_t begin = shape.is_windowed(l) ? passed : 0;
    const int64_t first_coded = std::max<int64_t>(begin, 1);
    const int64_t coded = layer.coded.has_value() && n_tokens > 0 ? coded_end(n_tokens - 1) : 1;
    const int64_t n_coded = std::max<int64_t>(coded - first_coded, 0);
    bytes +=
        shape.n_own_heads(l) * ((n_pages - begin - n_coded) * backend_->kv_page_bytes(shape.codec, layer.head_dim) +
                                n_coded * backend_->kv_page_bytes(layer.coded.value_or(shape.codec), layer.head_dim));
  }
  return bytes;
}

std::vector<KvCodec> coded_codecs(const TextConfig& text) {
  std::vector<KvCodec> codecs;
  for (const KvCodec codec : {KvCodec::kInt8, KvCodec::kK8V4, KvCodec::kInt4}) {
    const auto fits = [&](const TextLayer& layer) { return layer.n_kv_heads == 0 || has_codes(codec, layer.head_dim); };
    if (std::ranges::all_of(text.layers, fits)) codecs.push_back(codec);
  }
  return codecs;
}

void check_codec_suits(KvCodec codec, const Policy& policy) {
  if (!is_coded(codec) || policy.capacity() == 0) return;
  throw Error(ErrorCode::kInput, "KV policy " + policy.name() + " reserves slots of values, which cannot become " +
                                     std::string(kv_codec_name(codec)) +
                                     "; allowed with it are --kv-codec bf16 and f32");
}

KvCodec auto_codec(const Engine& engine, const Policy& policy) {
  return policy.capacity() == 0 ? engine.auto_codec() : value_codec(engine.model());
}

KvCodec default_codec(const Engine& engine, const Policy& policy) {
  return engine.options().kv_codec.value_or(auto_codec(engine, policy));
}

int64_t Engine::slot_capacity(const Policy& policy) const {
  return policy.capacity() < 0 ? max_positions() : policy.capacity();
}

std::unique_ptr<Sequence> Engine::new_sequence(const Prompt& prompt, PolicyPtr policy, std::optional<KvCodec> codec) {
  const KvShape& shape = caches_->of(codec.value_or(default_codec(*this, *policy))).shape();
  check_codec_suits(shape.full_codec(), *policy);
  KvCache cache(*pools_, *backend_, shape, slot_capacity(*policy));
  return std::make_unique<Sequence>(
      prompt, std::move(cache), std::move(policy),
      HiddenShape{.dtype = model_->compute_dtype(), .size = model_->config().text.hidden_size});
}

}  // namespace vlcache
