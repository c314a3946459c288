#include "cli/bench/bench_prompt.h"

#include "base/splitmix.h"

namespace vlcache {
namespace {

int32_t random_text_token(const ModelConfig& config, uint64_t& state) {
  while (true) {
    const auto id =
        static_cast<int32_t>(splitmix(state += kSplitmixStep) % static_cast<uint64_t>(config.text.vocab_size));
    if (!config.is_vision_token(id)) return id;
  }
}

}  // namespace

Prompt random_prompt_around(const Model& model, std::span<const ImageTiles> images, int32_t n_text, uint64_t& before,
                            uint64_t& after) {
  const ModelConfig& config = model.config();
  Prompt prompt;
  for (int32_t i = 0; i < n_text / 2; ++i) prompt.tokens.push_back(random_text_token(config, before));
  for (size_t i = 0; i < images.size(); ++i) {
    const auto n = static_cast<int32_t>(model.n_image_tokens(images[i]));
    const int32_t begin = prompt.n_tokens();
    prompt.tokens.insert(prompt.tokens.end(), static_cast<size_t>(n), static_cast<int32_t>(config.image_token_id));
    prompt.spans.push_back({.begin = begin, .end = begin + n, .image = static_cast<int32_t>(i)});
    prompt.images.push_back(images[i].copy());
  }
  for (int32_t i = n_text / 2; i < n_text; ++i) prompt.tokens.push_back(random_text_token(config, after));
  prompt.positions = place_tokens(config, prompt.n_tokens(), prompt.spans, prompt.images);
  return prompt;
}

}  // namespace vlcache
