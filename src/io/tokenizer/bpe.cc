// Byte-pair encoding: pairs are merged in the order of their rank, by a heap over a linked list, O(n log n) in the
// length of a word. Source: arXiv:1508.07909; details (unknown characters, byte fallback, ties) as in Hugging Face
// tokenizers.
#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/keyed_hash.h"
#include "base/utf8.h"
#include "io/tokenizer/normalizer.h"
#include "io/tokenizer/token_model.h"
#include "io/tokenizer/vocabulary.h"

namespace vlcache {
namespace {

// Words longer than this are rarely seen twice in one text.
constexpr size_t kMaxCachedWord = 64;
constexpr size_t kMaxCachedWords = size_t{1} << 16;

struct MergeRule {
  uint64_t pair;  // left << 32 | right
  uint32_t rank;
  int32_t merged;
};

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

// Pair -> rule by open addressing: the one lookup that encoding spends its time in.
class MergeTable {
 public:
  void build(const std::vector<MergeRule>& rules) {
    size_t capacity = 16;
    while (capacity < rules.size() * 2) capacity *= 2;
    slots_.assign(capacity, MergeRule{.merged = -1});
    for (const MergeRule& rule : rules) {
      MergeRule& slot = slots_[index_of(rule.pair)];
      slot = rule;  // a pair named twice keeps its last rank, as in the reference
    }
  }
  const MergeRule* find(int32_t left, int32_t right) const {
    const MergeRule& slot = slots_[index_of(pair_key(left, right))];
    return slot.merged < 0 ? nullptr : &slot;
  }

 private:
  size_t index_of(uint64_t pair) const {
    const size_t mask = slots_.size() - 1;
    size_t i = static_cast<size_t>((pair * 0x9E3779B97F4A7C15u) >> 20) & mask;
    while (slots_[i].merged >= 0 && slots_[i].pair != pair) i = (i + 1) & mask;
    return i;
  }
  std::vector<MergeRule> slots_;
};

struct Symbol {
  int32_t id;
  int32_t previous, next;  // index, -1 at the ends
  bool removed;
};

struct Candidate {
  uint32_t rank;
  int32_t position;
  int32_t merged;
  // For a heap whose top is the lowest rank, leftmost first.
  bool operator<(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : position > other.position;
  }
};

class BpeScratch : public ModelScratch {
 public:
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
  std::unordered_map<std::string, std::pair<uint32_t, uint32_t>, KeyedHash> words;  // -> range of cached_ids
  std::vector<int32_t> cached_ids;
};

class BpeModel : public TokenModel {
 public:
  explicit BpeModel(const JsonObject& object);

  std::unique_ptr<ModelScratch> make_scratch() const override { return std::make_unique<BpeScratch>(); }
  void encode(std::string_view word, ModelScratch& scratch, std::vector<int32_t>& ids) const override;
  int32_t token_id(std::string_view token) const override { return vocabulary_.id(token); }
  const std::string* token_text(int32_t id) const override { return vocabulary_.text(id); }
  int64_t size() const override { return vocabulary_.size(); }
  std::string unk_token() const override { return unk_token_; }
  bool keeps_words(bool spelled) const override;

 private:
  void read_vocabulary(const JsonObject& object);
  void read_merges(const JsonObject& object);
  MergeRule make_rule(std::string_view left, std::string_view right, size_t rank, const std::string& where) const;
  void split_characters(std::string_view word, size_t max_symbols, BpeScratch& scratch) const;
  int32_t character_id(std::string_view character, std::string& spelled, bool first, bool last) const;
  bool append_bytes(std::string_view spelled, std::vector<Symbol>& symbols) const;
  void merge(BpeScratch& scratch) const;

