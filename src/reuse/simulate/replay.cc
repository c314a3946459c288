// Tiers, replicas of whole blocks, and the routing of requests.
#include "reuse/simulate/replay.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "reuse/simulate/replica.h"

namespace vlcache {
namespace {

std::unique_ptr<EvictionClock> make_clock(EvictionOrder order) {
  if (order == EvictionOrder::kLru) return std::make_unique<LruClock>();
  return std::make_unique<GdsfClock>();
}

class BlockReplica final : public Replica {
 public:
  BlockReplica(const ReplayOptions& options, ReplayTiers& tiers)
      : capacity_(options.capacity),
        tiers_(tiers),
        clock_(make_clock(options.order)),
        tree_(1, owner_, *clock_),
        saver_(tiers, tree_, {}, options.prefixes) {}

  int64_t n_known(const TraceRequest& request) override { return tree_.n_common(request.blocks); }

  ReplayedRequest serve(const TraceRequest& request) override {
    ReplayedRequest found;
    const int64_t n_known = tree_.n_common(request.blocks);
    found.blocks[size_t(HitSource::kRam)] = n_known;
    if (!saver_.off()) use_tiers(request.blocks, n_known, found.blocks);
    pages_.resize(std::max(pages_.size(), request.blocks.size()), NoPages::kPage);
    tree_.insert(request.blocks, std::span(pages_).first(request.blocks.size()));
    if (capacity_ > 0 && tree_.n_pages() > capacity_) tree_.evict(tree_.n_pages() - capacity_);
    return found;
  }

 private:
  // Reads blocks from the n_known-th on until one is missing; then the prompt has used all of them.
  void use_tiers(std::span<const Element> blocks, int64_t n_known, HitCounts& found) {
    std::vector<PrefixStore::Piece> pieces;  // a block each
    Sha256Digest key{};
    for (int32_t i = 0; i < std::ssize(blocks); ++i) {
      key = replay_key(key, blocks.subspan(static_cast<size_t>(i), 1));
      pieces.push_back({.begin = i, .end = i + 1, .key = {.content = key, .layout = {}}, .images = {}});
    }
    for (auto i = static_cast<size_t>(n_known); i < pieces.size(); ++i) {
      const HitSource source = tiers_.read_and_copy(pieces[i].key.content, kTokenBytes);
      if (source == HitSource::kMiss) break;
      ++found[size_t(source)];
    }
    saver_.used({blocks.begin(), blocks.end()}, std::move(pieces), /*cost=*/1);
  }

