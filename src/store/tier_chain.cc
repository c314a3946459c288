#include "store/tier_chain.h"

#include <algorithm>
#include <utility>

namespace vlcache {
namespace {

constexpr std::chrono::seconds kFlushTime{30};

}  // namespace

ChainedTier* TierSearch::find(size_t i, Asked** open) {
  for (Asked& asked : asked_) {
    const auto at = std::ranges::lower_bound(asked.records, i);
    if (at == asked.records.end() || *at != i) continue;
    if (!asked.answer.wait(Deadline::min())) {
      if (open == nullptr) continue;
      *open = &asked;
      return nullptr;
    }
    if (asked.answer.has(static_cast<size_t>(at - asked.records.begin()))) return asked.tier;
  }
  return nullptr;
}

bool TierSearch::wait(size_t i, Deadline until) {
  while (true) {
    Asked* open = nullptr;
    if (find(i, &open) != nullptr || open == nullptr) return true;
    if (!open->answer.wait(until)) return false;
  }
}

ChainedTier* TierSearch::tier(size_t i) { return find(i, nullptr); }

TierChain::TierChain(std::vector<std::shared_ptr<KvTier>> tiers, int64_t max_queued_bytes) {
  const int64_t share = max_queued_bytes / std::max<int64_t>(1, std::ssize(tiers));
  for (std::shared_ptr<KvTier>& tier : tiers) {
    auto worker = std::make_unique<StoreWorker>(*tier, share, &pace_);
    tiers_.push_back({std::move(tier), std::move(worker)});
  }
}

TierChain::~TierChain() {
  flush(Clock::now() + kFlushTime);
  pace_.stop();
}

TierSearch TierChain::search(const std::vector<RecordKey>& keys, Deadline deadline) {
  TierSearch search;
  std::vector<size_t> left(keys.size());
  for (size_t i = 0; i < left.size(); ++i) left[i] = i;
  for (ChainedTier& t : tiers_) {
    if (left.empty()) break;
    std::vector<RecordKey> asked;
    for (const size_t i : left) asked.push_back(keys[i]);
    if (!t.tier->answers_at_once()) {
      search.asked_.push_back({&t, t.worker->ask(std::move(asked), deadline), left});
      continue;
    }
    std::vector<bool> there = t.tier->exists(asked, deadline);
    std::vector<size_t> missing;
    for (size_t i = 0; i < left.size(); ++i) {
      if (!there[i]) missing.push_back(left[i]);
    }
    search.asked_.push_back({&t, RecordAnswer(std::move(there)), std::exchange(left, std::move(missing))});
  }
  return search;
}

ChainedTier* TierChain::find(const RecordKey& key, Deadline deadline) {
  TierSearch found = search({key}, deadline);
  found.wait(0, deadline);
  return found.tier(0);
}

bool TierChain::is_near(const RecordKey& key) {
  return std::ranges::any_of(tiers_, [&](const ChainedTier& t) {
    return t.tier->answers_at_once() && t.tier->exists({&key, 1}, kNoDeadline).at(0);
  });
}

void TierChain::save(const Record& record) {
  for (ChainedTier& t : tiers_) t.worker->save(record);
}

bool TierChain::takes(int64_t bytes) {
  bool any = false;
  for (ChainedTier& t : tiers_) any = t.worker->takes(bytes) || any;
  return any;
}

bool TierChain::queues_at_most(int64_t bytes) const {
  return std::ranges::all_of(tiers_, [&](const ChainedTier& t) { return t.worker->stats().queued_bytes <= bytes; });
}

void TierChain::used(const RecordKey& key) {
  for (ChainedTier& t : tiers_) t.worker->erase([key](KvTier& tier) { tier.used(key); });
}

void TierChain::probe_failed() {
  for (ChainedTier& t : tiers_) {
    if (!t.tier->stats().works()) t.worker->erase([](KvTier& tier) { tier.probe(); });
  }
}

void TierChain::bring_nearer(const Record& record, const ChainedTier& from) {
  for (ChainedTier& t : tiers_) {
    if (&t == &from) return;
    t.worker->save(record);
  }
}

RecordId TierChain::id_of(const RecordKey& key) const {
  return tiers_.empty() ? RecordId{} : tiers_[0].tier->id_of(key);
}

void TierChain::erase(const RecordKey& key) {
  for (ChainedTier& t : tiers_) t.worker->erase(key);
}

void TierChain::erase(const std::function<void(KvTier& tier)>& job) {
  for (ChainedTier& t : tiers_) t.worker->erase(job);
}

RecordAnswer TierChain::claim(const RecordKey& key, Clock::duration time, Deadline deadline) {
  if (tiers_.empty()) return RecordAnswer(std::vector{true});
  const ChainedTier& last = tiers_.back();
  if (last.tier->answers_at_once()) return RecordAnswer(std::vector{last.tier->claim(key, time, deadline)});
  return last.worker->claim(key, time, deadline);
}

void TierChain::release(const RecordKey& key) {
  if (!tiers_.empty()) tiers_.back().worker->erase([key](KvTier& tier) { tier.release(key); });
}

bool TierChain::flush(Deadline deadline) {
  bool all = true;
  for (ChainedTier& t : tiers_) all = t.worker->flush(deadline) && all;
  return all;
}

void TierChain::set_model(const ModelFingerprint& model) {
  for (ChainedTier& t : tiers_) t.tier->set_model(model);
}

std::vector<TierChain::State> TierChain::stats() const {
  std::vector<State> states;
  for (const ChainedTier& t : tiers_)
    states.push_back({std::string(t.tier->name()), t.tier->stats(), t.worker->stats()});
  return states;
}

}  // namespace vlcache
