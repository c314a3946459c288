// `vlcache info`: what a checkpoint is and what it costs, before it is loaded.
#include <cstdio>

#include "base/format.h"
#include "cli/command.h"
#include "io/snapshot.h"

namespace vlcache {
namespace {

std::string human(double x, const char* unit) {
  const char* prefixes[] = {"", "k", "M", "G", "T"};
  int i = 0;
  for (; x >= 1000 && i < 4; ++i) x /= 1000;
  return format(i == 0 ? "%.0f %s%s" : "%.2f %s%s", x, prefixes[i], unit);
}

void line(const char* name, const std::string& value) { std::printf("%-16s %s\n", name, value.c_str()); }

void describe_text(const TextConfig& t) {
  std::string text = t.model_type + ", " + std::to_string(t.n_layers) + " layers x " + std::to_string(t.hidden_size) +
                     ", " + std::to_string(t.n_heads) + " query / " + std::to_string(t.n_kv_heads) + " kv heads x " +
                     std::to_string(t.head_dim) + ", MLP " + std::to_string(t.ffn_size) + ", vocabulary " +
                     std::to_string(t.vocab_size);
  if (t.tied_embeddings) text += " (tied)";
  line("language", text);
  line("context", std::to_string(t.max_positions) + " tokens");
  int32_t n_windowed = 0, window = 0;
  for (int32_t w : t.windows) {
    n_windowed += w > 0;
    window = std::max(window, w);
  }
  if (n_windowed > 0) {
    line("sliding window", std::to_string(window) + " tokens in " + std::to_string(n_windowed) + " of " +
                               std::to_string(t.n_layers) + " layers");
  }
}

void describe_vision(const VisionConfig& v) {
  line("vision", v.name + ", " + std::to_string(v.n_layers) + " layers x " + std::to_string(v.hidden_size) + ", " +
                     std::to_string(v.n_heads) + " heads, tiles of " + std::to_string(v.image_size) +
                     " px, patches of " + std::to_string(v.patch_size) + " px");
}

void run(const std::string& model_dir) {
  const ModelConfig config = Model::read_config(model_dir);
  const Snapshot snapshot(model_dir);
  const Safetensors weights = snapshot.weights();
  int64_t parameters = 0, bytes = 0;
  for (std::string_view name : weights.names()) {
    const SafetensorsEntry& entry = *weights.find(name);
    int64_t n = 1;
    for (int64_t d : entry.shape) n *= d;
    parameters += n;
    bytes += entry.end - entry.begin;
  }
  const TextConfig& t = config.text;
  line("architecture", config.model_type);
  describe_text(t);
  if (config.vision) describe_vision(*config.vision);
  line("parameters", human(static_cast<double>(parameters), ""));
  line("weights", human(static_cast<double>(bytes), "B") + " as " + std::string(dtype_name(config.dtype)));
  line("KV cache", human(static_cast<double>(config.kv_bytes_per_token(2)) * 1000, "B") +
                       " per 1k tokens in bf16 (2 x " + std::to_string(t.n_layers) + " layers x " +
                       std::to_string(t.n_kv_heads) + " heads x " + std::to_string(t.head_dim) + " x 2 B)");
  line("", human(static_cast<double>(config.kv_bytes_per_token(4)) * 1000, "B") + " per 1k tokens in f32");
  const int32_t rows = EngineOptions().prefill_chunk;
  const DType compute = config.dtype == DType::kF32 ? DType::kF32 : DType::kBF16;
  line("workspace", human(static_cast<double>(TextDecoder::workspace_bytes(t, compute, rows)), "B") + " for steps of " +
                        std::to_string(rows) + " rows in " + std::string(dtype_name(compute)));
  line("hidden states", human(static_cast<double>(t.hidden_size * dtype_bytes(compute)) * 1000, "B") +
                            " per 1k prompt tokens, where a prompt is computed layer by layer (fastv, pyramid_infer)");
  for (double cached : {0.0, 4096.0, 32768.0}) {
    if (cached > static_cast<double>(t.max_positions)) continue;
    line(cached == 0 ? "FLOPs per token" : "", human(t.layers_flops(cached) + 2 * t.output_weights(), "") + " with " +
                                                   std::to_string(static_cast<int>(cached)) + " tokens cached");
  }
}

}  // namespace

void add_info_command(CLI::App& app) {
  auto model_dir = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("info", "architecture, parameters, bytes, KV bytes and FLOPs per token");
  add_model_dir(*command, *model_dir);
  command->callback([model_dir] { run(*model_dir); });
}

}  // namespace vlcache
