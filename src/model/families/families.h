// The families there are, and what several of them share. A new one is a file in this folder and a line in registry.cc.
#pragma once

#include <span>

#include "model/family.h"

namespace vlcache {

// A decoder that text_decoder.cc can run: what its configuration class's absent keys mean, and which of the switches it
// sets. Also the language model of vision families.
struct TextFamily {
  std::string_view model_type;
  int64_t vocab_size = 0, ffn_size = 0, max_positions = 0;  // defaults
  int64_t n_kv_heads = 0;                                   // default; 0: as many as heads
  int64_t head_dim = 0;                                     // default; 0: hidden / heads
  // Biases, norms and windows; everything else is read already, `windows` is all 0.
  void (*read_switches)(const JsonObject& config, TextConfig& out) = nullptr;
};

extern const TextFamily kLlamaText, kMistralText, kQwen2Text, kQwen3Text;
extern const Family kLlama, kMistral, kQwen2, kQwen3;
extern const Family kLlava, kLlavaNext;
extern const Family kIdefics3, kSmolVlm;

std::span<const TextFamily* const> all_text_families();

// The model that is such a decoder and nothing else.
Family text_model(std::string_view model_type);

// sliding_window, or `fallback` where the key is absent; 0 where it is null.
int32_t read_window(const JsonObject& config, int32_t fallback);
// use_sliding_window with layer_types or max_window_layers, of Qwen2 and Qwen3.
void read_qwen_windows(const JsonObject& config, TextConfig& text);

// LLaVA and LLaVA-NeXT: CLIP with chosen feature layers, a two-layer projector, a language model of any text family.
void read_llava_config(const JsonObject& root, ModelConfig& out);
WeightPrefixes llava_prefixes();

// Idefics3 and SmolVLM: the same model and the same prompt text.
Family tiled_family(std::string_view model_type);

// `text` n times.
std::string repeat(std::string_view text, int64_t n);

}  // namespace vlcache
