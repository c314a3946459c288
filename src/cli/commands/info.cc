// `vlcache info`: what a checkpoint is and costs, and how memory would be divided, before it is loaded.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "api/kv_codec_choice.h"
#include "api/reuse_choice.h"
#include "base/format.h"
#include "base/os/machine.h"
#include "cli/flags/codec_flags.h"
#include "cli/flags/command.h"
#include "engine/answer_text.h"
#include "engine/memory_plan.h"
#include "io/chat/chat_templates.h"
#include "io/quantised/module_tensors.h"
#include "io/quantised/quantised_tensors.h"
#include "io/safetensors.h"
#include "ops/factory.h"

namespace vlcache {
namespace {

struct InfoFlags {
  ModelFlags model;
  bool json = false, fingerprint = false;
};

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
  std::string format;            // empty: none
  int activation_bits = 16;      // that it asks for
  int64_t n = 0, n_widened = 0;  // widened: no packed form holds them
  std::set<std::string> forms;   // of the others
  double widened_bytes = 0, widened_parameters = 0;
};

CodedMatrices coded_matrices(const Checkpoint& checkpoint) {
  CodedMatrices all;
  const auto quantised = QuantisedTensors::open(checkpoint.config(), checkpoint.tensors());
  if (quantised == nullptr) return all;
  all.format = quantised->name(), all.activation_bits = quantised->activation_bits();
  for (const std::string& module : quantised->modules()) {
    const auto [n_out, n_in] = quantised->shape(module);
    const auto matrix = quantised->matrix(module, n_out, n_in);
    ++all.n;
    if (const QuantSource* codes = matrix->codes()) {
      all.forms.insert(codes->form().describe());
      continue;
    }
    ++all.n_widened, all.widened_parameters += static_cast<double>(n_out * n_in);
    for (const StoredTensor& tensor : matrix->tensors()) all.widened_bytes += static_cast<double>(tensor.bytes.size());
  }
  for (const std::string& stack : quantised->stacks()) {
    const auto [n, n_out, n_in] = quantised->stack_shape(stack);
    const auto matrix = quantised->stacked(stack, {.i = 0, .n = n}, n_out, n_in);
    all.n += n, all.n_widened += n, all.widened_parameters += static_cast<double>(n * n_out * n_in);
    for (const StoredTensor& tensor : matrix->tensors()) {
      all.widened_bytes += static_cast<double>(n) * static_cast<double>(tensor.bytes.size());
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

// Facts that need no loaded model.
struct Found {
  Checkpoint checkpoint;
  ModelConfig config;
  DType compute;
  bool shares_weights = false;
  std::unique_ptr<Backend> backend;
  int64_t stored_bytes = 0;
  Model::Listing listing;
};

// Bytes of workspace for steps of so many rows.
int64_t workspace_bytes(const Found& found, int64_t n_rows) {
  const TextConfig& t = found.config.text;
  const TextLayer most = t.widest();
  const bool quantised = std::ranges::any_of(found.listing.weights.matrices, &LoadedMatrix::quantised);
  const bool ordered = std::ranges::any_of(found.listing.weights.matrices, &LoadedMatrix::ordered);
  const int64_t n_in = std::max({t.hidden_size, most.q_size(), most.mlp_width()});
  return TextDecoder::workspace_bytes(t, found.compute, n_rows) +
         (quantised ? found.backend->quantised_scratch_bytes(n_rows, n_in, ordered) : 0);
}

double bits_per_weight(const LoadedMatrix& matrix) {
  return 8.0 * static_cast<double>(matrix.bytes) / static_cast<double>(matrix.n_parameters);
}

// Which matrices have which form, if not all have one.
void describe_forms(const std::vector<LoadedMatrix>& matrices) {
  std::vector<LoadedMatrix> sums;  // by form
  std::vector<int64_t> counts;
  for (const LoadedMatrix& matrix : matrices) {
    const auto sum = std::ranges::find(sums, matrix.form, &LoadedMatrix::form);
    const auto i = static_cast<size_t>(sum - sums.begin());
    if (sum == sums.end()) sums.push_back({.form = matrix.form}), counts.push_back(0);
    sums[i].n_parameters += matrix.n_parameters, sums[i].bytes += matrix.bytes, ++counts[i];
  }
  for (size_t i = 0; sums.size() > 1 && i < sums.size(); ++i) {
    line("", format("%s: %lld matrices, %.2f bits a weight (%s)", bytes(sums[i].bytes).c_str(),
                    static_cast<long long>(counts[i]), bits_per_weight(sums[i]), sums[i].form.c_str()));
  }
  if (const auto n = std::ranges::count(matrices, true, &LoadedMatrix::near_grid); n > 0) {
    line(
        "",
        format("in 8 bits instead of fewer: %lld near a grid of 4-bit values, as after a fine-tuning of 4-bit weights, "
               "which rounding would undo",
               static_cast<long long>(n)));
  }
}

// How memory is divided with these flags.
void describe_memory(const ModelFlags& flags, const WeightList& weights) {
  ModelFlags memory_alone = flags;
  memory_alone.cache = {};
  const EngineOptions options = engine_options(memory_alone);
  const int64_t usable = usable_memory(), kv = options.kv_memory_bytes;
  line("memory", bytes(usable) + " that machine and cgroup grant:");
  const WeightForms forms = weight_forms(flags);
  line("  weights", bytes(weights.bytes) +
                        (forms.quantised() ? " (language " + std::string(weight_choice_name(forms.text)) + ", vision " +
                                                 std::string(weight_choice_name(forms.vision)) + ")"
                                           : "") +
                        (shares_weights(forms, options.packed) ? ", shared with other processes" : ""));
  if (forms.quantised()) describe_forms(weights.matrices);
  line("  --cache-ram", bytes(options.cache_bytes) + " at most, of prefixes, KV of images and their embeddings" +
                            (flags.cache_ram.empty() ? " (a quarter of it)" : ""));
  line("  --kv-memory",
       bytes(kv > 0 ? kv : default_kv_bytes(usable, weights.bytes, options.cache_bytes)) +
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

// The tokens that its answers consist of, and the parts that the chat template accepts, as probes found.
void describe_texts(const Checkpoint& checkpoint, const ModelConfig& config) {
  try {
    const Tokenizer tokenizer = Tokenizer::load(checkpoint);
    const std::string tokens = answer_token_list(answer_tokens(config, tokenizer));
    if (!tokens.empty()) line("special tokens", "shown, as answers consist of them: " + tokens);
    for (const auto& [name, value] : ChatTemplates::load(checkpoint).findings(tokenizer)) line(name.c_str(), value);
  } catch (const Error& e) {  // the other lines are true all the same
    line("chat template", e.what());
  }
}

// What `--reuse auto` would do, and why.
void describe_reuse(const ModelFlags& flags, const Checkpoint& checkpoint) {
  const ReuseChoice choice({}, checkpoint, image_form(flags.cache), [&] { return answering_form(flags, checkpoint); });
  std::istringstream lines(choice.explanation());
  std::string text;
  for (const char* name = "--reuse auto"; std::getline(lines, text); name = "") line(name, text);
}

Found find(const ModelFlags& flags, bool hashed) {
  ModelFlags no_tiers = flags;
  no_tiers.cache = {};
  const EngineOptions options = engine_options(no_tiers);
  Found found{.checkpoint = checkpoint_of(flags), .config = {}, .compute = {}, .backend = {}, .listing = {}};
  found.config = Model::read_config(found.checkpoint);
  found.compute = compute_dtype_of(found.config, options.dtype);
  found.shares_weights = shares_weights(options.weights, options.packed);
  found.backend = make_backend(options.backend, found.compute, options.backend_options);
  const std::shared_ptr<const Safetensors> files = found.checkpoint.tensors();
  for (const std::string_view name : files->names()) {
    const SafetensorsEntry& entry = *files->find(name);
    found.stored_bytes += entry.end - entry.begin;
  }
  const std::string calibration = hashed ? calibration_digest(found.checkpoint, options) : "";
  found.listing = Model::list(found.checkpoint, found.config, *found.backend, options.weights, hashed, calibration);
  return found;
}

std::optional<std::string> fingerprint(const Found& found) {
  if (!found.listing.fingerprint) return std::nullopt;
  std::string text;
  for (const uint8_t byte : *found.listing.fingerprint) text += format("%02x", byte);
  return text;
}

// Of a token whose page is full.
int64_t kv_bytes(const Found& found, KvCodec codec) {
  if (!is_coded(codec)) return found.config.kv_bytes_per_token(codec == KvCodec::kF32 ? 4 : 2);
  int64_t bytes = 0;
  for (const TextLayer& layer : found.config.text.layers) {
    if (layer.shares_kv < 0) bytes += layer.n_kv_heads * found.backend->kv_page_bytes(codec, layer.head_dim);
  }
  return bytes / kPageSlots;
}

// The codecs that the model's pages may have.
std::vector<KvCodec> kv_codecs(const Found& found) {
  std::vector<KvCodec> codecs{KvCodec::kBF16, KvCodec::kF32};
  for (const KvCodec codec : coded_codecs(found.config.text)) codecs.push_back(codec);
  return codecs;
}

// The share of kv_bytes() of a token beyond the sliding windows: layers with one hold no more then.
double share_beyond_windows(const Found& found) {
  double all = 0, beyond = 0;
  for (const TextLayer& layer : found.config.text.layers) {
    if (layer.shares_kv >= 0) continue;
    const auto size = static_cast<double>(layer.n_kv_heads * layer.head_dim);
    all += size;
    beyond += layer.window > 0 ? 0 : size;
  }
  return all > 0 ? beyond / all : 1;
}

void print_info_json(const Found& found, const InfoFlags& flags) {
  const WeightList& weights = found.listing.weights;
  nlohmann::ordered_json matrices = nlohmann::ordered_json::array();
  for (const LoadedMatrix& matrix : weights.matrices) {
    matrices.push_back({{"module", matrix.name},
                        {"form", matrix.form},
                        {"bits_per_weight", bits_per_weight(matrix)},
                        {"bytes", matrix.bytes},
                        {"near_grid", matrix.near_grid},
                        {"parameters", matrix.n_parameters}});
  }
  const WeightForms forms = weight_forms(flags.model);
  nlohmann::ordered_json by_codec = nlohmann::ordered_json::object();
  for (const KvCodec codec : kv_codecs(found)) by_codec[std::string(kv_codec_name(codec))] = kv_bytes(found, codec);
  const KvCodec kv_codec = default_codec(flags.model, found.checkpoint);
  nlohmann::ordered_json json{
      {"architecture", found.config.model_type},
      {"parameters", weights.n_parameters},
      {"stored_bytes", found.stored_bytes},
      {"stored_dtype", dtype_name(found.config.dtype)},
      {"dtype", dtype_name(found.compute)},
      {"form", weight_choice_name(forms.text)},
      {"vision_form", weight_choice_name(forms.vision)},
      {"weight_bytes", weights.bytes},
      {"weights_shared", found.shares_weights},
      {"workspace_bytes", workspace_bytes(found, flags.model.prefill_chunk)},
      {"kv_codec", kv_codec_name(kv_codec)},
      {"kv_bytes_per_token", kv_bytes(found, kv_codec)},
      {"kv_bytes_per_token_by_codec", std::move(by_codec)},
      {"kv_bytes_per_token_beyond_windows",
       std::llround(static_cast<double>(kv_bytes(found, kv_codec)) * share_beyond_windows(found))},
      {"max_positions", found.config.text.max_positions},
      {"weights", std::move(matrices)},
      {"fingerprint", nullptr}};
  if (const auto print = fingerprint(found)) json["fingerprint"] = *print;
  std::printf("%s\n", json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
}

void describe_costs(const Found& found, int64_t rows) {
  const TextConfig& t = found.config.text;
  line("KV cache", human(static_cast<double>(found.config.kv_bytes_per_token(2)) * 1000, "B") +
                       " per 1k tokens in bf16 (2 x " + std::to_string(t.n_layers) + " layers x " +
                       std::to_string(t.layer(0).n_kv_heads) + " heads x " + std::to_string(t.layer(0).head_dim) +
                       " x 2 B)");
  for (const KvCodec codec : kv_codecs(found)) {
    if (codec == KvCodec::kBF16) continue;
    line("", human(static_cast<double>(kv_bytes(found, codec)) * 1000, "B") + " per 1k tokens in " +
                 std::string(kv_codec_name(codec)) +
                 (is_coded(codec) ? "; values stay: the first page, of " + std::to_string(kPageSlots) +
                                        " tokens, and the last 2 to 6"
                                  : ""));
  }
  if (const double share = share_beyond_windows(found); share < 1) {
    line("", format("%.0f %% of that for tokens beyond the sliding window: layers with one free the pages before it",
                    100 * share));
  }
  line("workspace", bytes(workspace_bytes(found, rows)) + " for steps of " + std::to_string(rows) + " rows in " +
                        std::string(dtype_name(found.compute)));
  line("hidden states", human(static_cast<double>(t.hidden_size * dtype_bytes(found.compute)) * 1000, "B") +
                            " per 1k prompt tokens, where a prompt is computed layer by layer (fastv, pyramid_infer)");
  for (const double cached : {0.0, 4096.0, 32768.0}) {
    if (cached > static_cast<double>(t.max_positions)) continue;
    line(cached == 0 ? "FLOPs per token" : "", human(t.layers_flops(cached) + 2 * t.output_weights(), "") + " with " +
                                                   std::to_string(static_cast<int>(cached)) + " tokens cached");
  }
}

void run(const InfoFlags& flags) {
  const Found found = find(flags.model, flags.fingerprint);
  if (flags.json) return print_info_json(found, flags);
  line("architecture", found.config.model_type);
  describe_text(found.config.text);
  if (found.config.vision) describe_vision(*found.config.vision);
  line("parameters", human(static_cast<double>(found.listing.weights.n_parameters), ""));
  const CodedMatrices coded = coded_matrices(found.checkpoint);
  line("weights", bytes(found.stored_bytes) + " as " + std::string(dtype_name(found.config.dtype)) +
                      (coded.format.empty() ? "" : " and codes"));
  describe_codes(coded, found.compute);
  if (const auto print = fingerprint(found)) line("fingerprint", *print);
  describe_costs(found, flags.model.prefill_chunk);
  line("--kv-codec auto", planned_codec(flags.model, found.checkpoint).reason);
  describe_texts(found.checkpoint, found.config);
  describe_memory(flags.model, found.listing.weights);
  if (found.config.vision) describe_reuse(flags.model, found.checkpoint);
}

}  // namespace

void add_info_command(const Command& app) {
  auto flags = std::make_shared<InfoFlags>();
  const Command command = app.add_command("info",
                                          "Print architecture, parameters, bytes, KV bytes and FLOPs per token, use of "
                                          "memory, and whether images are reused");
  add_model_flags(command, flags->model, {.policy = false});
  command.add("--json", flags->json, "Print one JSON object instead, with every loaded matrix");
  command.add("--fingerprint", flags->fingerprint,
              "Also print the hash that identifies the model in stored KV; reads all weights");
  command.run([flags] { run(*flags); });
}

}  // namespace vlcache
