// Thoughts in answers: splits them off the text, and lets an answer's grammar begin where the thought ends.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/contracts/token_constraint.h"
#include "io/chat/thought_forms.h"

namespace vlcache {

class Tokenizer;

// Splits an answer as it is generated.
class ThoughtReader {
 public:
  // Without tags everything is text. `in_thought`: the prompt has begun the thought.
  ThoughtReader(ThoughtTags tags, bool in_thought);

  struct Piece {
    std::string thought, text;
  };
  Piece push(std::string_view text);
  Piece finish();

 private:
  enum class State { kBegin, kThought, kAfter, kText };
  void read(Piece& piece, bool ended);
  void read_thought(Piece& piece, bool ended);

  ThoughtTags tags_;
  State state_;
  bool has_thought_ = false;  // a part of it was passed on
  std::string held_;
};

struct ThoughtLimits {
  ThoughtTags tags;
  bool in_thought = false;
  std::optional<int> max_tokens;  // then the thought is closed
};

// Applies `inner` (null: any text) from the end of the thought on, and closes the thought in time. An answer that need
// not begin with a thought may begin with what `inner` allows. The tokenizer must outlive this.
std::unique_ptr<TokenConstraint> constrain_after_thought(std::unique_ptr<TokenConstraint> inner,
                                                         const ThoughtLimits& limits, const Tokenizer& tokenizer);

}  // namespace vlcache
