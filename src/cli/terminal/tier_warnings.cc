#include "cli/terminal/tier_warnings.h"

#include <cstdio>
#include <exception>

namespace vlcache {

TierWarnings::~TierWarnings() {
  if (std::uncaught_exceptions() == 0) tell();  // else a more important error is about to be printed
}

void TierWarnings::tell() {
  for (const std::shared_ptr<KvTier>& tier : tiers_) {
    const std::string name(tier->name()), problem = tier->stats().last_problem;
    if (problem.empty() || !told_.insert(name).second) continue;
    std::fprintf(stderr, "--cache-%s: %s; falling back to recomputation\n", name.c_str(), problem.c_str());
  }
}

}  // namespace vlcache
