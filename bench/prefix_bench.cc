// Page-steps a second of the prefix tree: a page of 64 tokens that is matched, inserted or evicted, with nothing behind
// the pages and with real ones in the 1.1B shape; and what it takes to go on from 32k tokens that are there.
#include <algorithm>
#include <cstdio>
#include <random>
#include <vector>

#include "base/clock.h"
#include "ops/factory.h"
#include "reuse/prefix/prefix_cache.h"

namespace vlcache {
namespace {

class NoKv final : public PageGroupOwner {
  void retain(PageGroup) override {}
  void release(PageGroup) override {}
};

// Conversations that go on: each request is one of a thousand beginnings, cut anywhere, and something new.
class Requests {
 public:
  std::vector<Element> next() {
    const auto which = static_cast<Element>(random_() % 1000);
    std::vector<Element> key(64 * (1 + random_() % 32));
    for (size_t i = 0; i < key.size(); ++i) key[i] = which * 100'000 + static_cast<Element>(i);
    const size_t n_new = 64 * (1 + random_() % 8);
    for (size_t i = 0; i < n_new; ++i) key.push_back(static_cast<Element>(1'000'000'000 + random_() % 1'000'000));
    return key;
  }

 private:
  std::mt19937 random_{1};
};

void tree_alone() {
  NoKv owner;
  GdsfClock clock;
  PrefixTree tree(64, owner, clock);
  Requests requests;
  std::vector<std::vector<Element>> keys;
  for (int i = 0; i < 4000; ++i) keys.push_back(requests.next());
  int64_t n_steps = 0;
  const auto begin = Clock::now();
  for (const std::vector<Element>& key : keys) {
    const std::vector<PageGroup> groups(key.size() / 64);
    n_steps += std::ssize(tree.match(key).groups);
    n_steps += tree.insert(key, groups);
    n_steps += tree.evict(std::max<int64_t>(0, tree.n_pages() - 10'000));
  }
  const double ms = ms_since(begin);
  std::printf("tree alone: %lld page-steps, %.2f million a second\n", static_cast<long long>(n_steps),
              static_cast<double>(n_steps) / ms / 1000);
}

void with_pages() {
  const auto backend = make_backend("auto", DType::kBF16);
  const KvShape shape = KvShape::uniform(22, 4, 64, KvCodec::kBF16);
  PagePools pools(*backend, shape, int64_t{8} << 30);
  CacheBudget budget(int64_t{3} << 30);
  PrefixCache prefixes(budget, pools, shape);
  Requests requests;
  std::vector<std::vector<Element>> keys;
  for (int i = 0; i < 1500; ++i) keys.push_back(requests.next());
  int64_t n_steps = 0;
  double ms = 0;
  std::vector<int32_t> tokens;
  for (const std::vector<Element>& key : keys) {
    KvCache cache(pools, *backend, shape);
    cache.reserve(std::ssize(key));
    const int64_t evicted = prefixes.stats().n_evictions;
    auto begin = Clock::now();
    const int32_t known = prefixes.n_known(key) / 64 * 64;
    const PrefixTree::Pin pin = prefixes.share(std::span(key).first(static_cast<size_t>(known)), cache);
    ms += ms_since(begin);
    tokens.clear();
    for (auto t = known; t < static_cast<int32_t>(key.size()); ++t) tokens.push_back(t);
    for (int32_t layer = 0; layer < shape.n_layers() && !tokens.empty(); ++layer) cache.append(layer, tokens);
    begin = Clock::now();
    prefixes.keep(key, cache, 1.0);
    ms += ms_since(begin);
    n_steps += std::ssize(key) / 64 + prefixes.stats().n_evictions - evicted;
  }
  std::printf("with pages of the 1.1B shape (88 a step): %lld page-steps, %.0f thousand a second\n",
              static_cast<long long>(n_steps), static_cast<double>(n_steps) / ms);

  std::vector<Element> long_key(32768);
  for (size_t i = 0; i < long_key.size(); ++i) long_key[i] = -1 - static_cast<Element>(i);
  prefixes.clear();
  {
    KvCache cache(pools, *backend, shape);
    tokens.resize(long_key.size());
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i);
    for (int32_t layer = 0; layer < shape.n_layers(); ++layer) cache.append(layer, tokens);
    prefixes.keep(long_key, cache, 1.0);
  }
  std::vector<double> adopt, drop;
  for (int i = 0; i < 20; ++i) {
    KvCache cache(pools, *backend, shape);
    auto begin = Clock::now();
    const PrefixTree::Pin pin = prefixes.share(long_key, cache);
    adopt.push_back(ms_since(begin));
    begin = Clock::now();
    cache.clear();
    drop.push_back(ms_since(begin));
  }
  std::ranges::sort(adopt);
  std::ranges::sort(drop);
  std::printf("32k tokens, %d pages: adopted in %.2f ms (%.2f us a group of 88), dropped in %.2f ms (%.2f us)\n",
              512 * 88, adopt[10], adopt[10] / 512 * 1000, drop[10], drop[10] / 512 * 1000);
}

}  // namespace
}  // namespace vlcache

int main() {
  vlcache::tree_alone();
  vlcache::with_pages();
}
