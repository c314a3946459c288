// AddedTokens: tokens that are found in the text before the model sees it: "<image>", "<|im_end|>" and the like.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "io/tokenizer/normalizer.h"
#include "io/tokenizer/pieces.h"
#include "io/tokenizer/token_model.h"

namespace vlcache {

struct AddedToken {
  std::string content;
  bool single_word = false;  // not inside a word
  bool lstrip = false;       // includes the white space on its left
  bool rstrip = false;       // and on its right
  bool normalized = true;    // found in the normalized text, in its normalized form
  bool special = false;      // left out by decode(skip_special_tokens)

  bool operator==(const AddedToken&) const = default;
};

AddedToken parse_added_token(const JsonObject& object);

class AddedTokens {
 public:
  // Gives each token its existing id, in the model or here, else the next free one; an existing token gets the new
  // flags. Ids written in a file are ignored, as in the reference. Call build afterwards.
  void add(const std::vector<AddedToken>& tokens, const TokenModel& model, const Normalizer* normalizer);
  void build();

  // Cuts the text of `piece` at the tokens found in it; tokens with `normalized` set or the others.
  // `mark`: before a token of one character it keeps it from being found; empty: none.
  void extract(const Piece& piece, bool normalized, std::string_view mark, std::vector<Piece>& out) const;
  // Whether there are tokens to be found in normalized text.
  bool searches_normalized() const { return !normalized_tree_.empty(); }
  // Special tokens, and others in brackets; their texts.
  bool is_structure(int32_t id) const;
  std::vector<std::string> structure() const;

  int32_t token_id(std::string_view content) const;  // -1 if no token has this text
  const std::string* token_text(int32_t id) const;   // normalized form if it differs; null for an unknown id
  const AddedToken* token(int32_t id) const;
  bool is_special(std::string_view text) const { return special_.contains(std::string(text)); }
  bool contains(std::string_view content) const { return token_id(content) >= 0; }
  const std::unordered_map<std::string, int32_t>& ids() const { return ids_; }

 private:
  // All tokens of one kind as a tree of bytes; finds the longest that starts at a position.
  class Tree {
   public:
    void insert(std::string_view content, int32_t id);
    int32_t longest_at(std::string_view text, size_t at, size_t& length) const;
    bool empty() const { return values_.empty(); }

   private:
    std::unordered_map<uint64_t, uint32_t> children_;  // node << 8 | byte -> node
    std::vector<int32_t> values_;                      // node -> id, -1 inside a token
    bool starts_[256] = {};
  };

  std::map<int32_t, AddedToken> tokens_;
  std::unordered_map<std::string, int32_t> ids_;
  std::unordered_map<int32_t, std::string> normalized_;
  std::unordered_set<std::string> special_;
  Tree plain_tree_, normalized_tree_;
};

}  // namespace vlcache
