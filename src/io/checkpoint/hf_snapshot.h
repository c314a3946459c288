// Reads snapshot directories of Hugging Face: config.json, model.safetensors, tokenizer.json and the files beside them.
#pragma once

#include <filesystem>
#include <memory>

#include "io/checkpoint/checkpoint_reader.h"

namespace vlcache {

// Reads nothing yet: reading a part reports missing files, the directory included. `tokenizer_dir`: where tokenizer
// and chat templates lie; empty: in `dir`.
std::unique_ptr<const CheckpointReader> read_hf_snapshot(const std::filesystem::path& dir,
                                                         const std::filesystem::path& tokenizer_dir = {});

// tokenizer_config.json and the files beside it. `extra_special_tokens`: instead of the tokens that it names; null:
// none.
TokenizerConfig read_tokenizer_config(const std::filesystem::path& dir,
                                      const nlohmann::ordered_json& extra_special_tokens = nullptr);

}  // namespace vlcache
