// `vlcache logits`: the logits of every prompt token, for comparing with any other implementation.
#include <cstdio>

#include "base/error.h"
#include "cli/command.h"
#include "cli/progress.h"
#include "cli/request.h"
#include "io/safetensors.h"

namespace vlcache {
namespace {

struct LogitsFlags {
  ModelFlags model;
  std::string prompt;
  std::vector<int32_t> tokens;
  std::vector<std::string> images;
  bool raw = false;
  std::string output;
};

void run(const LogitsFlags& flags) {
  if (flags.prompt.empty() == flags.tokens.empty())
    throw Error(ErrorCode::kInput, "logits: expected either a PROMPT or --tokens");
  if (!flags.tokens.empty() && !flags.images.empty())
    throw Error(ErrorCode::kInput, "logits: -i goes with a PROMPT, not with --tokens");
  const CacheMode mode = parse_cache_mode(flags.model.kv_mode);
  const std::unique_ptr<Engine> engine = load_engine(flags.model);
  Prompt prompt = flags.tokens.empty()
                      ? prepare(*engine, {.prompt = flags.prompt, .images = flags.images, .raw = flags.raw})
                      : engine->prepare_tokens(flags.tokens);
  Sequence sequence = engine->new_sequence(std::move(prompt), mode);
  if (mode.window == 0 && sequence.n_tokens() > engine->max_positions()) {
    throw Error(ErrorCode::kInput, "the prompt has " + std::to_string(sequence.n_tokens()) +
                                       " tokens; the model's context is " + std::to_string(engine->max_positions()));
  }
  engine->encode_images(sequence);

  const int64_t n = sequence.n_tokens(), vocab = engine->model().config().text.vocab_size;
  Buffer storage(n * vocab * dtype_bytes(DType::kF32));
  const Tensor logits(storage.data(), DType::kF32, {n, vocab});
  ProgressBar bar("computing");
  for (int64_t done = 0; done < n;) {
    const int32_t rows = static_cast<int32_t>(std::min<int64_t>(n - done, engine->options().prefill_chunk));
    const StepItem item{&sequence, rows, /*all_logits=*/true};
    const Tensor chunk = engine->stepper().step({&item, 1})[0];
    std::copy_n(chunk.as<float>(), chunk.numel(), logits.row<float>(done));
    done += rows;
    bar.update(done, n);
  }
  std::vector<int32_t> ids(sequence.prompt().tokens);
  const NamedTensor tensors[] = {{"logits", logits}, {"token_ids", Tensor(ids.data(), DType::kI32, {n})}};
  write_safetensors(flags.output, tensors);
  bar.clear();
  std::fprintf(stderr, "%s: logits [%lld, %lld] f32, token_ids [%lld] i32\n", flags.output.c_str(),
               static_cast<long long>(n), static_cast<long long>(vocab), static_cast<long long>(n));
}

}  // namespace

void add_logits_command(CLI::App& app) {
  auto flags = std::make_shared<LogitsFlags>();
  CLI::App* command = app.add_subcommand("logits", "write the logits of every prompt token to a safetensors file");
  add_model_flags(*command, flags->model);
  command->add_option("PROMPT", flags->prompt, "text");
  command->add_option("--tokens", flags->tokens, "token ids instead of text: 1,2,3")->delimiter(',')->type_name("IDS");
  command->add_option("-i,--image", flags->images, "a picture (one per use)")
      ->type_name("FILE")
      ->allow_extra_args(false);
  command->add_flag("--raw", flags->raw, "take the prompt as it is, without the chat template");
  command->add_option("-o,--output", flags->output, "tensors logits [n_tokens, vocab] f32 and token_ids [n_tokens] i32")
      ->type_name("FILE")
      ->required();
  command->callback([flags] { run(*flags); });
}

}  // namespace vlcache
