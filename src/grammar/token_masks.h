// TokenMasks: which tokens of a vocabulary may come next, given a matcher.
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

// The tokens that fit a state of an automaton are found once, by walking the trie from there, and kept. Only if a token
// continues beyond the end of the state's rule, the result depends on the rule's callers: those few nodes of the trie
// are walked every time. The idea is that of XGrammar (arXiv:2411.15100), which calls the former tokens
// context-independent.
class StateMasks {
 public:
  struct Mask {
    std::vector<int32_t> tokens;  // if they are few
    std::vector<uint64_t> bits;   // [n_words], otherwise
    std::vector<int32_t> exits;   // nodes with others below, after whose byte the rule may have ended
  };

  explicit StateMasks(const TokenTrie& trie) : trie_(trie) {}
  // Thread-safe; the reference stays valid.
  const Mask& of(const Automaton& automaton, int32_t state);

 private:
  std::unique_ptr<Mask> walk(const Automaton& automaton, int32_t state) const;

  const TokenTrie& trie_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Mask>> masks_;  // by state
};

// The masks of one automaton; the states of its JSON rules have masks that other automata share.
class TokenMasks {
 public:
  TokenMasks(const Automaton& automaton, const TokenTrie& trie, StateMasks& json_masks)
      : automaton_(automaton), trie_(trie), json_masks_(json_masks), masks_(trie) {}

  // bits [(vocab + 63) / 64]: set for tokens after which the text may continue or end. `matcher`, of the same
  // automaton, is restored.
  void allowed(Matcher& matcher, std::span<uint64_t> bits);
  // Makes masks of states until that time, so that decode steps need not.
  void make(Clock::time_point until);

 private:
  const Automaton& automaton_;
  const TokenTrie& trie_;
  StateMasks& json_masks_;
  StateMasks masks_;
};

}  // namespace vlcache
