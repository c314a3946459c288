#include "grammar/token_trie.h"

#include <algorithm>

#include "io/tokenizer/tokenizer.h"

namespace vlcache {
namespace {

std::string bytes_of(const Tokenizer& tokenizer, int32_t id) {
  if (tokenizer.is_special(id)) return kSpecialTokenByte + tokenizer.token_text(id);
  std::string bytes = tokenizer.token_bytes(id);
  if (bytes.find(kSpecialTokenByte) != bytes.npos) bytes.clear();  // byte-level vocabularies contain it
  return bytes;
}

std::vector<std::pair<std::string, int32_t>> all_bytes(const Tokenizer& tokenizer, int64_t n_ids) {
  std::vector<std::pair<std::string, int32_t>> tokens;
  for (int32_t id = 0; id < n_ids; ++id) tokens.emplace_back(bytes_of(tokenizer, id), id);
  return tokens;
}

}  // namespace

TokenTrie::TokenTrie(const Tokenizer& tokenizer, int64_t n_ids) : TokenTrie(all_bytes(tokenizer, n_ids)) {}

TokenTrie::TokenTrie(std::vector<std::pair<std::string, int32_t>> tokens) {
  std::ranges::sort(tokens);
  std::vector<int32_t> path;  // nodes of the previous text
  std::string_view before;
  const auto close = [&](size_t n) {
    for (; path.size() > n; path.pop_back()) {
      nodes_[static_cast<size_t>(path.back())].end = static_cast<int32_t>(nodes_.size());
    }
  };
  for (const auto& [text, id] : tokens) {
    if (static_cast<size_t>(id) >= bytes_.size()) bytes_.resize(static_cast<size_t>(id) + 1);
    bytes_[static_cast<size_t>(id)] = text;
    if (text.empty()) continue;
    depth_ = std::max(depth_, static_cast<int32_t>(text.size()));
    const auto [mine, other] = std::ranges::mismatch(text, before);
    const auto n_common = static_cast<size_t>(mine - text.begin());
    close(n_common);
    for (size_t i = n_common; i < text.size(); ++i) {
      path.push_back(static_cast<int32_t>(nodes_.size()));
      nodes_.push_back({0, static_cast<int32_t>(tokens_.size()), 0, static_cast<uint8_t>(text[i])});
    }
    tokens_.push_back(id);
    ++nodes_[static_cast<size_t>(path.back())].n_tokens;
    before = text;
  }
  close(0);
}

}  // namespace vlcache
