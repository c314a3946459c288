// A sub-command is a function that registers its flags and, when chosen, runs. This file has what all of them share.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>

#include "cli/flags/cache_flags.h"
#include "cli/flags/flags.h"
#include "cli/terminal/tier_warnings.h"
#include "engine/engine.h"
#include "io/checkpoint/checkpoint.h"
#include "policy/registry.h"

namespace vlcache {

// Flags that every command with a model has.
// size: a member for each flag.
struct ModelFlags {
  std::string model_dir, tokenizer_dir;
  std::string dtype = "auto";  // auto, f32, bf16
  std::string weights = "auto", vision_weights = "auto";
  std::string calibrate;     // a file of requests; empty: none
  std::string packed_cache;  // DIR, DIR,BYTES or off; empty: the user's cache folder
  bool packed_share = false;
  std::string activations = "auto";  // auto, int8
  std::string kv_codec = "auto";     // parse_kv_codec
  std::string kv_dtype = "auto";     // its older form: auto, f32, bf16
  std::string kv;                    // empty: full, or auto with a budget
  std::string kv_budget;             // empty: the default of policies that take one
  std::string backend = "auto";
  std::string max_isa = "auto";
  bool special_tokens_in_text = false;
  int threads = 0;  // 0: usable_cpus()
  int prefill_chunk = 512;
  std::string shared_attention = "on";
  std::string kv_memory = "0";  // 0: the rest, as memory_plan.h has it
  std::string cache_ram;        // empty: a quarter of the machine's
  CacheOptions cache;
};

// -m and --tokenizer alone, for commands that read a checkpoint without running it.
void add_model_dir(const Command& command, std::string& model_dir, std::string& tokenizer_dir);

// The checkpoint of -m, with the tokenizer of --tokenizer.
inline Checkpoint checkpoint_of(const ModelFlags& flags) { return Checkpoint(flags.model_dir, flags.tokenizer_dir); }

// Which flags of a model a command has.
struct ModelFlagSet {
  bool needs_model = true;  // -m is required
  bool policy = true;       // one --kv with one --kv-budget
};
void add_model_flags(const Command& command, ModelFlags& flags, const ModelFlagSet& set = {});

// The dtype that --dtype names; none: auto.
std::optional<DType> asked_dtype(const ModelFlags& flags);

// The forms of weights that the flags ask for.
WeightForms weight_forms(const ModelFlags& flags);

// Model::weights_form of the model that the flags load.
std::string weights_form(const ModelFlags& flags, const Checkpoint& checkpoint);

// Checks the flags, sets the number of threads and returns the engine's options (without progress).
EngineOptions engine_options(const ModelFlags& flags);
// The same for a model, whose kv_codec.json says what `auto` is for KV; if that is not followed, a line on stderr says
// why.
EngineOptions engine_options(const ModelFlags& flags, const Checkpoint& checkpoint);

// The longest time that a command uses at its end to store the KV of prompts for later runs.
inline constexpr std::chrono::seconds kSaveTime{30};

// Prints how a very small --kv-budget was understood, and what to expect. n_prompt: tokens; 0: not known yet.
void warn_of_small_budget(const ModelFlags& flags, int32_t n_prompt);

// A policy as the user wrote it, with present names (with_present_names): of an earlier one a line on stderr tells,
// once per process.
std::string policy_text(const std::string& given);

// The policy of --kv and --kv-budget; a choice that they leave open is reported in a line on stderr.
PolicyPtr chosen_policy(const ModelFlags& flags, const Checkpoint& checkpoint);

// Loads with a progress bar on a terminal. A model that does not suit one of `policies` is refused before its weights
// are read (check_suits). KV of several policies, which are compared, has one codec.
//   warnings: is given the engine's tiers to watch.
std::unique_ptr<Engine> load_engine(const ModelFlags& flags, const Checkpoint& checkpoint,
                                    std::span<const PolicyPtr> policies = {}, TierWarnings* warnings = nullptr);

// interrupted() returns true from the first Ctrl-C (or SIGTERM) after watch_interrupts(): running generations end as
// "cancelled". A second one kills the process.
void watch_interrupts();
bool interrupted();

// While it exists, the process ends half a second after Ctrl-C with exit code 130, wherever it is: for commands that
// store their results as they arrive, so that a step of seconds need not be awaited. `message` goes to stderr.
class ExitAfterInterrupt {
 public:
  explicit ExitAfterInterrupt(std::string message);
  ~ExitAfterInterrupt();
  ExitAfterInterrupt(const ExitAfterInterrupt&) = delete;
  ExitAfterInterrupt& operator=(const ExitAfterInterrupt&) = delete;

 private:
  std::string message_;
  std::atomic<bool> over_{false};
  std::thread thread_;
};

// Thrown by a command that Ctrl-C ended, after it has printed its results: exit code 130, the shells' convention.
struct Interrupted {};
// Thrown by a command after it has printed its results, some of which are errors: exit code 1.
struct LinesFailed {};

// Makes the folder in which a file is to be written, before anything is computed for it. Throws Error(kIo) if the file
// could not be written there, kInput for a folder.
void make_folder_of(const std::filesystem::path& path);
// Makes its folder, too. Throws Error(kIo) that names the file.
void write_file(const std::filesystem::path& path, std::string_view text);

// Each adds its sub-command, of commands/ or bench/, to the app. Commands run as callbacks of the parse.
void add_run_command(const Command& app);
void add_chat_command(const Command& app);
void add_serve_command(const Command& app);
void add_logits_command(const Command& app);
void add_tokenize_commands(const Command& app);
void add_info_command(const Command& app);
void add_bench_command(const Command& app);
void add_bench_reuse_command(const Command& bench_command);
void add_eval_command(const Command& app);
void add_inspect_command(const Command& app);
void add_policies_command(const Command& app);
void add_cache_command(const Command& app);
void add_simulate_command(const Command& app);
void add_tune_command(const Command& app);
void add_tune_reuse_command(const Command& tune_command);
void add_tune_codec_command(const Command& tune_command);
void add_verify_command(const Command& app);

}  // namespace vlcache
