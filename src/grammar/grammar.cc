// Compilation of grammars, and masking of logits.
#include "grammar/grammar.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/error.h"
#include "base/request_limits.h"
#include "grammar/json_rules.h"
#include "grammar/schema_rules.h"
#include "io/tokenizer/tokenizer.h"

namespace vlcache {
namespace {

// Clients send the same few schemas repeatedly; each keeps its masks.
constexpr size_t kMaxGrammars = 32;
// Inside strings nearly any token is allowed, and such a mask takes milliseconds: for this long the thread that reads
// the request makes masks, and the inference thread only masks that a schema needs beyond that.
constexpr std::chrono::milliseconds kMaskTime{200};

}  // namespace

// The tokens as bytes, and the masks of the rules that all grammars share.
struct Grammars::Vocabulary {
  Vocabulary(const Tokenizer& tokenizer, int64_t vocab_size) : trie(tokenizer, vocab_size), json_masks(trie) {}

  TokenTrie trie;
  StateMasks json_masks;
};

class Grammar {
 public:
  // owner is shared: the vocabulary must outlive its grammars.
  Grammar(Automaton automaton, int32_t rule, std::vector<std::string> notes, std::shared_ptr<void> owner,
          const TokenTrie& trie, StateMasks& json_masks)
      : automaton_(std::move(automaton)),
        rule_(rule),
        notes_(std::move(notes)),
        owner_(std::move(owner)),
        trie_(trie),
        masks_(automaton_, trie, json_masks) {}

  const Automaton& automaton() const { return automaton_; }
  int32_t rule() const { return rule_; }
  const TokenTrie& trie() const { return trie_; }
  TokenMasks& masks() const { return masks_; }
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  const Automaton automaton_;
  int32_t rule_;
  std::vector<std::string> notes_;
  std::shared_ptr<void> owner_;
  const TokenTrie& trie_;
  mutable TokenMasks masks_;  // has its own lock
};

namespace {

class GrammarConstraint final : public TokenConstraint {
 public:
  GrammarConstraint(GrammarPtr grammar, std::vector<int32_t> opening)
      : grammar_(std::move(grammar)),
        opening_(std::move(opening)),
        matcher_(grammar_->automaton()),
        bits_(static_cast<size_t>(grammar_->trie().n_ids() + 63) / 64) {
    matcher_.begin(grammar_->rule());
  }

  bool mask(std::span<float> logits, std::span<const int32_t> ends) override {
    if (n_taken_ < opening_.size()) {
      std::ranges::fill(bits_, 0);
      allow(opening_[n_taken_]);
    } else {
      grammar_->masks().allowed(matcher_, bits_);
      for (const int32_t token : ends) {
        const bool known = 0 <= token && token < std::ssize(logits);
        if (matcher_.may_end() && known) allow(token);
      }
    }
    apply(logits);
    return std::ranges::any_of(bits_, [](uint64_t word) { return word != 0; });
  }

  void take(int32_t token) override {
    if (n_taken_ < opening_.size()) {
      CHECK(token == opening_[n_taken_]);
      ++n_taken_;
      return;
    }
    for (const char c : grammar_->trie().bytes(token)) CHECK(matcher_.push(static_cast<uint8_t>(c)));
    matcher_.commit();
  }

  bool complete() const override { return n_taken_ == opening_.size() && matcher_.may_end() && !matcher_.may_go_on(); }

 private:
  void allow(int32_t token) { bits_[static_cast<size_t>(token) / 64] |= uint64_t{1} << (token % 64); }

  void apply(std::span<float> logits) const {
    constexpr float kNever = -std::numeric_limits<float>::infinity();
    for (size_t i = 0; i < logits.size(); i += 64) {
      const std::span<float> some = logits.subspan(i, std::min<size_t>(64, logits.size() - i));
      const uint64_t word = i / 64 < bits_.size() ? bits_[i / 64] : 0;
      if (word == 0) {
        std::ranges::fill(some, kNever);
      } else if (~word != 0) {
        for (size_t k = 0; k < some.size(); ++k) {
          if ((word >> k & 1) == 0) some[k] = kNever;
        }
      }
    }
  }

  GrammarPtr grammar_;
  std::vector<int32_t> opening_;
  size_t n_taken_ = 0;  // of `opening`
  Matcher matcher_;
  std::vector<uint64_t> bits_;
};

}  // namespace

Grammars::Grammars(const Tokenizer& tokenizer, int64_t vocab_size) : tokenizer_(tokenizer), vocab_size_(vocab_size) {}
Grammars::~Grammars() = default;

Grammars::Vocabulary& Grammars::vocabulary() {
  std::call_once(once_, [this] { vocabulary_ = std::make_shared<Vocabulary>(tokenizer_, vocab_size_); });
  return *vocabulary_;
}

GrammarPtr Grammars::compile(const std::string& name, FunctionRef<int32_t(Automaton& automaton)> build,
                             std::vector<std::string>* notes) {
  {
    const std::lock_guard lock(mutex_);
    const auto known = std::ranges::find(grammars_, name, [](const auto& g) -> const std::string& { return g.first; });
    if (known != grammars_.end()) {
      grammars_.splice(grammars_.begin(), grammars_, known);
      if (notes != nullptr) *notes = known->second->notes();
      return known->second;
    }
  }
  Automaton automaton;
  add_json_rules(automaton);
  automaton.set_deadline(Clock::now() + kMaxGrammarTime);
  const int32_t rule = build(automaton);
  Vocabulary& v = vocabulary();
  auto grammar = std::make_shared<const Grammar>(std::move(automaton), rule,
                                                 notes == nullptr ? std::vector<std::string>() : *notes, vocabulary_,
                                                 v.trie, v.json_masks);
  grammar->masks().make(Clock::now() + kMaskTime);
  const std::lock_guard lock(mutex_);
  grammars_.emplace_front(name, grammar);
  if (grammars_.size() > kMaxGrammars) grammars_.pop_back();
  return grammar;
}

GrammarPtr Grammars::json_object() {
  return compile("object", [](Automaton&) { return static_cast<int32_t>(kJsonObject); });
}

GrammarPtr Grammars::json_schema(const nlohmann::ordered_json& schema, const std::string& where) {
  return compile("schema " + schema.dump(), [&](Automaton& automaton) { return add_schema(automaton, schema, where); });
}

std::string Grammars::mark(std::string_view name) const {
  const int32_t id = tokenizer_.token_id(name);
  if (id < 0 || id >= vocab_size_ || !tokenizer_.is_special(id)) return std::string(name);
  return kSpecialTokenByte + std::string(name);
}

std::unique_ptr<TokenConstraint> Grammars::constrain(GrammarPtr grammar, std::vector<int32_t> opening) const {
  return std::make_unique<GrammarConstraint>(std::move(grammar), std::move(opening));
}

}  // namespace vlcache
