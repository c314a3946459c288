// Loads the parts of a tokenizer.json and runs text through them.
#include "io/tokenizer/tokenizer.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/config_json.h"
#include "base/error.h"
#include "base/format.h"
#include "base/json.h"
#include "base/utf8.h"
#include "io/checkpoint/checkpoint.h"
#include "io/tokenizer/added_tokens.h"
#include "io/tokenizer/decoder.h"
#include "io/tokenizer/normalizer.h"
#include "io/tokenizer/post_processor.h"
#include "io/tokenizer/pre_tokenizer.h"
#include "io/tokenizer/token_model.h"
#include "io/tokenizer/tokenizer_config.h"
#include "io/tokenizer/unicode.h"

namespace vlcache {
namespace {

constexpr size_t kMaxText = size_t{1} << 30;  // positions are 32 bits, and bytes may double

}  // namespace

struct Tokenizer::Parts {
  Parts(const JsonObject& root, const std::string& where)
      : normalizer(parse_normalizer(root.find("normalizer"), where + ": normalizer")),
        pre_tokenizer(parse_pre_tokenizer(root.find("pre_tokenizer"), where + ": pre_tokenizer")),
        model(parse_token_model(root.find("model"), where + ": model")),
        post_processor(parse_post_processor(root.find("post_processor"), where + ": post_processor")),
        decoder(root.find("decoder"), where + ": decoder") {
    const Json* tokens = root.find("added_tokens");
    if (tokens != nullptr && !tokens->is_array()) root.fail("added_tokens", "a list");
    std::vector<AddedToken> list;
    for (size_t k = 0; tokens != nullptr && k < tokens->size(); ++k) {
      list.push_back(parse_added_token(JsonObject((*tokens)[k], where + ": added_tokens[" + std::to_string(k) + "]")));
    }
    add(list);
  }

  void add(const std::vector<AddedToken>& tokens) {
    added.add(tokens, *model, normalizer.get());
    added.build();
  }

  const std::string* token_text(int32_t id) const {
    const std::string* text = added.token_text(id);
    return text != nullptr ? text : model->token_text(id);
  }

  int32_t token_id(std::string_view token) const {
    const int32_t id = added.token_id(token);
    return id >= 0 ? id : model->token_id(token);
  }

  void cut(std::string_view text, const std::string& mark, PieceList& list) const;
  std::vector<int32_t> encode(std::string_view text, const std::string& mark, bool add_special_tokens,
                              const EncodeLimits& limits) const;
  void encode_characters(std::string_view text, ModelScratch& scratch, std::vector<int32_t>& ids) const;

