// TokenMasks: the tokens that may come next, of a matcher and a vocabulary.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/clock.h"
#include "grammar/matcher.h"
#include "grammar/token_trie.h"

namespace vlcache {

// What of a vocabulary fits a state of an automaton is found once, by walking the trie from there, and kept. Only where
// a token goes on behind the end of the state's rule it depends on who called that rule: those few nodes of the trie
// are walked anew each time. The idea is that of XGrammar (arXiv:2411.15100), which calls the former tokens
// context-independent.
class StateMasks {
 public:
  struct Mask {
    std::vector<int32_t> tokens;  // where they are few
    std::vector<uint64_t> bits;   // [n_words], else
    std::vector<int32_t> exits;   // nodes with others below, behind whose byte the rule may have ended
  };

  explicit StateMasks(const TokenTrie& trie) : trie_(trie) {}
  // Any thread; the reference stays good.
  const Mask& of(const Automaton& automaton, int32_t state);

 private:
  std::unique_ptr<Mask> walk(const Automaton& automaton, int32_t state) const;

  const TokenTrie& trie_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Mask>> masks_;  // by state
};

// Of one automaton; the states of its JSON rules have masks that other automata share.
class TokenMasks {
 public:
  TokenMasks(const Automaton& automaton, const TokenTrie& trie, StateMasks& json_masks)
      : automaton_(automaton), trie_(trie), json_masks_(json_masks), masks_(trie) {}

  // bits [(vocab + 63) / 64]: set for tokens behind which the text may go on or end. `matcher`, of the same automaton,
  // is left as it was.
  void allowed(Matcher& matcher, std::span<uint64_t> bits);
  // Makes masks of states until then, so that no step has to.
  void make(Clock::time_point until);

 private:
  const Automaton& automaton_;
  const TokenTrie& trie_;
  StateMasks& json_masks_;
  StateMasks masks_;
};

}  // namespace vlcache
