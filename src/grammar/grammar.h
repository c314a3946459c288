// Grammars: what a request's answer may be, compiled for a vocabulary, and the constraints that enforce it while tokens
// are generated.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/contracts/token_constraint.h"
#include "base/function_ref.h"
#include "grammar/token_masks.h"

namespace vlcache {

class Grammar;
// Shared: by the generations constrained by it, which end on the inference thread, and by the list that keeps it for
// later requests.
using GrammarPtr = std::shared_ptr<const Grammar>;

// The grammars of one vocabulary. Thread-safe.
class Grammars {
 public:
  // Ids below vocab_size, which is that of the logits. The tokenizer must outlive this; its tokens are read at first
  // use.
  Grammars(const Tokenizer& tokenizer, int64_t vocab_size);
  ~Grammars();

  // Any JSON object.
  GrammarPtr json_object();
  // The values that a schema allows (schema_rules.h lists the supported ones). Throws Error(kInput or kUnsupported):
  // "<where>: ...".
  GrammarPtr json_schema(const nlohmann::ordered_json& schema, const std::string& where);
  // The texts of the rule that `build` adds to an automaton and returns. `name` is the key under which the result is
  // kept, with `notes`, which build may write.
  GrammarPtr compile(const std::string& name, FunctionRef<int32_t(Automaton& automaton)> build,
                     std::vector<std::string>* notes = nullptr);

  // The text of a mark for the rules of `build`: the special token of that name, or the name itself if there is none.
  std::string mark(std::string_view name) const;

  // A generation's text is, from its first token on, one of the grammar's, after the tokens of `opening`.
  std::unique_ptr<TokenConstraint> constrain(GrammarPtr grammar, std::vector<int32_t> opening = {}) const;

 private:
  struct Vocabulary;
  Vocabulary& vocabulary();

  const Tokenizer& tokenizer_;
  int64_t vocab_size_;
  std::once_flag once_;
  // Shared: a generation may outlive this, and with it its grammar.
  std::shared_ptr<Vocabulary> vocabulary_;
  std::mutex mutex_;                                        // guards the members below
  std::list<std::pair<std::string, GrammarPtr>> grammars_;  // most recently used first
};

}  // namespace vlcache
