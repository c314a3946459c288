// TokenMasks: which tokens of a vocabulary may come next, given a matcher.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <tuple>
#include <vector>

#include "base/clock.h"
#include "grammar/matcher.h"
#include "grammar/token_trie.h"

namespace vlcache {

// The tokens that fit a state of an automaton are found once, by walking the trie from there, and kept. Only if a token
// continues beyond the end of the state's rule, the result depends on the rule's callers: those few nodes of the trie
// are walked every time. The idea is that of XGrammar (arXiv:2411.15100), which calls the former tokens
// context-independent. Where characters are counted, the tokens depend also on how many may and must still come, but
// only up to the length of the longest token.
class StateMasks {
 public:
  struct Mask {
    std::vector<int32_t> tokens;  // if they are few; with `base`, those that it lacks
    std::vector<uint64_t> bits;   // [n_words], otherwise
    std::vector<int32_t> exits;   // nodes with others below, after whose byte the rule may have ended
    // The mask of the state that this one is like (Automaton::State::like), less the tokens of `without`. Shared with
    // the masks of other states.
    std::shared_ptr<const Mask> base;
    std::vector<int32_t> without;

    void add_to(std::span<uint64_t> bits) const;
  };
  // Shared: by this object and the threads that read the mask, which may outlive its being kept.
  using MaskPtr = std::shared_ptr<const Mask>;

  explicit StateMasks(const TokenTrie& trie) : trie_(trie) {}
  // `count`: characters that must and may still come. Thread-safe.
  MaskPtr of(const Automaton& automaton, int32_t state, Automaton::Count count = {});

 private:
  using Key = std::tuple<int32_t, int32_t, int32_t>;  // state and count

  MaskPtr walk(const Automaton& automaton, int32_t state, Automaton::Count count) const;
  MaskPtr walk_from(const Automaton& automaton, int32_t state, MaskPtr base) const;

  const TokenTrie& trie_;
  std::mutex mutex_;
  std::vector<MaskPtr> masks_;      // by state
  std::map<Key, MaskPtr> counted_;  // of states where characters are counted
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