  int64_t capacity_;
  ReplayTiers& tiers_;
  NoPages owner_;
  std::unique_ptr<EvictionClock> clock_;
  PrefixTree tree_;
  ReplicaSaver saver_;
  std::vector<PageGroup> pages_;  // as many as a request has had blocks
};

// Spreads ids over replicas, close ones too (splitmix64).
uint64_t mixed(int64_t id) {
  uint64_t x = static_cast<uint64_t>(id) + 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

class Router {
 public:
  Router(Route route, std::vector<std::unique_ptr<Replica>>& replicas)
      : route_(route), replicas_(replicas), n_computed_(replicas.size()) {}

  size_t choose(const TraceRequest& request) {
    if (route_ == Route::kPrefix) return by_prefix(request);
    if (route_ == Route::kImage && !request.images.empty()) {
      return static_cast<size_t>(mixed(request.images[0].id) % replicas_.size());
    }
    if (route_ != Route::kSession) return next();
    const auto [at, is_new] = sessions_.try_emplace(request.session);
    if (is_new) at->second = next();
    return at->second;
  }
  void served(size_t replica, int64_t n_computed) { n_computed_[replica] += n_computed; }

 private:
  size_t next() { return n_sent_++ % replicas_.size(); }

  size_t by_prefix(const TraceRequest& request) {
    std::vector<int64_t> known;
    for (const auto& replica : replicas_) known.push_back(replica->n_known(request));
    const int64_t most = *std::ranges::max_element(known);
    const bool follows = most > 0 && 2 * most >= std::ssize(request.blocks);
    size_t best = replicas_.size();
    for (size_t i = 0; i < replicas_.size(); ++i) {
      if (follows && known[i] < most) continue;
      if (best == replicas_.size() || n_computed_[i] < n_computed_[best]) best = i;
    }
    return best;
  }

  Route route_;
  std::vector<std::unique_ptr<Replica>>& replicas_;
  std::vector<int64_t> n_computed_;  // blocks, by replica
  std::map<int64_t, size_t> sessions_;
  size_t n_sent_ = 0;
};

void check(const Trace& trace, const ReplayOptions& options) {
  if (options.route == Route::kImage && !has_images(trace)) {
    throw Error(ErrorCode::kInput, "--route image: expected requests with images, found none");
  }
  if (options.route == Route::kSession &&
      std::ranges::any_of(trace.requests, [](const TraceRequest& r) { return r.session < 0; })) {
    throw Error(ErrorCode::kInput, "--route session: expected a session >= 0 in every request, found one without");
  }
  if (has_images(trace) && (options.block_tokens > kPageSlots || kPageSlots % options.block_tokens != 0)) {
    throw Error(ErrorCode::kInput, "--block " + std::to_string(options.block_tokens) +
                                       ": with images, expected 1, 2, " +
                                       "4, ... or 64 tokens, which divide a page of 64");
  }
}

// Counts what was found.
class Counter {
 public:
  explicit Counter(int32_t n_replicas) { result_.n_requests.resize(static_cast<size_t>(n_replicas)); }

  void add(const TraceRequest& request, const ReplayedRequest& found) {
    result_.n_blocks += std::ssize(request.blocks);
    result_.n_hits += found.n_hits();
    ++result_.n_requests[static_cast<size_t>(found.replica)];
    for (size_t s = 0; s < found.blocks.size(); ++s) result_.blocks[s] += found.blocks[s];
    for (const HitSource source : found.images) ++result_.images[size_t(source)];
    result_.n_images += std::ssize(request.images);
    for (const TraceImage& image : request.images) result_.n_images_possible += seen_.insert(image.id).second ? 0 : 1;
  }
  const ReplayResult& result() const { return result_; }

 private:
  ReplayResult result_;
  std::set<int64_t> seen_;
};

}  // namespace

bool has_images(const Trace& trace) {
  return std::ranges::any_of(trace.requests, [](const TraceRequest& r) { return !r.images.empty(); });
}

Sha256Digest replay_key(const Sha256Digest& before, std::span<const Element> elements) {
  Sha256 hash;
  hash.add(std::as_bytes(std::span(before)));
  hash.add(std::as_bytes(elements));
  return hash.finish();
}

ReplayTier::ReplayTier(int64_t max_bytes, double evicts_to)
    : max_bytes_(max_bytes), slack_(static_cast<int64_t>((1 - evicts_to) * static_cast<double>(max_bytes))) {}

bool ReplayTier::read(const Sha256Digest& key) {
  const auto found = records_.find(key);
  if (found == records_.end()) return false;
  Entry& entry = found->second;
  queue_.erase(entry.order);
  if (!entry.order.first) once_bytes_ -= entry.bytes;
  entry.order = {true, ++n_uses_};
  queue_[entry.order] = key;
  return true;
}

// Only records that were used once, unless `used_again`.
void ReplayTier::evict_down_to(int64_t bytes, bool used_again) {
  while (used_bytes_ > bytes && !queue_.empty() && (used_again || !queue_.begin()->first.first)) {
    const auto at = records_.find(queue_.begin()->second);
    used_bytes_ -= at->second.bytes;
    if (!at->second.order.first) once_bytes_ -= at->second.bytes;
    records_.erase(at);
    queue_.erase(queue_.begin());
  }
}

void ReplayTier::write(const Sha256Digest& key, int64_t bytes, RecordRank rank) {
  constexpr double kRoomyShare = 0.9;  // RedisTier's
  if (records_.contains(key) || bytes > max_bytes_) return;
  const bool full = used_bytes_ > max_bytes_ - bytes;
  const bool yields = is_folder() && rank != RecordRank::kUsual;
  if (full && yields && (rank == RecordRank::kYields || used_bytes_ - once_bytes_ > max_bytes_ - bytes)) return;
  if (!is_folder() && rank == RecordRank::kFirstUse &&
      max_bytes_<kNoLimit&& static_cast<double>(used_bytes_ + bytes)> kRoomyShare * static_cast<double>(max_bytes_)) {
    return;
  }
  if (full) evict_down_to(std::max<int64_t>(0, max_bytes_ - bytes - slack_), /*used_again=*/!yields);
  const Order order{!yields, ++n_uses_};
  records_[key] = {bytes, order};
  queue_[order] = key;
  used_bytes_ += bytes;
  if (yields) once_bytes_ += bytes;
}

void TierLink::write(const Sha256Digest& key, int64_t bytes, RecordRank rank) {
  if (delay_ == 0 && rate_ == 0) {
    tier_.write(key, bytes, rank);
  } else {
    queue_.push_back({n_requests_ + delay_ + 1, key, bytes, rank});
  }
}

void TierLink::advance() {
  ++n_requests_;
  n_written_ += rate_;
  while (!queue_.empty() && queue_.front().due <= n_requests_ && (rate_ == 0 || n_written_ >= queue_.front().bytes)) {
    n_written_ -= rate_ == 0 ? 0 : queue_.front().bytes;
    tier_.write(queue_.front().key, queue_.front().bytes, queue_.front().rank);
    queue_.pop_front();
  }
  if (queue_.empty() || queue_.front().due > n_requests_) n_written_ = 0;
}

HitSource ReplayTiers::read(const Sha256Digest& key) const {
  if (disk && disk->tier().read(key)) return HitSource::kDisk;
  return shared && shared->tier().read(key) ? HitSource::kShared : HitSource::kMiss;
}

HitSource ReplayTiers::read_and_copy(const Sha256Digest& key, int64_t bytes) {
  const HitSource source = read(key);
  if (source == HitSource::kShared && disk) disk->write(key, bytes, RecordRank::kUsual);
  return source;
}

void ReplayTiers::write(const Sha256Digest& key, int64_t bytes, RecordRank rank) {
  for (std::optional<TierLink>* link : {&disk, &shared}) {
    if (*link) (*link)->write(key, bytes, rank);
  }
}

void ReplayTiers::write_claimed(const Sha256Digest& key, int64_t bytes) {
  if (disk) disk->write(key, bytes, RecordRank::kUsual);
  if (shared) shared->tier().write(key, bytes, RecordRank::kUsual);
}

void ReplayTiers::advance() {
  for (std::optional<TierLink>* link : {&disk, &shared}) {
    if (*link) (*link)->advance();
  }
}

std::unique_ptr<Replica> make_block_replica(const ReplayOptions& options, ReplayTiers& tiers) {
  return std::make_unique<BlockReplica>(options, tiers);
}

ReplayResult replay(const Trace& trace, const ReplayOptions& options,
                    const std::function<void(const ReplayedRequest&)>& each) {
  CHECK(options.n_replicas > 0);
  check(trace, options);
  const bool images = has_images(trace);
  const int64_t block = images ? options.block_tokens : 1;
  const int64_t rate = options.write_rate == 0 ? 0 : replay_bytes(options.write_rate, block);
  std::optional<ReplayTier> shared;
  if (options.shared) shared.emplace(replay_bytes(*options.shared, block), /*evicts_to=*/1);
  std::deque<ReplayTier> disks;
  std::deque<ReplayTiers> tiers;
  std::vector<std::unique_ptr<Replica>> replicas;
  for (int32_t i = 0; i < options.n_replicas; ++i) {
    ReplayTiers& own = tiers.emplace_back();
    if (options.disk) {
      ReplayTier& disk = disks.emplace_back(replay_bytes(*options.disk, block), /*evicts_to=*/0.9);
      own.disk.emplace(disk, options.delay, rate);
    }
    if (shared) own.shared.emplace(*shared, options.delay, rate);
    replicas.push_back(images ? make_image_replica(options, own, i) : make_block_replica(options, own));
  }
  Router router(options.route, replicas);
  Counter counter(options.n_replicas);
  for (const TraceRequest& request : trace.requests) {
    for (ReplayTiers& own : tiers) own.advance();
    const size_t replica = router.choose(request);
    ReplayedRequest found = replicas[replica]->serve(request);
    found.replica = static_cast<int32_t>(replica);
    router.served(replica, std::ssize(request.blocks) - found.n_hits());
    counter.add(request, found);
    if (each) each(found);
  }
  return counter.result();
}

}  // namespace vlcache
