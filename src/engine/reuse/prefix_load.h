// PrefixLoad brings the beginning of a prompt from the tiers into the prefix cache, while its request is queued.
#pragma once

#include <cstdint>
#include <map>
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
  // Of the first n tokens of the prompt: how many have come from each tier.
  std::map<std::string, int32_t> sources(int32_t n) const;

 private:
  void start_loads();
  void take();

  Engine* engine_ = nullptr;
  std::vector<Element> key_;
  std::vector<PrefixStore::Piece> pieces_;
  TierSearch search_;
  Deadline by_ = kNoDeadline;  // the time limit of search and loads, which begins with the first call of pending()
  bool started_ = false;
  std::vector<PrefixStore::Load> loads_;  // of consecutive pieces
  struct Taken {
    int32_t begin, end;
    std::string tier;
  };
  std::vector<Taken> taken_;
};

}  // namespace vlcache