  Vocabulary vocabulary_;
  MergeTable merges_;
  std::string unk_token_, prefix_, suffix_;
  int32_t unk_id_ = -1;
  size_t longest_ = 1;  // characters of a token: no more symbols become one
  bool has_unk_ = false, fuse_unk_ = false, byte_fallback_ = false, ignore_merges_ = false;
  std::array<int32_t, 256> byte_ids_{};     // of <0x00> to <0xFF>
  std::array<int32_t, 0x800> short_ids_{};  // of characters below U+0800, which is all of a byte-level alphabet
};

void push_symbol(std::vector<Symbol>& symbols, int32_t id) {
  const auto n = static_cast<int32_t>(symbols.size());
  if (n > 0) symbols.back().next = n;
  symbols.push_back({id, n - 1, -1, false});
}

BpeModel::BpeModel(const JsonObject& object) {
  has_unk_ = object.has("unk_token");
  if (has_unk_) unk_token_ = object.string("unk_token");
  prefix_ = object.string("continuing_subword_prefix", "");
  suffix_ = object.string("end_of_word_suffix", "");
  fuse_unk_ = object.boolean("fuse_unk", false);
  byte_fallback_ = object.boolean("byte_fallback", false);
  ignore_merges_ = object.boolean("ignore_merges", false);
  read_vocabulary(object);
  read_merges(object);
  if (has_unk_) unk_id_ = vocabulary_.id(unk_token_);
  for (int b = 0; b < 256; ++b) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", b);
    byte_ids_[static_cast<size_t>(b)] = vocabulary_.id(name);
  }
  for (char32_t c = 0; c < short_ids_.size(); ++c) {
    std::string character;
    append_utf8(character, c);
    short_ids_[c] = vocabulary_.id(character);
  }
}

void BpeModel::read_vocabulary(const JsonObject& object) {
  const Json* vocab = object.find("vocab");
  if (vocab == nullptr || !vocab->is_object()) object.fail("vocab", "an object of tokens and their ids");
  const std::string where = object.where() + ": vocab";
  vocabulary_.reserve(vocab->size());
  for (const auto& [token, id] : vocab->items()) {
    if (!id.is_number_integer() ||
        (id.is_number_unsigned() && id.get<uint64_t>() > static_cast<uint64_t>(kMaxTokenId))) {
      throw Error(ErrorCode::kInput, where + ": token \"" + token.substr(0, 60) + "\": expected an id of 0 to " +
                                         std::to_string(kMaxTokenId) + ", found " + id.dump().substr(0, 60));
    }
    vocabulary_.add(token, id.get<int64_t>(), where);
    const auto n = std::ranges::count_if(token, [](char c) { return (c & 0xc0) != 0x80; });
    longest_ = std::max(longest_, static_cast<size_t>(n));
  }
}

void BpeModel::read_merges(const JsonObject& object) {
  const Json* merges = object.find("merges");
  if (merges == nullptr || !merges->is_array()) object.fail("merges", "a list of pairs");
  std::vector<MergeRule> rules;
  rules.reserve(merges->size());
  for (size_t k = 0; k < merges->size(); ++k) {
    const Json& entry = (*merges)[k];
    const std::string where = object.where() + ": merges[" + std::to_string(k) + "]";
    if (entry.is_string()) {
      const std::string& line = entry.get_ref<const std::string&>();
      if (line.starts_with("#version")) continue;
      const size_t space = line.find(' ');
      if (space == std::string::npos || line.find(' ', space + 1) != std::string::npos) {
        throw Error(ErrorCode::kInput,
                    where + ": expected two tokens with a space between, found \"" + line.substr(0, 60) + "\"");
      }
      rules.push_back(make_rule(std::string_view(line).substr(0, space), std::string_view(line).substr(space + 1),
                                rules.size(), where));
    } else if (entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string()) {
      rules.push_back(make_rule(entry[0].get_ref<const std::string&>(), entry[1].get_ref<const std::string&>(),
                                rules.size(), where));
    } else {
      throw Error(ErrorCode::kInput,
                  where + ": expected \"a b\" or [\"a\", \"b\"], found " + std::string(entry.type_name()));
    }
  }
  merges_.build(rules);
}

MergeRule BpeModel::make_rule(std::string_view left, std::string_view right, size_t rank,
                              const std::string& where) const {
  const auto id_of = [&](std::string_view token) {
    const int32_t id = vocabulary_.id(token);
    if (id < 0)
      throw Error(ErrorCode::kInput,
                  where + ": token \"" + std::string(token.substr(0, 60)) + "\" is not in the vocabulary");
    return id;
  };
  const int32_t left_id = id_of(left);
  const int32_t right_id = id_of(right);
  if (right.size() < prefix_.size()) {
    throw Error(ErrorCode::kInput, where + ": \"" + std::string(right) + "\" lacks the continuing_subword_prefix");
  }
  const int32_t merged = id_of(std::string(left) + std::string(right.substr(prefix_.size())));
  return {pair_key(left_id, right_id), static_cast<uint32_t>(rank), merged};
}

// The id of a character, -1 if it has none; `spelled` is the character with prefix and suffix.
int32_t BpeModel::character_id(std::string_view character, std::string& spelled, bool first, bool last) const {
  const bool plain = (first || prefix_.empty()) && (!last || suffix_.empty());
  if (plain && character.size() <= 2) {
    size_t i = 0;
    return short_ids_[next_code_point(character, i)];
  }
  spelled.clear();
  if (!first) spelled += prefix_;
  spelled += character;
  if (last) spelled += suffix_;
  return vocabulary_.id(spelled);
}

// One symbol per byte, all or none.
bool BpeModel::append_bytes(std::string_view spelled, std::vector<Symbol>& symbols) const {
  for (char b : spelled) {
    if (byte_ids_[static_cast<unsigned char>(b)] < 0) return false;
  }
  for (char b : spelled) push_symbol(symbols, byte_ids_[static_cast<unsigned char>(b)]);
  return true;
}

bool BpeModel::keeps_words(bool spelled) const {
  if (has_unk_) return unk_id_ >= 0;
  if (byte_fallback_) return std::ranges::all_of(byte_ids_, [](int32_t id) { return id >= 0; });
  for (int b = 0; spelled && b < 256; ++b) {
    std::string letter;
    append_byte_level(letter, static_cast<unsigned char>(b));
    if (vocabulary_.id(letter) < 0) return false;
  }
  return spelled;
}

// Stops after more than max_symbols.
void BpeModel::split_characters(std::string_view word, size_t max_symbols, BpeScratch& scratch) const {
  std::vector<Symbol>& symbols = scratch.symbols;
  symbols.clear();
  std::string spelled;
  bool unknown_waits = false;  // one unknown token, not yet in `symbols`
  for (size_t i = 0; i < word.size() && symbols.size() <= max_symbols;) {
    const size_t start = i;
    scratch.tick();
    next_code_point(word, i);
    const std::string_view character = word.substr(start, i - start);
    const bool first = start == 0, last = i == word.size();
    const int32_t id = character_id(character, spelled, first, last);
    if (id >= 0) {
      if (unknown_waits) push_symbol(symbols, unk_id_);
      unknown_waits = false;
      push_symbol(symbols, id);
      continue;
    }
    if (byte_fallback_) {
      const std::string whole = (first ? "" : prefix_) + std::string(character) + (last ? suffix_ : "");
      if (append_bytes(whole, symbols)) continue;  // a pending unknown token stays pending, as in the reference
    }
    if (!has_unk_) continue;  // dropped
    if (unk_id_ < 0)
      throw Error(ErrorCode::kInput, "tokenizer: the unknown token \"" + unk_token_ + "\" is not in the vocabulary");
    if (unknown_waits && !fuse_unk_) push_symbol(symbols, unk_id_);
    unknown_waits = true;
  }
  if (unknown_waits) push_symbol(symbols, unk_id_);
}

void BpeModel::merge(BpeScratch& scratch) const {
  std::vector<Symbol>& symbols = scratch.symbols;
  std::vector<Candidate>& heap = scratch.heap;
  heap.clear();
  const auto candidate = [&](int32_t left, int32_t right) {
    const MergeRule* rule = merges_.find(symbols[static_cast<size_t>(left)].id, symbols[static_cast<size_t>(right)].id);
    if (rule != nullptr) heap.push_back({rule->rank, left, rule->merged});
    return rule != nullptr;
  };
  for (size_t i = 1; i < symbols.size(); ++i) {
    scratch.tick();
    candidate(static_cast<int32_t>(i - 1), static_cast<int32_t>(i));
  }
  std::make_heap(heap.begin(), heap.end());
  while (!heap.empty()) {
    scratch.tick();
    std::pop_heap(heap.begin(), heap.end());
    const Candidate top = heap.back();
    heap.pop_back();
    Symbol& left = symbols[static_cast<size_t>(top.position)];
    if (left.removed || left.next < 0) continue;
    Symbol& right = symbols[static_cast<size_t>(left.next)];
    const MergeRule* rule = merges_.find(left.id, right.id);
    if (rule == nullptr || rule->merged != top.merged) continue;  // one of the two has changed since
    left.id = top.merged;
    left.next = right.next;
    right.removed = true;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = top.position;
    if (left.previous >= 0 && candidate(left.previous, top.position)) std::push_heap(heap.begin(), heap.end());
    if (left.next >= 0 && candidate(top.position, left.next)) std::push_heap(heap.begin(), heap.end());
  }
}

void BpeModel::encode(std::string_view word, ModelScratch& base_scratch, std::vector<int32_t>& ids) const {
  if (ignore_merges_) {
    const int32_t id = vocabulary_.id(word);
    if (id >= 0) {
      ids.push_back(id);
      return;
    }
  }
  auto& scratch = static_cast<BpeScratch&>(base_scratch);
  const bool cacheable = word.size() <= kMaxCachedWord;
  if (cacheable) {
    const auto hit = scratch.words.find(std::string(word));
    if (hit != scratch.words.end()) {
      const auto begin = scratch.cached_ids.begin() + hit->second.first;
      ids.insert(ids.end(), begin, begin + hit->second.second);
      return;
    }
  }
  size_t max_symbols = SIZE_MAX;
  if (const int64_t most = scratch.budget == nullptr ? INT64_MAX : scratch.budget->max_tokens(); most < INT32_MAX) {
    max_symbols = static_cast<size_t>(std::max<int64_t>(0, most - std::ssize(ids))) * longest_;
  }
  split_characters(word, max_symbols, scratch);
  if (scratch.symbols.size() > max_symbols) scratch.budget->check(INT64_MAX);
  merge(scratch);
  const size_t before = ids.size();
  for (const Symbol& s : scratch.symbols) {
    if (!s.removed) ids.push_back(s.id);
  }
  if (cacheable && scratch.words.size() < kMaxCachedWords) {
    scratch.words.emplace(
        word, std::pair(static_cast<uint32_t>(scratch.cached_ids.size()), static_cast<uint32_t>(ids.size() - before)));
    scratch.cached_ids.insert(scratch.cached_ids.end(), ids.begin() + static_cast<std::ptrdiff_t>(before), ids.end());
  }
}

}  // namespace

std::unique_ptr<TokenModel> parse_bpe(const JsonObject& object) { return std::make_unique<BpeModel>(object); }

std::unique_ptr<TokenModel> parse_token_model(const Json* json, const std::string& where) {
  if (json == nullptr || json->is_null())
    throw Error(ErrorCode::kInput, where + ": expected the tokenizer's model, found nothing");
  const JsonObject object(*json, where);
  const std::string type = object.string("type", object.has("merges") ? "BPE" : "none");  // old files do not name it
  if (type == "BPE") return parse_bpe(object);
  throw Error(ErrorCode::kUnsupported,
              where + ": tokenizer model type " + shown_json(Json(type)) + " is not supported (supported: BPE)");
}

}  // namespace vlcache
