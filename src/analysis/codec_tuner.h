// CodecTuner measures what a codec of KV changes along texts: the likeliest tokens, and how far the distributions are
// apart.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "analysis/dataset.h"
#include "base/kv_codec_name.h"
#include "base/numeric/divergence.h"
#include "engine/engine.h"
#include "engine/request.h"

namespace vlcache {

class CodecTuner {
 public:
  // max_tokens: of an answer. The engine's own KV stays values.
  CodecTuner(Engine& engine, int32_t max_tokens) : engine_(engine), max_tokens_(max_tokens) {}

  // A prompt's greedy answer with KV that stays values, and the distributions over the tokens whose attention would
  // read codes: of the last text of the prompt (kMostOfPrompt tokens at most) and of the answer.
  struct Text {
    std::vector<int32_t> answer;
    std::vector<TokenDistribution> tokens;
  };
  // The sample's first question. Throws what preparing a prompt throws.
  Prompt prompt(const EvalSample& sample) const;
  // Throws what computing a prompt throws.
  Text read(const Prompt& prompt);

  // How the same text is computed once more.
  struct Way {
    std::optional<KvCodec> codec;  // none: KV stays values
    int32_t prefill_chunk = 0;     // 0: the engine's
    size_t n_together = 1;         // copies in one batch; the first is compared
  };
  TokenDivergences compare(const Prompt& prompt, const Text& text, const Way& way);

  static constexpr int32_t kMostOfPrompt = 512;

 private:
  std::vector<TokenDistribution> along(const Prompt& prompt, std::vector<int32_t>& answer, bool is_first,
                                       const Way& way);

  Engine& engine_;
  int32_t max_tokens_;
};

}  // namespace vlcache
