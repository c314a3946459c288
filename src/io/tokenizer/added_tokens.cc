// Finding added tokens: leftmost, longest, then the conditions of the flags.
#include "io/tokenizer/added_tokens.h"

#include <algorithm>

#include "base/error.h"
#include "base/utf8.h"
#include "io/tokenizer/unicode.h"
#include "io/tokenizer/vocabulary.h"

namespace vlcache {
namespace {

// Bounds the time of a search (text length × token length); real ones stay below 100 bytes.
constexpr size_t kMaxTokenBytes = 4096;

// The character that ends at text[end - 1].
char32_t character_before(std::string_view text, size_t end) {
  size_t i = end - 1;
  while (i > 0 && (static_cast<unsigned char>(text[i]) & 0xC0) == 0x80) --i;
  return next_code_point(text, i);
}

bool is_word_at(std::string_view text, size_t at) {
  return at < text.size() && is_word_character(next_code_point(text, at));
}

bool is_word_before(std::string_view text, size_t end) {
  return end > 0 && is_word_character(character_before(text, end));
}

size_t skip_space_left(std::string_view text, size_t end, size_t limit) {
  while (end > limit) {
    const char32_t c = character_before(text, end);
    if (!is_white_space(c)) break;
    std::string bytes;
    append_utf8(bytes, c);
    end -= bytes.size();
  }
  return std::max(end, limit);
}

size_t skip_space_right(std::string_view text, size_t at) {
  while (at < text.size()) {
    size_t next = at;
    if (!is_white_space(next_code_point(text, next))) break;
    at = next;
  }
  return at;
}

bool is_one_character(std::string_view text) {
  size_t i = 0;
  next_code_point(text, i);
  return i == text.size();
}

bool is_all_space(std::string_view text) { return skip_space_right(text, 0) == text.size(); }

}  // namespace

AddedToken parse_added_token(const JsonObject& object) {
  AddedToken token{.content = object.string("content")};
  token.single_word = object.boolean("single_word", false);
  token.lstrip = object.boolean("lstrip", false);
  token.rstrip = object.boolean("rstrip", false);
  token.special = object.boolean("special", false);
  token.normalized = object.boolean("normalized", !token.special);
  if (token.content.size() > kMaxTokenBytes)
    object.fail("content", "at most " + std::to_string(kMaxTokenBytes) + " bytes");
  return token;
}

void AddedTokens::add(const std::vector<AddedToken>& tokens, const TokenModel& model, const Normalizer* normalizer) {
  const int64_t model_size = model.size();
  int64_t next_id = model_size;
  if (!tokens_.empty() && (tokens_.rbegin()->first >= model_size || model_size == 0))
    next_id = int64_t{tokens_.rbegin()->first} + 1;
  for (const AddedToken& token : tokens) {
    if (token.content.empty()) continue;
    int32_t id = token_id(token.content);
    if (id < 0) id = model.token_id(token.content);
    if (id < 0) {
      if (next_id > kMaxTokenId)
        throw Error(ErrorCode::kInput, "tokenizer: no id is left for added token \"" + token.content + "\"");
      id = static_cast<int32_t>(next_id++);
    }
    if (token.normalized && normalizer != nullptr) {
      std::string text;
      Piece piece{.text = token.content};
      normalizer->apply(piece, text);
      if (piece.text != token.content) normalized_[id] = std::string(piece.text);
    }
    ids_[token.content] = id;
    if (token.special) special_.insert(token.content);
    tokens_[id] = token;
  }
}

void AddedTokens::build() {
  plain_tree_ = {};
  normalized_tree_ = {};
  for (const auto& [id, token] : tokens_) {
    if (token.normalized) {
      normalized_tree_.insert(*token_text(id), id);
    } else {
      plain_tree_.insert(token.content, id);
    }
  }
}

void AddedTokens::Tree::insert(std::string_view content, int32_t id) {
  if (content.empty()) return;
  if (values_.empty()) values_.push_back(-1);
  starts_[static_cast<unsigned char>(content[0])] = true;
  uint32_t node = 0;
  for (char c : content) {
    const auto [it, added] = children_.try_emplace(uint64_t{node} << 8 | static_cast<unsigned char>(c),
                                                   static_cast<uint32_t>(values_.size()));
    if (added) values_.push_back(-1);
    node = it->second;
  }
  if (values_[node] < 0) values_[node] = id;
}

int32_t AddedTokens::Tree::longest_at(std::string_view text, size_t at, size_t& length) const {
  if (!starts_[static_cast<unsigned char>(text[at])]) return -1;
  int32_t found = -1;
  uint32_t node = 0;
  for (size_t i = at; i < text.size(); ++i) {
    const auto it = children_.find(uint64_t{node} << 8 | static_cast<unsigned char>(text[i]));
    if (it == children_.end()) break;
    node = it->second;
    if (values_[node] >= 0) {
      found = values_[node];
      length = i + 1 - at;
    }
  }
  return found;
}

void AddedTokens::extract(const Piece& piece, bool normalized, std::string_view mark, std::vector<Piece>& out) const {
  const Tree& tree = normalized ? normalized_tree_ : plain_tree_;
  const std::string_view text = piece.text;
  if (text.empty()) return;
  if (tree.empty()) {
    out.push_back(slice_piece(piece, 0, text.size()));
    return;
  }
  size_t covered = 0;
  for (size_t at = 0, length = 0; at < text.size(); at += std::max<size_t>(length, 1)) {
    length = 0;
    const int32_t id = tree.longest_at(text, at, length);
    if (id < 0) continue;
    const AddedToken& token = tokens_.at(id);
    if (!mark.empty() && text.substr(0, at).ends_with(mark) && is_one_character(text.substr(at, length))) continue;
    size_t start = at;
    size_t stop = at + length;
    if (token.single_word && (is_word_before(text, start) || is_word_at(text, stop))) continue;
    // White space taken by the previous match is not taken again.
    if (token.lstrip) start = std::max(skip_space_left(text, start, 0), covered);
    if (token.rstrip) stop = skip_space_right(text, stop);
    if (covered < start) out.push_back(slice_piece(piece, covered, start));
    if (start < stop) {
      Piece part = slice_piece(piece, start, stop);
      part.token = id;
      out.push_back(part);
    }
    covered = stop;
  }
  if (covered < text.size()) out.push_back(slice_piece(piece, covered, text.size()));
}

bool AddedTokens::is_structure(int32_t id) const {
  const AddedToken* found = token(id);
  if (found == nullptr || is_all_space(found->content)) return false;
  return found->special || (found->content.size() > 2 && found->content.find_first_of("<>[]{}|") != std::string::npos);
}

std::vector<std::string> AddedTokens::structure() const {
  std::vector<std::string> texts;
  for (const auto& [id, token] : tokens_) {
    if (!is_structure(id)) continue;
    texts.push_back(token.content);
    if (token.normalized) texts.push_back(*token_text(id));
  }
  return texts;
}

int32_t AddedTokens::token_id(std::string_view content) const {
  const auto it = ids_.find(std::string(content));
  return it == ids_.end() ? -1 : it->second;
}

const std::string* AddedTokens::token_text(int32_t id) const {
  const auto it = tokens_.find(id);
  if (it == tokens_.end()) return nullptr;
  const auto normalized = normalized_.find(id);
  return normalized == normalized_.end() ? &it->second.content : &normalized->second;
}

const AddedToken* AddedTokens::token(int32_t id) const {
  const auto it = tokens_.find(id);
  return it == tokens_.end() ? nullptr : &it->second;
}

}  // namespace vlcache
