// TokenTrie: the bytes of all tokens of a vocabulary, with common beginnings merged.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace vlcache {

class Tokenizer;

// First byte of a special token here: a byte that no text has, followed by the token's name. Only a grammar that
// contains this text allows the token; elsewhere it is never sampled.
inline constexpr char kSpecialTokenByte = '\xff';

class TokenTrie {
 public:
  // In depth-first order: a node's children follow it, each with all nodes below it.
  struct Node {
    int32_t end;  // the first node that is not below this one
    int32_t first_token, n_tokens;
    uint8_t byte;
  };

  // Texts and ids, in any order; empty texts are left out.
  explicit TokenTrie(std::vector<std::pair<std::string, int32_t>> tokens);
  // Every token of ids below n_ids.
  TokenTrie(const Tokenizer& tokenizer, int64_t n_ids);

  std::span<const Node> nodes() const { return nodes_; }
  std::span<const int32_t> tokens(const Node& node) const {
    return std::span(tokens_).subspan(static_cast<size_t>(node.first_token), static_cast<size_t>(node.n_tokens));
  }
  // By id; empty: the id has no text.
  const std::string& bytes(int32_t token) const { return bytes_[static_cast<size_t>(token)]; }
  // The bytes of the longest token.
  int32_t depth() const { return depth_; }
  int64_t n_ids() const { return static_cast<int64_t>(bytes_.size()); }

 private:
  std::vector<Node> nodes_;
  std::vector<int32_t> tokens_;
  std::vector<std::string> bytes_;
  int32_t depth_ = 0;
};

}  // namespace vlcache
