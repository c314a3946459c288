// Creates the engine that a benchmark times: from a checkpoint, or with random weights in the shape of a config.json.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "cli/flags/command.h"
#include "model/processors/image_processor.h"

namespace vlcache {

// Bytes of the weights of that engine, before it is there.
int64_t bench_weight_bytes(const char* command, const ModelFlags& model, const std::string& random_weights);

// `command` is for messages. Throws Error(kInput) unless exactly one of model.model_dir and random_weights is given.
std::unique_ptr<Engine> bench_engine(const char* command, const ModelFlags& model, const std::string& random_weights,
                                     uint64_t seed);

// The image processor of that engine's model: the checkpoint's; with random weights by the object image_processor in
// the config.json, or else by the settings in its folder.
std::unique_ptr<ImageProcessor> bench_image_processor(const ModelFlags& model, const std::string& random_weights,
                                                      const ModelConfig& config);

}  // namespace vlcache
