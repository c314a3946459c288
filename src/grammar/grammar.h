// Grammars: what a request may answer, compiled for a vocabulary, and the constraints that hold generations to it.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "base/token_constraint.h"
#include "grammar/token_masks.h"

namespace vlcache {

class Grammar;
// Shared: by the generations that are held to it, which end on the inference thread, and by whoever keeps it for the
// next request.
using GrammarPtr = std::shared_ptr<const Grammar>;

// Of a vocabulary. Any thread.
class Grammars {
 public:
  // Ids below vocab_size, which is that of the logits. Keep the tokenizer alive; its tokens are read when they are
  // first needed.
  Grammars(const Tokenizer& tokenizer, int64_t vocab_size);
  ~Grammars();

  // Any JSON object.
  GrammarPtr json_object();
  // What a schema allows (schema_rules.h says which there are). Throws Error(kInput or kUnsupported): "<where>: ...".
  GrammarPtr json_schema(const nlohmann::ordered_json& schema, const std::string& where);
  // The texts of the rule that `build` adds to an automaton and returns. `name` is what it is remembered by.
  GrammarPtr compile(const std::string& name, FunctionRef<int32_t(Automaton& automaton)> build);

  // A mark as rules of `build` are to have it: the special token of that name, or the text where there is none.
  std::string mark(std::string_view name) const;

  // A generation's text is, from its first token on, one of the grammar's, behind the tokens of `opening`.
  std::unique_ptr<TokenConstraint> constrain(GrammarPtr grammar, std::vector<int32_t> opening = {}) const;

 private:
  struct Vocabulary;
  Vocabulary& vocabulary();

  const Tokenizer& tokenizer_;
  int64_t vocab_size_;
  std::once_flag once_;
  // Shared: grammars outlive this where generations do.
  std::shared_ptr<Vocabulary> vocabulary_;
  std::mutex mutex_;                                        // of what follows
  std::list<std::pair<std::string, GrammarPtr>> grammars_;  // the last used first
};

}  // namespace vlcache
