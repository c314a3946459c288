// Split, ByteLevel, Metaspace, Digits, Punctuation, Whitespace, WhitespaceSplit, BertPreTokenizer, Sequence.
#include "io/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"
#include "io/tokenizer/normalizer.h"
#include "io/tokenizer/unicode.h"

namespace vlcache {
namespace {

// GPT-2's pattern, the default of ByteLevel.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

using CharacterClass = bool (*)(char32_t);

// Every character of the class is a match of its own.
void cut_characters(std::string_view text, CharacterClass matches, std::vector<TextMatch>& out) {
  out.clear();
  size_t covered = 0;
  for (size_t i = 0; i < text.size();) {
    const size_t here = i;
    if (!matches(next_code_point(text, i))) continue;
    if (covered < here) out.push_back({covered, here, false});
    out.push_back({here, i, true});
    covered = i;
  }
  if (covered < text.size()) out.push_back({covered, text.size(), false});
}

// Runs `split(piece, out)` on all pieces that are not tokens.
template <typename Split>
void split_all(PieceList& list, Split split) {
  std::vector<Piece> out;
  out.reserve(list.pieces.size());
  for (Piece& piece : list.pieces) {
    if (piece.token >= 0) {
      out.push_back(piece);
    } else {
      split(piece, out);
    }
    list.check(out.size());
  }
  list.pieces = std::move(out);
}

class SplitPreTokenizer : public PreTokenizer {
 public:
  SplitPreTokenizer(Regex pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  void apply(PieceList& list) const override {
    std::vector<TextMatch> matches;
    split_all(list, [&](const Piece& piece, std::vector<Piece>& out) {
      // Of other behaviours, a match need not become a piece.
      const bool isolated = behavior_ == SplitBehavior::kIsolated;
      pattern_.cut(piece.text, matches, [&](size_t n) { list.check(out.size() + (isolated ? n : 0)); });
      if (invert_) {
        for (TextMatch& m : matches) m.is_match = !m.is_match;
      }
      split_piece(piece, matches, behavior_, out);
    });
  }
  bool keeps_text() const override { return behavior_ != SplitBehavior::kRemoved; }

 private:
  Regex pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

class CharacterPreTokenizer : public PreTokenizer {
 public:
  CharacterPreTokenizer(CharacterClass matches, SplitBehavior behavior) : matches_(matches), behavior_(behavior) {}
  void apply(PieceList& list) const override {
    std::vector<TextMatch> matches;
    split_all(list, [&](const Piece& piece, std::vector<Piece>& out) {
      cut_characters(piece.text, matches_, matches);
      split_piece(piece, matches, behavior_, out);
    });
  }
  bool keeps_text() const override { return behavior_ != SplitBehavior::kRemoved; }

 private:
  CharacterClass matches_;
  SplitBehavior behavior_;
};

// Runs of word characters and runs of other characters; white space is dropped.
class WhitespacePreTokenizer : public PreTokenizer {
 public:
  void apply(PieceList& list) const override {
    split_all(list, [](const Piece& piece, std::vector<Piece>& out) {
      enum class Kind { kSpace, kWord, kOther };
      Kind kind = Kind::kSpace;
      size_t start = 0;
      for (size_t i = 0; i < piece.text.size();) {
        const size_t here = i;
        const char32_t c = next_code_point(piece.text, i);
        const Kind now = is_word_character(c) ? Kind::kWord : is_white_space(c) ? Kind::kSpace : Kind::kOther;
        if (now == kind) continue;
        if (kind != Kind::kSpace) out.push_back(slice_piece(piece, start, here));
        kind = now;
        start = here;
      }
      if (kind != Kind::kSpace) out.push_back(slice_piece(piece, start, piece.text.size()));
    });
  }
  bool keeps_text() const override { return false; }
};

class ByteLevelPreTokenizer : public PreTokenizer {
 public:
  ByteLevelPreTokenizer(bool add_prefix_space, bool use_regex) : add_prefix_space_(add_prefix_space) {
    if (use_regex) pattern_ = std::make_unique<Regex>(kGpt2Pattern, "ByteLevel");
  }

  void apply(PieceList& list) const override {
    if (add_prefix_space_) prepend_spaces(list);
    if (pattern_ != nullptr) {
      std::vector<TextMatch> matches;
      split_all(list, [&](const Piece& piece, std::vector<Piece>& out) {
        pattern_->cut(piece.text, matches, [&](size_t n) { list.check(out.size() + n); });
        split_piece(piece, matches, SplitBehavior::kIsolated, out);
      });
    }
    spell_bytes(list);
  }
  bool spells_bytes() const override { return true; }

 private:
  static void prepend_spaces(PieceList& list) {
    for (Piece& piece : list.pieces) {
      if (piece.token >= 0 || piece.text.starts_with(' ')) continue;
      piece.text = list.own(" " + std::string(piece.text));
      if (piece.n_start_bytes > 0) piece.n_start_bytes += 1;
    }
  }

  // Joins all pieces into one text, so that a long document does not cost an allocation per word.
  static void spell_bytes(PieceList& list) {
    std::string all;
    std::vector<size_t> ends;
    ends.reserve(list.pieces.size());
    for (Piece& piece : list.pieces) {
      if (piece.token < 0) {
        const size_t before = all.size();
        const size_t n_start = piece.n_start_bytes;
        for (size_t i = 0; i < piece.text.size(); ++i) {
          append_byte_level(all, static_cast<unsigned char>(piece.text[i]));
          if (i + 1 == n_start) piece.n_start_bytes = all.size() - before;
        }
      }
      ends.push_back(all.size());
    }
    const std::string_view owned = list.own(std::move(all));
    size_t start = 0;
    for (size_t k = 0; k < ends.size(); ++k) {
      if (list.pieces[k].token < 0) list.pieces[k].text = owned.substr(start, ends[k] - start);
      start = ends[k];
    }
  }

  bool add_prefix_space_;
  std::unique_ptr<Regex> pattern_;
};

enum class PrependScheme { kAlways, kFirst, kNever };

class MetaspacePreTokenizer : public PreTokenizer {
 public:
  MetaspacePreTokenizer(std::string replacement, PrependScheme scheme, bool split)
      : replacement_(std::move(replacement)), scheme_(scheme), split_(split) {}

  void apply(PieceList& list) const override {
    std::vector<TextMatch> matches;
    split_all(list, [&](const Piece& piece, std::vector<Piece>& out) {
      cut_literal(piece.text, " ", matches);
      std::string text;
      Piece replaced = replace_matches(piece, matches, replacement_, text);
      const bool prepend = scheme_ == PrependScheme::kAlways || (scheme_ == PrependScheme::kFirst && piece.at_start);
      if (prepend && !text.starts_with(replacement_)) {
        text.insert(0, replacement_);
        if (replaced.n_start_bytes > 0) replaced.n_start_bytes += replacement_.size();
      }
      replaced.text = list.own(std::move(text));
      if (!split_) {
        out.push_back(replaced);
        return;
      }
      cut_literal(replaced.text, replacement_, matches);
      split_piece(replaced, matches, SplitBehavior::kMergedWithNext, out);
    });
  }

 private:
  static void cut_literal(std::string_view text, std::string_view literal, std::vector<TextMatch>& out) {
    out.clear();
    size_t covered = 0;
    for (size_t at = text.find(literal); at != std::string_view::npos; at = text.find(literal, covered)) {
      if (covered < at) out.push_back({covered, at, false});
      covered = at + literal.size();
      out.push_back({at, covered, true});
    }
    if (covered < text.size()) out.push_back({covered, text.size(), false});
  }

  std::string replacement_;  // one character
  PrependScheme scheme_;
  bool split_;
};

class SequencePreTokenizer : public PreTokenizer {
 public:
  explicit SequencePreTokenizer(std::vector<std::unique_ptr<PreTokenizer>> steps) : steps_(std::move(steps)) {}
  void apply(PieceList& list) const override {
    for (const auto& step : steps_) step->apply(list);
  }
  bool keeps_text() const override {
    return std::ranges::all_of(steps_, [](const auto& step) { return step->keeps_text(); });
  }
  bool spells_bytes() const override {
    return std::ranges::any_of(steps_, [](const auto& step) { return step->spells_bytes(); });
  }

 private:
  std::vector<std::unique_ptr<PreTokenizer>> steps_;
};

SplitBehavior parse_behavior(const JsonObject& object, std::string_view fallback) {
  std::string name = object.string("behavior", fallback);
  if (!name.empty()) name[0] = static_cast<char>(name[0] & ~0x20);  // newer files have it in lower case
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  object.fail("behavior", "Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

std::unique_ptr<PreTokenizer> parse_metaspace(const JsonObject& object) {
  const std::string replacement = object.string("replacement", "\xE2\x96\x81");
  size_t length = 0;
  if (!replacement.empty()) next_code_point(replacement, length);
  if (length == 0 || length != replacement.size()) object.fail("replacement", "one character");
  const std::string name = object.string("prepend_scheme", "always");
  PrependScheme scheme = PrependScheme::kAlways;
  if (name == "first") {
    scheme = PrependScheme::kFirst;
  } else if (name == "never" || !object.boolean("add_prefix_space", true)) {
    scheme = PrependScheme::kNever;
  } else if (name != "always") {
    object.fail("prepend_scheme", "always, first or never");
  }
  return std::make_unique<MetaspacePreTokenizer>(replacement, scheme, object.boolean("split", true));
}

std::unique_ptr<PreTokenizer> parse_sequence(const JsonObject& object) {
  const Json* list = object.find("pretokenizers");
  if (list == nullptr || !list->is_array()) object.fail("pretokenizers", "a list");
  std::vector<std::unique_ptr<PreTokenizer>> steps;
  for (size_t k = 0; k < list->size(); ++k) {
    auto step = parse_pre_tokenizer(&(*list)[k], object.where() + "[" + std::to_string(k) + "]");
    if (step != nullptr) steps.push_back(std::move(step));
  }
  return std::make_unique<SequencePreTokenizer>(std::move(steps));
}

std::unique_ptr<PreTokenizer> bert_pre_tokenizer() {
  std::vector<std::unique_ptr<PreTokenizer>> steps;
  steps.push_back(std::make_unique<CharacterPreTokenizer>(is_white_space, SplitBehavior::kRemoved));
  steps.push_back(std::make_unique<CharacterPreTokenizer>(is_punctuation, SplitBehavior::kIsolated));
  return std::make_unique<SequencePreTokenizer>(std::move(steps));
}

}  // namespace

std::unique_ptr<PreTokenizer> parse_pre_tokenizer(const Json* json, const std::string& where) {
  if (json == nullptr || json->is_null()) return nullptr;
  const JsonObject object(*json, where);
  const std::string type = object.string("type");
  if (type == "Sequence") return parse_sequence(object);
  if (type == "Split") {
    return std::make_unique<SplitPreTokenizer>(parse_pattern(object, "pattern"), parse_behavior(object, ""),
                                               object.boolean("invert", false));
  }
  if (type == "ByteLevel") {
    return std::make_unique<ByteLevelPreTokenizer>(object.boolean("add_prefix_space", true),
                                                   object.boolean("use_regex", true));
  }
  if (type == "Metaspace") return parse_metaspace(object);
  if (type == "Digits") {
    return std::make_unique<CharacterPreTokenizer>(
        is_numeric, object.boolean("individual_digits", false) ? SplitBehavior::kIsolated : SplitBehavior::kContiguous);
  }
  if (type == "Punctuation") {
    return std::make_unique<CharacterPreTokenizer>(is_punctuation, parse_behavior(object, "Isolated"));
  }
  if (type == "Whitespace") return std::make_unique<WhitespacePreTokenizer>();
  if (type == "WhitespaceSplit")
    return std::make_unique<CharacterPreTokenizer>(is_white_space, SplitBehavior::kRemoved);
  if (type == "BertPreTokenizer") return bert_pre_tokenizer();
  throw Error(ErrorCode::kUnsupported,
              where + ": pre-tokenizer type " + shown_json(Json(type)) +
                  " is not supported (supported: Split, ByteLevel, Metaspace, Digits, Punctuation, Whitespace, "
                  "WhitespaceSplit, BertPreTokenizer, Sequence)");
}

}  // namespace vlcache
