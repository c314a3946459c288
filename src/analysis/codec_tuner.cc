// Ordinary requests, each along the answer of the first.
#include "analysis/codec_tuner.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "api/request_builder.h"
#include "base/error.h"
#include "engine/scheduler/scheduler.h"
#include "io/image/image.h"
#include "policy/registry.h"

namespace vlcache {
namespace {

// Whether the row of this token reads codes where pages become codes.
bool reads_codes(int32_t token) { return coded_end(token) > 1; }

// The first row of the prompt that is measured.
int32_t first_row(const Prompt& prompt) {
  int32_t first = std::max(0, prompt.n_tokens() - 1 - CodecTuner::kMostOfPrompt);
  while (!reads_codes(first)) ++first;
  return first;
}

// Whether the row's next token is text: within an image the distribution means nothing.
bool precedes_text(const Prompt& prompt, int32_t row) {
  return std::ranges::none_of(prompt.spans,
                              [&](const ImageSpan& span) { return span.begin <= row + 1 && row + 1 < span.end; });
}

}  // namespace

Prompt CodecTuner::prompt(const EvalSample& sample) const {
  std::vector<Image> images;
  for (const std::filesystem::path& path : sample.images) images.push_back(load_image(path));
  return prepare_chat(engine_, conversation(sample, 0), std::move(images));
}

// The distributions along `answer`, which the first reading draws.
std::vector<TokenDistribution> CodecTuner::along(const Prompt& prompt, std::vector<int32_t>& answer, bool is_first,
                                                 const Way& way) {
  std::vector<TokenDistribution> found;
  const int32_t first = first_row(prompt), last = prompt.n_tokens() - 1;
  std::vector<Request> requests;
  std::vector<size_t> n_chosen(way.n_together, 0);
  for (size_t copy = 0; copy < n_chosen.size(); ++copy) {
    Request& request = requests.emplace_back();
    request.prompt = prompt.copy();
    request.policy = parse_policy("full");
    request.kv_codec = way.codec;
    request.options.max_tokens = is_first ? max_tokens_ : static_cast<int32_t>(answer.size());
    request.options.ignore_eos = !is_first;
    request.callbacks.choose = [&, copy](std::span<float> logits) {
      const size_t at = n_chosen[copy]++;
      if (copy == 0 && reads_codes(last + static_cast<int32_t>(at))) found.emplace_back(logits);
      if (is_first) answer.push_back(likeliest(logits));
      return answer[at];
    };
    if (copy > 0) continue;
    request.callbacks.on_logits = [&](int32_t begin, const Tensor& logits) {
      for (int64_t i = 0; i < logits.rows(); ++i) {
        const int32_t row = begin + static_cast<int32_t>(i);
        if (row < first || row >= last || !precedes_text(prompt, row)) continue;
        found.emplace_back(std::span(logits.row<float>(i), static_cast<size_t>(logits.row_size())));
      }
    };
  }
  for (const GenerateResult& result : generate(engine_, std::move(requests), {.prefill_chunk = way.prefill_chunk})) {
    if (result.error) throw *result.error;
  }
  return found;
}

CodecTuner::Text CodecTuner::read(const Prompt& prompt) {
  Text text;
  text.tokens = along(prompt, text.answer, /*is_first=*/true, {});
  return text;
}

TokenDivergences CodecTuner::compare(const Prompt& prompt, const Text& text, const Way& way) {
  std::vector<int32_t> answer = text.answer;
  const std::vector<TokenDistribution> found = along(prompt, answer, /*is_first=*/false, way);
  CHECK(found.size() == text.tokens.size());
  TokenDivergences divergences;
  for (size_t i = 0; i < found.size(); ++i) divergences.add(text.tokens[i], found[i]);
  return divergences;
}

}  // namespace vlcache
