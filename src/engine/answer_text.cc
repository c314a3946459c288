#include "engine/answer_text.h"

#include <algorithm>

#include "engine/engine.h"
#include "io/tokenizer/tokenizer.h"
#include "model/family.h"

namespace vlcache {

std::vector<std::string> answer_tokens(const ModelConfig& config, const Tokenizer& tokenizer) {
  std::vector<std::string> found;
  for (const std::string_view token : config.family->answer_tokens) {
    const int32_t id = tokenizer.token_id(token);
    if (id >= 0 && tokenizer.is_special(id)) found.emplace_back(token);
  }
  return found;
}

std::vector<std::string> answer_tokens(const Engine& engine) {
  if (!engine.has_tokenizer()) return {};
  return answer_tokens(engine.model().config(), engine.tokenizer());
}

std::string answer_token_list(std::span<const std::string> tokens) {
  std::string list;
  for (const std::string& token : tokens) list += (list.empty() ? "" : ", ") + token;
  return list;
}

std::string answer_text(const Engine& engine, std::span<const int32_t> tokens) {
  const Tokenizer& tokenizer = engine.tokenizer();
  if (answer_tokens(engine).empty()) return tokenizer.decode(tokens, /*skip_special_tokens=*/true);
  const std::vector<int32_t> ends = engine.stop_token_ids();
  std::vector<int32_t> shown(tokens.begin(), tokens.end());
  std::erase_if(shown, [&](int32_t id) { return std::ranges::find(ends, id) != ends.end(); });
  return tokenizer.decode(shown, /*skip_special_tokens=*/false);
}

}  // namespace vlcache
