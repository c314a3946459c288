// PrefixLoad brings the beginning of a prompt from the tiers into the prefix cache, while its request is queued.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/request.h"
#include "engine/reuse/prefix_reuse.h"

namespace vlcache {

class Engine;

class PrefixLoad {
 public:
  PrefixLoad() = default;  // of nothing
  // Asks the tiers for the prompt's records, without waiting. The engine must outlive this.
  PrefixLoad(Engine& engine, const KnownPrompt& prompt);

  // Whether tiers are still being asked, or records loaded, at `until` at the latest. When nothing is pending any more,
  // what has arrived is in the prefix cache. Of a record that is late, missing or damaged, the prefix ends before it.
  bool pending(Deadline until);
  // How many tokens of the prompt the prefix cache had when the tiers had answered, with those that were loaded.
  int32_t n_known() const { return n_known_; }
  // Why nothing was loaded although tiers have some of the prompt; "": nothing kept it.
  const std::string& obstacle() const { return obstacle_; }
  // The whole prompt as tiers and the prefix cache know it; no pieces: it was not asked for.
  const ExactPrefix& prefix() const { return prefix_; }
  // What computing a token of the records that were loaded took; 0: none was.
  double ms_per_token() const { return ms_per_token_; }
  // Of the first n tokens of the prompt: how many have come from each tier.
  std::map<std::string, int32_t> sources(int32_t n) const;

 private:
  void start_loads();
  struct Found {
    const PrefixStore::Piece* piece;
    ChainedTier* from;
  };
  std::string slower_than_computing(std::span<const Found> found) const;
  void take();

  Engine* engine_ = nullptr;
  ExactPrefix prefix_;
  TierSearch search_;
  Deadline by_ = kNoDeadline;  // the time limit of search and loads, which begins with the first call of pending()
  bool started_ = false;
  int32_t n_known_ = 0;
  std::string obstacle_;
  double ms_per_token_ = 0;
  std::vector<PrefixStore::Load> loads_;  // of consecutive pieces
  struct Taken {
    int32_t begin, end;
    std::string tier;
  };
  std::vector<Taken> taken_;
};

}  // namespace vlcache
