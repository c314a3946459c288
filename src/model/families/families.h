// The families there are, and what several of them share. A new one is a file in this folder and a line in registry.cc.
#pragma once

#include "model/family.h"

namespace vlcache {

extern const Family kLlama, kMistral, kQwen2, kQwen3;
extern const Family kLlava, kLlavaNext;
extern const Family kIdefics3, kSmolVlm;

// LLaVA and LLaVA-NeXT: CLIP with chosen feature layers, a two-layer projector, a language model of any text family.
void read_llava_config(const JsonObject& root, ModelConfig& out);
WeightPrefixes llava_prefixes();

// `text` n times.
std::string repeat(std::string_view text, int64_t n);

}  // namespace vlcache
