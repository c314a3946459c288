// A Redis cluster beside a single server, both on this machine: MB/s of records, what a master's death does to lookups
// (node timeout of a second), and lookups while slots move.
//   redis_bench [ROUNDS]
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "store/redis/cluster_testing.h"
#include "store/redis/keys.h"

namespace vlcache {
namespace {

RedisTierOptions options_of(const RedisNode& node, bool cluster) {
  RedisTierOptions options;
  options.address.seeds = {node};
  options.address.cluster = cluster;
  return options;
}

// Records of the size of an image's KV in the 135M shape: 30 layers.
std::vector<Stored> make_records(int n) {
  std::vector<Stored> records;
  for (int i = 0; i < n; ++i) records.push_back(make_record(make_key(i), std::vector<size_t>(30, 200'000)));
  return records;
}
double megabytes(const std::vector<Stored>& records) { return static_cast<double>(records.size()) * 30 * 0.2; }

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

struct Speeds {
  std::vector<double> write, read;
};

void measure(RedisTier& tier, const std::vector<Stored>& records, Speeds& speeds) {
  for (const Stored& r : records) tier.erase(tier.id_of(r.record.key));
  auto start = Clock::now();
  int n_failed = 0;
  for (const Stored& r : records) n_failed += tier.put(r.record, kNoDeadline).outcome != PutOutcome::kStored;
  speeds.write.push_back(megabytes(records) / seconds_since(start));
  start = Clock::now();
  for (const Stored& r : records) n_failed += read_all(tier, r.record.key).miss.has_value();
  speeds.read.push_back(megabytes(records) / seconds_since(start));
  if (n_failed > 0) std::printf("%d records failed: %s\n", n_failed, tier.stats().last_problem.c_str());
}

void print(const char* name, const std::vector<double>& single, const std::vector<double>& cluster) {
  std::vector<double> ratios;
  for (size_t i = 0; i < single.size(); ++i) ratios.push_back(cluster[i] / single[i]);
  const auto [low, high] = std::ranges::minmax(ratios);
  std::printf("%s: single %.0f MB/s, cluster %.0f MB/s; of pairs %.0f %% (%.0f to %.0f)\n", name, median(single),
              median(cluster), 100 * median(ratios), 100 * low, 100 * high);
}

void speeds(RedisCluster& cluster, const std::filesystem::path& dir, int n_rounds) {
  RedisServer server(dir / "single");
  RedisTier one(options_of({"127.0.0.1", server.port()}, false)), many(options_of(cluster.node(0), true));
  const std::vector<Stored> records = make_records(30);
  Speeds single, clustered;
  for (int i = 0; i < n_rounds; ++i) {
    measure(one, records, single);
    measure(many, records, clustered);
  }
  print("writing", single.write, clustered.write);
  print("reading", single.read, clustered.read);
}

// Lookups of all records over and over, by two threads.
class Lookups {
 public:
  Lookups(RedisTier& tier, const std::vector<Stored>& records) : tier_(tier), records_(records) {
    for (size_t t = 0; t < threads_.size(); ++t) threads_[t] = std::thread([this, t] { run(t); });
  }
  void end() {
    going_ = false;
    for (std::thread& thread : threads_) thread.join();
  }
  std::atomic<int> n_hits = 0, n_missed = 0, n_wrong = 0;
  std::atomic<double> longest_ms = 0, last_miss_ms = 0;  // the latter since the start
  const Clock::time_point start = Clock::now();

 private:
  void run(size_t first) {
    for (size_t i = first; going_; ++i) {
      const Stored& r = records_[i % records_.size()];
      const auto begin = Clock::now();
      const ReadAll read = read_all(tier_, r.record.key);
      longest_ms = std::max(longest_ms.load(), ms_since(begin));
      if (read.miss) last_miss_ms = ms_since(start);
      ++(read.miss ? n_missed : read.sections == r.sections ? n_hits : n_wrong);
    }
  }
  RedisTier& tier_;
  const std::vector<Stored>& records_;
  std::atomic<bool> going_ = true;
  std::array<std::thread, 2> threads_;
};

std::vector<Stored> small_records(RedisTier& tier) {
  std::vector<Stored> records;
  for (int i = 0; i < 200; ++i) records.push_back(make_record(make_key(i), {20'000, 300'000}));
  for (const Stored& r : records) tier.put(r.record, kNoDeadline);
  return records;
}

void moves(RedisCluster& cluster) {
  RedisTier tier(options_of(cluster.node(1), true));
  const std::vector<Stored> records = small_records(tier);
  Lookups lookups(tier, records);
  std::set<int> moved;
  for (const Stored& r : records) {
    const int slot = redis_slot(header_name(tier.id_of(r.record.key))), from = cluster.master_of(slot);
    if (from != 1 && moved.insert(slot).second) cluster.move(slot, from, 1);
  }
  const double ms = ms_since(lookups.start);
  lookups.end();
  std::printf("moving %zu slots in %.0f ms: %d hits, %d missed, %d wrong; the longest lookup %.0f ms\n", moved.size(),
              ms, lookups.n_hits.load(), lookups.n_missed.load(), lookups.n_wrong.load(), lookups.longest_ms.load());
}

void death(const std::filesystem::path& dir) {
  RedisCluster cluster(dir, RedisCluster::Fourth::kReplica);
  RedisTier tier(options_of(cluster.node(1), true));
  const std::vector<Stored> records = small_records(tier);
  cluster.ask(0, {"WAIT", "1", "5000"});
  Lookups lookups(tier, records);
  usleep(200'000);
  const double killed_ms = ms_since(lookups.start);
  cluster.server(0).end(SIGKILL);
  while (cluster.text(3, {"INFO", "replication"}).find("role:master") == std::string::npos) usleep(5'000);
  const double promoted_ms = ms_since(lookups.start);
  usleep(4'000'000);
  lookups.end();
  std::printf(
      "a master killed: its replica serves after %.0f ms, the last miss %.0f ms after that; %d hits, %d missed, %d "
      "wrong; "
      "the longest lookup %.0f ms\n",
      promoted_ms - killed_ms, lookups.last_miss_ms - promoted_ms, lookups.n_hits.load(), lookups.n_missed.load(),
      lookups.n_wrong.load(), lookups.longest_ms.load());
}

}  // namespace
}  // namespace vlcache

int main(int argc, char** argv) {
  using namespace vlcache;
  const int n_rounds = argc > 1 ? std::atoi(argv[1]) : 9;
  const std::filesystem::path dir =
      std::filesystem::temp_directory_path() / ("vlcache-redis-bench-" + std::to_string(getpid()));
  {
    RedisCluster cluster(dir, RedisCluster::Fourth::kSpare);
    if (!cluster.running()) {
      std::fprintf(stderr, "redis-server is not installed\n");
      return 2;
    }
    speeds(cluster, dir, n_rounds);
    for (int i = 0; i < cluster.n(); ++i) cluster.ask(i, {"FLUSHALL"});
    moves(cluster);
  }
  death(dir);
  std::filesystem::remove_all(dir);
}
