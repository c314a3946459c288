// PrefixLoad brings the beginning of a prompt from the tiers: asked for while its request is queued, filled into the
// sequence's pages layer by layer while the rest of the prompt is computed.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "engine/request.h"
#include "engine/reuse/prefix_reuse.h"

namespace vlcache {

class Engine;
class KvCaches;

class PrefixLoad final : public PageSource {
 public:
  PrefixLoad() = default;  // of nothing
  // Asks the tiers for the prompt's records, without waiting. The engine must outlive this.
  PrefixLoad(Engine& engine, const KnownPrompt& prompt);

  // ---- while the request is queued --------------------------------------------------------------------------------
  // Whether tiers are still being asked, or have not given the first layer of each record, at `until` at the latest. A
  // record that is late, missing or damaged shortens the prefix, for which other records may then be loaded.
  bool pending(Deadline until);
  // How many tokens of the prompt the prefix cache had when the tiers had answered, with those that come from them.
  int32_t n_known() const { return n_known_; }
  // Whether begin() has something to give.
  bool comes() const { return !loads_.empty(); }
  // Why nothing was loaded although tiers have some of the prompt; "": nothing kept it.
  const std::string& obstacle() const { return obstacle_; }
  // The whole prompt as tiers and the prefix cache know it; no pieces: it was not asked for.
  const ExactPrefix& prefix() const { return prefix_; }

  // ---- once it runs -----------------------------------------------------------------------------------------------
  // How many tokens are to be taken from memory, so that what comes joins them: less than memory has where that ends
  // inside a record. INT32_MAX: all; memory has as much as would come.
  int32_t begins_at();
  // Gives `sequence`, which has that many tokens, what comes after them, n_allowed tokens together at most. From then
  // on its steps wait for layers that have not arrived. Nothing changes where it has another number of tokens, or no
  // pages are free.
  void begin(Sequence& sequence, int32_t n_allowed);
  void fill(int32_t layer) override;
  // Whether layers are still on their way, at `until` at the latest.
  bool loading(Deadline until) const;
  // The same, if a step has waited in vain for one of them.
  bool loading_after_stall(Deadline until) const { return has_stalled_ && loading(until); }
  // Whether the last step failed for a layer that is still on its way, or that was missed: then the sequence's KV must
  // be released, and begin() gives what comes before the missed record.
  enum class Want : uint8_t { kNone, kComes, kMissed };
  Want take_want() { return std::exchange(want_, Want::kNone); }
  // Whether the sequence has pages that are not filled.
  bool incomplete() const { return sequence_ != nullptr; }
  // The sequence is released, or not used any more. True: it has pages that were never filled.
  bool stop();

  // What computing a token of the records took; 0: none came.
  double ms_per_token() const { return ms_per_token_; }
  // Of the first n tokens of the prompt: how many have come from each tier.
  std::map<std::string, int32_t> sources(int32_t n) const;

 private:
  void start_loads();
  int32_t joins_at(int32_t n_memory) const;
  int32_t begin_of_loads() const;
  PrefixStore::Plan plan(int32_t n_begin, int32_t n_most);
  std::vector<PrefixStore::Load>::iterator load_of(size_t piece);
  void load_planned(const PrefixStore::Plan& plan);
  struct Found {
    const PrefixStore::Piece* piece;
    ChainedTier* from;
  };
  std::string slower_than_computing(std::span<const Found> found) const;
  void drop(size_t load);
  void all_filled();

  Engine* engine_ = nullptr;
  KvCaches* kv_ = nullptr;
  ExactPrefix prefix_;
  PrefixBeginning beginning_;
  TierSearch search_;
  std::set<size_t> missed_;    // pieces of prefix_ whose records were late, missing or damaged
  Deadline by_ = kNoDeadline;  // the time limit of search and loads, which begins with the first call of pending()
  bool started_ = false;
  bool has_more_time_ = false;  // by_ was moved
  int32_t n_known_ = 0;
  int32_t n_begin_ = 0;  // tokens that come before loads_, where a shape has places
  std::string obstacle_;
  double ms_per_token_ = 0;
  std::vector<PrefixStore::Load> loads_;  // pieces in their order, which give n_known_ tokens
  Sequence* sequence_ = nullptr;          // that loads_ are given to; null: none, or all its pages are filled
  int32_t n_given_ = 0;                   // its tokens then
  std::vector<bool> filled_;              // by layer
  bool has_stalled_ = false;
  Want want_ = Want::kNone;
  struct Taken {
    int32_t begin, end;
    std::string tier;
  };
  std::vector<Taken> taken_;
};

}  // namespace vlcache
