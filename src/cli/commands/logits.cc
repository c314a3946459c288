// `vlcache logits`: the logits of every prompt token, for comparison with other implementations.
#include <algorithm>
#include <cstdio>

#include "base/error.h"
#include "cli/flags/command.h"
#include "cli/flags/media_flags.h"
#include "cli/flags/request.h"
#include "cli/terminal/progress.h"
#include "engine/scheduler/scheduler.h"
#include "io/safetensors.h"

namespace vlcache {
namespace {

struct LogitsFlags {
  ModelFlags model;
  std::string prompt;
  std::vector<int32_t> tokens;
  MediaFlags media;
  bool raw = false;
  std::string pdf_text = "off";
  int n_last = 0;  // 0: all
  std::string output;
};

void run(const LogitsFlags& flags) {
  if (flags.prompt.empty() == flags.tokens.empty())
    throw Error(ErrorCode::kInput, "logits: expected either a PROMPT or --tokens");
  if (!flags.tokens.empty() && !(flags.media.images.empty() && flags.media.videos.empty()))
    throw Error(ErrorCode::kInput, "logits: -i and -v go with a PROMPT, not with --tokens");
  make_folder_of(flags.output);
  const Checkpoint checkpoint = checkpoint_of(flags.model);
  const std::vector<VideoPath> videos = probed_videos(flags.media.videos, checkpoint);
  Request request;
  request.policy = chosen_policy(flags.model, checkpoint);
  const std::unique_ptr<Engine> engine = load_engine(flags.model, checkpoint, {&request.policy, 1});
  request.prompt = flags.tokens.empty() ? prepare(*engine, {.prompt = flags.prompt,
                                                            .images = flags.media.images,
                                                            .videos = videos,
                                                            .order = flags.media.order(),
                                                            .raw = flags.raw,
                                                            .pdf_text = flags.pdf_text == "on"})
                                        : engine->prepare_tokens(flags.tokens);
  if (request.policy->n_seen(request.prompt.shape()) < request.prompt.n_tokens()) {
    throw Error(ErrorCode::kInput,
                "logits: '" + request.policy->name() + "' does not compute every token of this prompt");
  }
  std::vector<int32_t> ids(request.prompt.tokens);
  const int64_t n = request.prompt.n_tokens(), vocab = engine->model().config().text.vocab_size;
  const int64_t n_kept = flags.n_last > 0 ? std::min<int64_t>(flags.n_last, n) : n, dropped = n - n_kept;
  Buffer storage(n_kept * vocab * dtype_bytes(DType::kF32));
  const Tensor logits(storage.data(), DType::kF32, {n_kept, vocab});
  ProgressBar bar("computing");
  request.options.max_tokens = 0;
  request.callbacks.on_progress = [&](const PromptProgress& p) { bar.show(p.share, p.seconds_left); };
  request.callbacks.on_logits = [&](int32_t first, const Tensor& rows) {
    for (int64_t i = std::max<int64_t>(0, dropped - first); i < rows.rows(); ++i)
      std::copy_n(rows.row<float>(i), vocab, logits.row<float>(first + i - dropped));
  };
  generate(*engine, std::move(request));
  const NamedTensor tensors[] = {{"logits", logits}, {"token_ids", Tensor(ids.data(), DType::kI32, {n})}};
  write_safetensors(flags.output, tensors);
  bar.clear();
  std::fprintf(stderr, "%s: logits [%lld, %lld] f32, token_ids [%lld] i32\n", flags.output.c_str(),
               static_cast<long long>(n_kept), static_cast<long long>(vocab), static_cast<long long>(n));
}

}  // namespace

void add_logits_command(const Command& app) {
  auto flags = std::make_shared<LogitsFlags>();
  const Command command = app.add_command("logits", "Write the logits of every prompt token to a safetensors file");
  add_model_flags(command, flags->model);
  command.add("PROMPT", flags->prompt, "Text of the prompt (default: --tokens)");
  command.add("--tokens", flags->tokens, "Token ids instead of text: 1,2,3 (default: PROMPT)")
      .delimiter(',')
      .value_name("IDS");
  add_media_flags(command, flags->media, "It is placed before the text, or at <image:N> (<video:N>) in the prompt");
  command.add("--pdf-text", flags->pdf_text, request_field("pdf_text").help).one_of({"on", "off"}).show_default();
  command
      .add("--last", flags->n_last,
           "Write only the logits of the prompt's last N tokens; of all tokens, a long prompt has many gigabytes (0: "
           "all)")
      .range(0, 1 << 30)
      .value_name("N")
      .show_default();
  command.add("--raw", flags->raw, "Use the prompt as given, without the chat template");
  command
      .add("-o,--output", flags->output,
           "Safetensors file: logits [n_tokens or N, vocab] f32 and token_ids [n_tokens] i32")
      .value_name("FILE")
      .required();
  command.run([flags] { run(*flags); });
}

}  // namespace vlcache
