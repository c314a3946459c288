// `vlcache info`: what a checkpoint is and costs, and how memory would be divided, before it is loaded.
#include <algorithm>
#include <cstdio>
#include <set>
#include <sstream>

#include "api/reuse_choice.h"
#include "base/format.h"
#include "base/machine.h"
#include "cli/flags/command.h"
#include "engine/memory_plan.h"
#include "io/chat/chat_templates.h"
#include "io/quantised/quantised_tensors.h"
#include "io/safetensors.h"

namespace vlcache {
namespace {

std::string human(double x, const char* unit) {
  const char* prefixes[] = {"", "k", "M", "G", "T"};
  int i = 0;
  for (; x >= 1000 && i < 4; ++i) x /= 1000;
  return format(i == 0 ? "%.0f %s%s" : "%.2f %s%s", x, prefixes[i], unit);
}

void line(const char* name, const std::string& value) { std::printf("%-16s %s\n", name, value.c_str()); }

std::string mlps(const TextConfig& t) {
  const auto has_experts = [](const TextLayer& l) { return l.n_experts > 0; };
  const auto sparse = std::ranges::find_if(t.layers, has_experts);
  const auto dense = std::ranges::find_if_not(t.layers, has_experts);
  const std::string mlp = dense == t.layers.end() ? "" : "MLP " + std::to_string(dense->ffn_size);
  if (sparse == t.layers.end()) return mlp;
  const std::string experts = std::to_string(sparse->n_experts) + " experts x " + std::to_string(sparse->ffn_size) +
                              " (" + std::to_string(sparse->n_experts_used) + " for each token)";
  if (mlp.empty()) return experts;
  return experts + " in " + std::to_string(std::ranges::count_if(t.layers, has_experts)) + " of " +
         std::to_string(t.n_layers) + " layers, " + mlp + " in the others";
}

void describe_text(const TextConfig& t) {
  const TextLayer& l = t.layer(0);  // all are alike, windows and MLPs aside
  std::string text = t.model_type + ", " + std::to_string(t.n_layers) + " layers x " + std::to_string(t.hidden_size) +
                     ", " + std::to_string(l.n_heads) + " query / " + std::to_string(l.n_kv_heads) + " kv heads x " +
                     std::to_string(l.head_dim) + ", " + mlps(t) + ", vocabulary " + std::to_string(t.vocab_size);
  if (t.tied_embeddings) text += " (tied)";
  line("language", text);
  line("context", std::to_string(t.max_positions) + " tokens");
  int32_t n_windowed = 0, window = 0;
  for (const TextLayer& layer : t.layers) {
    n_windowed += layer.window > 0;
    window = std::max(window, layer.window);
  }
  if (n_windowed > 0) {
    line("sliding window", std::to_string(window) + " tokens in " + std::to_string(n_windowed) + " of " +
                               std::to_string(t.n_layers) + " layers");
  }
}

void describe_vision(const VisionConfig& v) {
  line("vision", v.name + ", " + std::to_string(v.n_layers) + " layers x " + std::to_string(v.hidden_size) + ", " +
                     std::to_string(v.n_heads) + " heads, " +
                     (v.traits.any_grid ? "images of any size" : "tiles of " + std::to_string(v.image_size) + " px") +
                     ", patches of " + std::to_string(v.patch_size) + " px" +
                     (v.merge > 1 ? ", " + std::to_string(v.merge * v.merge) + " of them a token" : ""));
}

std::string bytes(int64_t n) { return human(static_cast<double>(n), "B"); }

void describe_tier(const char* flag, const std::string& place, KvTier& tier, const std::string& limit) {
  int64_t held = 0;
  const std::vector<ListedRecord> records = tier.list();
  for (const ListedRecord& record : records) held += record.bytes;
  const TierStats stats = tier.stats();
  line(flag, place + ": " +
                 (stats.n_failed() > 0 ? stats.last_problem
                                       : std::to_string(records.size()) + " records, " + bytes(held) + limit));
}

// The matrices that a checkpoint stores as codes.
struct CodedMatrices {
  std::string format;                              // empty: none
  int activation_bits = 16;                        // that it asks for
  int64_t n = 0, n_parameters = 0, n_widened = 0;  // widened: no packed form holds them
  std::set<std::string> forms;                     // of the others
  std::set<std::string> tensors;                   // what they are made of
  double widened_bytes = 0, widened_parameters = 0;
  double kept_bytes = 0, kept_parameters = 0;
};

CodedMatrices coded_matrices(const Checkpoint& checkpoint) {
  CodedMatrices all;
  const auto quantised = QuantisedTensors::open(checkpoint.config(), checkpoint.tensors());
  if (quantised == nullptr) return all;
  all.format = quantised->name(), all.activation_bits = quantised->activation_bits();
  for (const std::string& module : quantised->modules()) {
    const auto [n_out, n_in] = quantised->shape(module);
    const auto matrix = quantised->matrix(module, n_out, n_in);
    ++all.n, all.n_parameters += n_out * n_in;
    const auto n = static_cast<double>(n_out * n_in);
    double stored = 0;
    for (const StoredTensor& tensor : matrix->tensors()) {
      all.tensors.insert(tensor.name);
      stored += static_cast<double>(tensor.bytes.size());
    }
    if (const QuantSource* codes = matrix->codes()) {
      all.forms.insert(codes->form().describe());
      all.kept_bytes += n * codes->form().bits_per_weight(n_in) / 8, all.kept_parameters += n;
    } else {
      ++all.n_widened, all.widened_bytes += stored, all.widened_parameters += n;
    }
  }
  return all;
}

void describe_codes(const CodedMatrices& coded, DType compute) {
  if (coded.format.empty()) return;
  std::string forms;
  for (const std::string& form : coded.forms) forms += (forms.empty() ? "" : " | ") + form;
  const int64_t kept = coded.n - coded.n_widened;
  line("quantised", coded.format + ": " + std::to_string(coded.n) + " matrices" +
                        (kept == 0 ? "" : ", " + std::to_string(kept) + " kept as " + forms));
  if (coded.n_widened > 0) {
    const double times = coded.widened_parameters * static_cast<double>(dtype_bytes(compute)) / coded.widened_bytes;
    line("", std::to_string(coded.n_widened) + " become " + std::string(dtype_name(compute)) +
                 format(", %.1f times the file's bytes: no packed form holds them; ", times) +
                 "--weights int8 or int4 quantise them again");
  }
  if (coded.activation_bits < 16) {
    line("", "activations in " + std::to_string(coded.activation_bits) +
                 " bits, as the checkpoint asks for, are not computed: they keep 15 bits or more");
  }
}

// Bytes of the weights in memory, with the matrices in the forms that the flags ask for.
int64_t loaded_bytes(const ModelConfig& config, const WeightForms& forms, const CodedMatrices& coded,
                     int64_t parameters, DType compute) {
  const auto dense = static_cast<double>(dtype_bytes(compute));
  double total = static_cast<double>(parameters) * dense;
  if (forms.text == WeightChoice::kAuto) total += coded.kept_bytes - coded.kept_parameters * dense;
  const auto put = [&](WeightChoice choice, MatrixRole role, int64_t n_out, int64_t n_in) {
    const std::optional<QuantForm> form = form_of(choice, role);
    if (form) total += static_cast<double>(n_out * n_in) * (form->bits_per_weight(n_in) / 8 - dense);
  };
  const TextConfig& t = config.text;
  const int64_t h = t.hidden_size;
  for (const TextLayer& l : t.layers) {
    const int64_t n_mlps = std::max<int64_t>(1, l.n_experts), gates = t.gated_mlp ? 2 : 1;
    put(forms.text, MatrixRole::kUsual, l.q_size() + l.kv_size(), h);
    put(forms.text, MatrixRole::kSensitive, l.kv_size(), h);
    put(forms.text, MatrixRole::kUsual, h, l.q_size());
    put(forms.text, MatrixRole::kUsual, n_mlps * gates * l.ffn_size, h);
    put(forms.text, MatrixRole::kSensitive, n_mlps * h, l.ffn_size);
  }
  put(forms.text, MatrixRole::kTokens, t.vocab_size * (t.tied_embeddings ? 1 : 2), h);
  if (config.vision) {
    const VisionConfig& v = *config.vision;
    const int64_t n_layers = v.n_used_layers(), f = v.ffn_size;
    put(forms.vision, MatrixRole::kUsual, n_layers * (4 * v.hidden_size + (v.traits.gated_mlp ? 2 : 1) * f),
        v.hidden_size);
    put(forms.vision, MatrixRole::kUsual, n_layers * v.hidden_size, f);
  }
  return static_cast<int64_t>(total);
}

// How memory is divided with these flags.
void describe_memory(const ModelFlags& flags, int64_t weights) {
  ModelFlags memory_alone = flags;
  memory_alone.cache = {};
  const EngineOptions options = engine_options(memory_alone);
  const int64_t usable = usable_memory(), kv = options.kv_memory_bytes;
  line("memory", bytes(usable) + " that machine and cgroup grant:");
  const WeightForms forms = weight_forms(flags);
  const auto is_quantised = [](WeightChoice c) { return c != WeightChoice::kAuto && c != WeightChoice::kDense; };
  const bool quantised = is_quantised(forms.text) || is_quantised(forms.vision);
  line("  weights", bytes(weights) + (quantised ? " (language " + std::string(weight_choice_name(forms.text)) +
                                                      ", vision " + std::string(weight_choice_name(forms.vision)) + ")"
                                                : ""));
  line("  --cache-ram", bytes(options.cache_bytes) + " at most, of prefixes, KV of pictures and their embeddings" +
                            (flags.cache_ram.empty() ? " (a quarter of it)" : ""));
  line("  --kv-memory",
       bytes(kv > 0 ? kv : default_kv_bytes(usable, weights, options.cache_bytes)) +
           " at most, of running requests, and of prefixes once more" +
           (kv > 0 ? "" : " (three quarters of what weights and cache leave, a sixteenth of all at least)"));
  if (!flags.cache.disk.empty() && !std::filesystem::exists(disk_folder(flags.cache))) {
    line("--cache-disk", disk_folder(flags.cache).string() + ": not there yet");
  } else if (!flags.cache.disk.empty()) {
    const auto tier = open_disk_tier(flags.cache);
    describe_tier("--cache-disk", disk_folder(flags.cache).string(), *tier, " of at most " + bytes(tier->max_bytes()));
  }
  if (!flags.cache.redis.empty()) {
    describe_tier("--cache-redis", parse_redis_url(flags.cache.redis, flags.cache.redis_password_file).shown(),
                  *open_redis_tier(flags.cache), "");
  }
}

// What the chat template takes, as probes found it.
void describe_template(const Checkpoint& checkpoint) {
  try {
    const Tokenizer tokenizer = Tokenizer::load(checkpoint);
    for (const auto& [name, value] : ChatTemplates::load(checkpoint).findings(tokenizer)) line(name.c_str(), value);
  } catch (const Error& e) {  // the other lines are true all the same
    line("chat template", e.what());
  }
}

// What `--reuse auto` would do, and why.
void describe_reuse(const ModelFlags& flags, const Checkpoint& checkpoint) {
  std::istringstream lines(ReuseChoice({}, checkpoint, image_form(flags.cache)).explanation());
  std::string text;
  for (const char* name = "--reuse auto"; std::getline(lines, text); name = "") line(name, text);
}

void run(const ModelFlags& flags) {
  const Checkpoint checkpoint = checkpoint_of(flags);
  const ModelConfig config = Model::read_config(checkpoint);
  const std::shared_ptr<const Safetensors> weights = checkpoint.tensors();
  const CodedMatrices coded = coded_matrices(checkpoint);
  int64_t parameters = coded.n_parameters, stored_bytes = 0;
  for (std::string_view name : weights->names()) {
    const SafetensorsEntry& entry = *weights->find(name);
    stored_bytes += entry.end - entry.begin;
    if (coded.tensors.contains(std::string(name))) continue;
    int64_t n = 1;
    for (int64_t d : entry.shape) n *= d;
    parameters += n;
  }
  const TextConfig& t = config.text;
  line("architecture", config.model_type);
  describe_text(t);
  if (config.vision) describe_vision(*config.vision);
  line("parameters", human(static_cast<double>(parameters), ""));
  line("weights", bytes(stored_bytes) + " as " + std::string(dtype_name(config.dtype)) +
                      (coded.format.empty() ? "" : " and codes"));
  const DType own = config.dtype == DType::kF32 ? DType::kF32 : DType::kBF16;
  const DType compute = flags.dtype == "auto" ? own : flags.dtype == "f32" ? DType::kF32 : DType::kBF16;
  describe_codes(coded, compute);
  line("KV cache", human(static_cast<double>(config.kv_bytes_per_token(2)) * 1000, "B") +
                       " per 1k tokens in bf16 (2 x " + std::to_string(t.n_layers) + " layers x " +
                       std::to_string(t.layer(0).n_kv_heads) + " heads x " + std::to_string(t.layer(0).head_dim) +
                       " x 2 B)");
  line("", human(static_cast<double>(config.kv_bytes_per_token(4)) * 1000, "B") + " per 1k tokens in f32");
  const int32_t rows = EngineOptions().prefill_chunk;
  line("workspace", human(static_cast<double>(TextDecoder::workspace_bytes(t, compute, rows)), "B") + " for steps of " +
                        std::to_string(rows) + " rows in " + std::string(dtype_name(compute)));
  line("hidden states", human(static_cast<double>(t.hidden_size * dtype_bytes(compute)) * 1000, "B") +
                            " per 1k prompt tokens, where a prompt is computed layer by layer (fastv, pyramid_infer)");
  for (double cached : {0.0, 4096.0, 32768.0}) {
    if (cached > static_cast<double>(t.max_positions)) continue;
    line(cached == 0 ? "FLOPs per token" : "", human(t.layers_flops(cached) + 2 * t.output_weights(), "") + " with " +
                                                   std::to_string(static_cast<int>(cached)) + " tokens cached");
  }
  describe_template(checkpoint);
  describe_memory(flags, loaded_bytes(config, weight_forms(flags), coded, parameters, compute));
  if (config.vision) describe_reuse(flags, checkpoint);
}

}  // namespace

void add_info_command(const Command& app) {
  auto flags = std::make_shared<ModelFlags>();
  const Command command = app.add_command(
      "info",
      "architecture, parameters, bytes, KV bytes and FLOPs per token, who holds what of the memory, and whether "
      "pictures are reused");
  add_model_flags(command, *flags, {.policy = false});
  command.run([flags] { run(*flags); });
}

}  // namespace vlcache
