// One after the other.
#include "store/tier_chain.h"

namespace vlcache {
namespace {

constexpr std::chrono::seconds kFlushTime{30};

}  // namespace

TierChain::TierChain(std::vector<std::shared_ptr<KvTier>> tiers, int64_t max_queued_bytes) {
  for (std::shared_ptr<KvTier>& tier : tiers) {
    auto worker = std::make_unique<StoreWorker>(*tier, max_queued_bytes);
    tiers_.push_back({std::move(tier), std::move(worker)});
  }
}

TierChain::~TierChain() { flush(Clock::now() + kFlushTime); }

TierChain::Tier* TierChain::find(const RecordKey& key, Deadline deadline) {
  for (Tier& t : tiers_) {
    if (t.tier->exists({&key, 1}, deadline).at(0)) return &t;
  }
  return nullptr;
}

void TierChain::save(const Record& record) {
  for (Tier& t : tiers_) t.worker->save(record);
}

bool TierChain::flush(Deadline deadline) {
  bool all = true;
  for (Tier& t : tiers_) all = t.worker->flush(deadline) && all;
  return all;
}

void TierChain::set_model(const ModelFingerprint& model) {
  for (Tier& t : tiers_) t.tier->set_model(model);
}

std::vector<TierChain::State> TierChain::stats() const {
  std::vector<State> states;
  for (const Tier& t : tiers_) states.push_back({std::string(t.tier->name()), t.tier->stats(), t.worker->stats()});
  return states;
}

}  // namespace vlcache
