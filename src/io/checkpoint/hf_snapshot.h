// Reads snapshot directories of Hugging Face: config.json, model.safetensors, tokenizer.json and the files beside them.
#pragma once

#include <filesystem>
#include <memory>

#include "io/checkpoint/checkpoint_reader.h"

namespace vlcache {

// Reads nothing yet: reading a part reports what is missing, the directory included.
std::unique_ptr<const CheckpointReader> read_hf_snapshot(const std::filesystem::path& dir);

}  // namespace vlcache