  std::unique_ptr<Normalizer> normalizer;
  std::unique_ptr<PreTokenizer> pre_tokenizer;
  std::unique_ptr<TokenModel> model;
  std::vector<int32_t> post_processor;
  DecoderSpec decoder;
  AddedTokens added;
  std::map<std::string, std::string, std::less<>> names;
  int64_t n_tokens = 0;
};

namespace {

// Removes the marks from a piece.
void unmark(Piece& piece, const std::string& mark, PieceList& list) {
  if (mark.empty() || piece.text.find(mark) == std::string_view::npos) return;
  piece.text = list.own(with_replaced(piece.text, mark, ""));
  if (!piece.at_start || piece.n_start_bytes == 0) return;
  size_t first_character = 0;
  if (!piece.text.empty()) next_code_point(piece.text, first_character);
  piece.n_start_bytes = first_character;
}

}  // namespace

// Added tokens are searched in the original text, then, between them, in the normalized text.
void Tokenizer::Parts::cut(std::string_view text, const std::string& mark, PieceList& list) const {
  size_t first_character = 0;
  if (!text.empty()) next_code_point(text, first_character);
  const Piece whole{.text = text, .at_start = true, .n_start_bytes = first_character};
  std::vector<Piece> raw;
  added.extract(whole, false, mark, raw);
  const bool marks_matter = added.searches_normalized();
  for (Piece& piece : raw) {
    if (piece.token >= 0) {
      list.pieces.push_back(piece);
      continue;
    }
    if (!marks_matter) unmark(piece, mark, list);
    if (piece.text.empty()) continue;
    if (normalizer != nullptr) {
      std::string normalized;
      normalizer->apply(piece, normalized);
      piece.text = list.own(std::string(piece.text));
    }
    std::vector<Piece> parts;
    added.extract(piece, true, mark, parts);
    for (Piece& part : parts) {
      if (part.token < 0) unmark(part, mark, list);
      if (!part.text.empty()) list.pieces.push_back(part);
    }
  }
  if (pre_tokenizer != nullptr) pre_tokenizer->apply(list);
}

// Character by character: for a word that is in the vocabulary as structure.
void Tokenizer::Parts::encode_characters(std::string_view text, ModelScratch& scratch,
                                         std::vector<int32_t>& ids) const {
  for (size_t i = 0; i < text.size();) {
    const size_t begin = i;
    next_code_point(text, i);
    model->encode(text.substr(begin, i - begin), scratch, ids);
  }
}

std::vector<int32_t> Tokenizer::Parts::encode(std::string_view text, const std::string& mark, bool add_special_tokens,
                                              const EncodeLimits& limits) const {
  if (text.size() > kMaxText) {
    throw Error(ErrorCode::kInput,
                "tokenizer: a text of " + std::to_string(text.size()) + " bytes is longer than 1 GiB");
  }
  std::string repaired;
  if (!is_valid_utf8(text)) {
    repaired = to_valid_utf8(text);
    text = repaired;
  }
  EncodeBudget budget(limits);
  PieceList list;
  list.budget = &budget;
  list.are_tokens = (pre_tokenizer == nullptr || pre_tokenizer->keeps_text()) &&
                    model->keeps_words(pre_tokenizer != nullptr && pre_tokenizer->spells_bytes());
  cut(text, mark, list);
  std::vector<int32_t> ids;
  const std::unique_ptr<ModelScratch> scratch = model->make_scratch();
  scratch->budget = &budget;
  const auto is_structure = [this](int32_t id) { return added.is_structure(id); };
  for (const Piece& piece : list.pieces) {
    budget.tick();
    budget.check(std::ssize(ids));
    if (piece.token >= 0) {
      ids.push_back(piece.token);
      continue;
    }
    const size_t n_before = ids.size();
    model->encode(piece.text, *scratch, ids);
    if (mark.empty() || std::none_of(ids.begin() + static_cast<int64_t>(n_before), ids.end(), is_structure)) continue;
    ids.resize(n_before);
    encode_characters(piece.text, *scratch, ids);
  }
  budget.check(std::ssize(ids));
  const std::vector<int32_t>& form = post_processor;
  if (form.size() == 1 && form[0] == kTextItself) return ids;
  std::vector<int32_t> out;
  out.reserve(ids.size() + form.size());
  for (int32_t item : form) {
    if (item == kTextItself) {
      out.insert(out.end(), ids.begin(), ids.end());
    } else if (add_special_tokens) {
      out.push_back(item);
    }
  }
  return out;
}

Tokenizer::Tokenizer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {
  parts_->n_tokens = parts_->model->size();
  for (const auto& [content, id] : parts_->added.ids()) {
    if (parts_->model->token_id(content) < 0) ++parts_->n_tokens;
  }
  const std::string unk = parts_->model->unk_token();
  if (!unk.empty()) parts_->names.emplace("unk_token", unk);
}

Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

Tokenizer Tokenizer::from_json(std::string_view text, std::string_view where) {
  const Json json = parse_config_json(text, where);
  const JsonObject root(json, std::string(where));
  if (root.string("version", "1.0") != "1.0") root.fail("version", "\"1.0\"");
  return Tokenizer(std::make_unique<Parts>(root, std::string(where)));
}

Tokenizer Tokenizer::load(const Checkpoint& checkpoint) {
  const TokenizerText text = checkpoint.tokenizer();
  Tokenizer tokenizer = from_json(text.json, text.where);
  TokenizerConfig config = checkpoint.tokenizer_config();
  Parts& parts = *tokenizer.parts_;
  parts.add(config.listed);
  std::vector<AddedToken> missing;
  for (const AddedToken& token : config.named_or_extra) {
    if (!parts.added.contains(token.content)) missing.push_back(token);
  }
  parts.add(missing);
  for (auto& [name, content] : config.names) parts.names.insert_or_assign(name, content);
  return Tokenizer(std::move(tokenizer.parts_));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens,
                                       const EncodeLimits& limits) const {
  return parts_->encode(text, /*mark=*/"", add_special_tokens, limits);
}

std::vector<int32_t> Tokenizer::encode_marked(std::string_view text, char32_t mark, bool add_special_tokens,
                                              const EncodeLimits& limits) const {
  std::string sign;
  append_utf8(sign, mark);
  return parts_->encode(text, sign, add_special_tokens, limits);
}

std::vector<std::string> Tokenizer::structure() const { return parts_->added.structure(); }

bool Tokenizer::searches_normalized() const {
  return parts_->normalizer != nullptr && parts_->added.searches_normalized();
}

bool Tokenizer::reads_structure(std::string_view marked, char32_t mark) const {
  const std::vector<int32_t> ids = encode_marked(marked, mark, /*add_special_tokens=*/false);
  return std::ranges::any_of(ids, [this](int32_t id) { return parts_->added.is_structure(id); });
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  StreamDecoder stream(*this, skip_special_tokens);
  std::string out;
  for (int32_t id : ids) out += stream.push(id);
  return out + stream.finish();
}

std::string Tokenizer::token_text(int32_t id) const {
  const std::string* text = parts_->token_text(id);
  return text == nullptr ? std::string() : *text;
}

std::string Tokenizer::token_bytes(int32_t id) const {
  const std::string* text = parts_->token_text(id);
  if (text == nullptr || is_special(id)) return {};
  std::string bytes;
  if (parts_->decoder.bytes(*text, bytes)) return bytes;
  // The first token of a text may lose a space; a later one does not.
  const int32_t two[] = {id, id};
  const std::string once = decode({&id, 1}, /*skip_special_tokens=*/true);
  const std::string twice = decode(two, /*skip_special_tokens=*/true);
  return twice.substr(std::min(once.size(), twice.size()));
}

int32_t Tokenizer::token_id(std::string_view token) const { return parts_->token_id(token); }

bool Tokenizer::has_token(int32_t id) const { return parts_->token_text(id) != nullptr; }

bool Tokenizer::is_special(int32_t id) const {
  const std::string* text = parts_->token_text(id);
  return text != nullptr && parts_->added.is_special(*text);
}

TokenClass Tokenizer::token_class(int32_t id) const {
  if (is_special(id)) return TokenClass::kSpecial;
  const std::string text = decode({&id, 1}, /*skip_special_tokens=*/false);
  bool any = false;
  for (size_t i = 0; i < text.size();) {
    const char32_t c = next_code_point(text, i);
    if (is_white_space(c)) continue;
    if (!is_punctuation(c)) return TokenClass::kOther;
    any = true;
  }
  return any ? TokenClass::kPunctuation : TokenClass::kOther;
}

int64_t Tokenizer::vocab_size() const { return parts_->n_tokens; }

std::string Tokenizer::special_token(std::string_view name) const {
  const auto it = parts_->names.find(name);
  return it == parts_->names.end() ? std::string() : it->second;
}

int32_t Tokenizer::special_token_id(std::string_view name) const {
  const auto it = parts_->names.find(name);
  return it == parts_->names.end() ? -1 : token_id(it->second);
}

struct StreamDecoder::State {
  const Tokenizer::Parts& parts;
  bool skip_special_tokens, spaces_between;
  DecoderRun run;
  bool after_added = false;  // the last token is an added one
};

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special_tokens, bool spaces_between)
    : state_(new State{*tokenizer.parts_, skip_special_tokens, spaces_between, DecoderRun(tokenizer.parts_->decoder)}) {
}

StreamDecoder::~StreamDecoder() = default;
StreamDecoder::StreamDecoder(StreamDecoder&&) noexcept = default;

std::string StreamDecoder::push(int32_t id, bool shown) {
  const std::string* text = state_->parts.token_text(id);
  if (text == nullptr) return {};
  if (!shown && state_->skip_special_tokens && state_->parts.added.is_special(*text)) return {};
  state_->run.push(*text);
  std::string piece = state_->run.take();
  const bool is_added = state_->parts.added.token(id) != nullptr;
  if (std::exchange(state_->after_added, is_added) && is_added && !state_->spaces_between) {
    const size_t begin = piece.size() - std::min(piece.size(), text->size());  // where its own text begins
    if (piece.find_first_not_of(' ') >= begin) piece.erase(0, begin);
  }
  return piece;
}

std::string StreamDecoder::finish() {
  state_->run.finish();
  return state_->run.take();
}

}  // namespace vlcache
