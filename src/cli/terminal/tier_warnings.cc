#include "cli/terminal/tier_warnings.h"

#include <cstdio>
#include <exception>
#include <utility>

namespace vlcache {
namespace {

using namespace std::chrono_literals;

// A tier works again once nothing has failed for so long: of a cluster, some nodes may be down.
constexpr auto kSteady = 2s;
// After so many lines of a tier whose state changes often, they are printed as seldom as this.
constexpr int kManyChanges = 8;
constexpr auto kSeldom = 60s;

void print(const KvTier& tier, const std::string& text) {
  std::fprintf(stderr, "--cache-%s: %s\n", std::string(tier.name()).c_str(), text.c_str());
}

std::string failure_text(const TierStats& stats) {
  if (stats.cannot_read.empty()) return stats.cannot_write + "; nothing new is stored there until it works";
  if (stats.cannot_write.empty()) return stats.cannot_read + "; nothing is loaded from there until it works";
  return stats.cannot_write + "; nothing is stored there or loaded from there until it works";
}

}  // namespace

TierWarnings::~TierWarnings() {
  if (std::uncaught_exceptions() == 0) tell();  // else a more important error is about to be printed
}

void TierWarnings::watch(std::vector<std::shared_ptr<KvTier>> tiers) {
  tiers_ = std::move(tiers);
  for (const std::shared_ptr<KvTier>& tier : tiers_) tier->probe();
  tell();
}

void TierWarnings::tell() {
  for (const std::shared_ptr<KvTier>& tier : tiers_) {
    const TierStats stats = tier->stats();
    Told& told = told_[tier.get()];
    tell_change(*tier, stats, told);
    if (!stats.bad_record.empty() && !std::exchange(told.bad_record, true)) {
      print(*tier, stats.bad_record + "; falling back to recomputation");
    }
    if (!stats.large_record.empty() && !std::exchange(told.large_record, true)) {
      print(*tier, stats.large_record + "; not stored");
    }
  }
}

void TierWarnings::tell_change(const KvTier& tier, const TierStats& stats, Told& told) const {
  const auto now = Clock::now();
  if (stats.works() == !told.failed || (told.failed && now - stats.failed_at < kSteady)) return;
  if (told.n_changes >= kManyChanges && now - told.changed < kSeldom) return;
  told.failed = !told.failed;
  told.changed = now;
  ++told.n_changes;
  print(tier, (tier.place().empty() ? "" : tier.place() + ": ") + (told.failed ? failure_text(stats) : "works again"));
}

}  // namespace vlcache
