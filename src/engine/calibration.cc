#include "engine/calibration.h"

#include "base/error.h"
#include "base/format.h"
#include "base/os/machine.h"
#include "base/sha256.h"
#include "engine/engine.h"
#include "io/checkpoint/checkpoint.h"

namespace vlcache {
namespace {

// Changes whenever the same prompts give other statistics, or these other weights.
constexpr int64_t kCalibrationVersion = 1;

// A step of so many rows has logits of all of them, the output matrix' only use here: 78 MB of 151,936 tokens.
constexpr int32_t kRows = 128;

}  // namespace

std::string calibration_digest(const Checkpoint& checkpoint, const EngineOptions& options) {
  if (options.calibration.digest.empty()) return "";
  Sha256 hash;
  const auto add = [&](const std::string& text) {
    hash.add(std::ssize(text));
    hash.add(std::as_bytes(std::span(text)));
  };
  hash.add(kCalibrationVersion);
  add(options.calibration.digest);
  add(checkpoint.tokenizer().json);
  for (const auto& [name, source] : checkpoint.chat_templates()) add(name), add(source);
  hash.add(int64_t{options.special_tokens_in_text});
  if (Model::read_config(checkpoint).vision) add(checkpoint.image_settings().raw().dump());
  return hex(hash.finish()).substr(0, 32);
}

InputStatistics measure_inputs(const Checkpoint& checkpoint, const EngineOptions& options) {
  EngineOptions plain;
  plain.backend = options.backend, plain.backend_options = options.backend_options;
  plain.backend_options.activation_bits = ActivationBits::k15;
  plain.dtype = options.dtype, plain.kv_codec = options.kv_codec;
  plain.prefill_chunk = kRows;
  plain.special_tokens_in_text = options.special_tokens_in_text;
  plain.progress = options.progress;
  const ModelConfig config = Model::read_config(checkpoint);
  const auto backend = make_backend(plain.backend, compute_dtype_of(config, plain.dtype), plain.backend_options);
  const int64_t bytes = Model::list(checkpoint, config, *backend, plain.weights, /*hashed=*/false).weights.bytes;
  if (bytes > usable_memory()) {
    throw Error(ErrorCode::kMemory,
                format("the calibration computes with the weights as the checkpoint has them, which take %.1f GB, more "
                       "than the %.1f GB of memory that this machine grants; quantise on a larger one and copy its "
                       "packed file, or leave the calibration out",
                       static_cast<double>(bytes) / 1e9, static_cast<double>(usable_memory()) / 1e9));
  }
  const std::unique_ptr<Engine> engine = Engine::load(checkpoint, plain);
  InputStatistics inputs;
  engine->model().observe_inputs(&inputs);
  options.calibration.run(*engine, options);
  return inputs;
}

}  // namespace vlcache
