// Calibration: runs prompts through a model as its checkpoint has it, to know what its matrices multiply before they
// are quantised.
#pragma once

#include <functional>
#include <string>

#include "model/weights/input_statistics.h"

namespace vlcache {

class Checkpoint;
class Engine;
struct EngineOptions;

struct Calibration {
  std::string digest;  // of the prompts with their images, as they are written; empty: no calibration
  // Computes every prompt once, every token in all layers, and tells of it by the options' progress and packed.say.
  std::function<void(Engine& engine, const EngineOptions& options)> run = {};
};

// Of everything that the statistics are made from beside weights and arithmetic: the prompts, and what makes tokens and
// pixels of them. Empty without a calibration. Throws Error for a checkpoint without a tokenizer.
std::string calibration_digest(const Checkpoint& checkpoint, const EngineOptions& options);

// Loads the model without quantising it, runs the calibration, and frees the model. Throws Error(kMemory) before that
// if the machine grants less than its weights take, and what loading and running throw.
InputStatistics measure_inputs(const Checkpoint& checkpoint, const EngineOptions& options);

}  // namespace vlcache
