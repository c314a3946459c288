// Reads checkpoints of nanoVLM: model.safetensors and a config.json in words of its own. Tokenizer, chat template and
// settings of images are not beside them: config.json names or describes them.
#pragma once

#include <filesystem>
#include <memory>

#include "io/checkpoint/checkpoint_reader.h"

namespace vlcache {

// Whether config.json names no model_type and has nanoVLM's keys. False for any other folder, readable or not.
bool is_nanovlm_snapshot(const std::filesystem::path& dir);

// `tokenizer_dir`: where the tokenizer lies that config.json names (lm_tokenizer); empty: in `dir`.
std::unique_ptr<const CheckpointReader> read_nanovlm_snapshot(const std::filesystem::path& dir,
                                                              const std::filesystem::path& tokenizer_dir);

}  // namespace vlcache
