// `vlcache simulate`: the hit rate that a prefix cache of some size would have had on a recorded stream of requests.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "cli/flags/command.h"
#include "reuse/trace.h"

namespace vlcache {
namespace {

struct SimulateFlags {
  std::string trace;
  std::vector<int64_t> capacities{1000, 10000, 0};
  int64_t block = 512;
};

void run(const SimulateFlags& flags) {
  const Trace trace = parse_trace(read_text_file(flags.trace), flags.trace, flags.block);
  for (const std::string& problem : trace.problems) std::fprintf(stderr, "left out: %s\n", problem.c_str());
  if (trace.requests.empty()) throw Error(ErrorCode::kInput, flags.trace + ": no request in it");
  for (const int64_t capacity : flags.capacities) {
    LruClock lru;
    GdsfClock gdsf;
    for (const auto& [name, clock] : {std::pair<const char*, EvictionClock*>{"lru", &lru}, {"gdsf", &gdsf}}) {
      const ReplayResult result = replay(trace, *clock, capacity);
      const nlohmann::ordered_json line = {{"policy", name},
                                           {"capacity", capacity},
                                           {"blocks", result.n_blocks},
                                           {"hits", result.n_hits},
                                           {"rate", result.rate()}};
      std::printf("%s\n", line.dump().c_str());
    }
  }
}

}  // namespace

void add_simulate_command(const Command& app) {
  auto flags = std::make_shared<SimulateFlags>();
  const Command command = app.add_command("simulate", "block hit rate of a prefix cache over a recorded trace");
  command.add("trace", flags->trace, "JSON lines: timestamp, input_length, hash_ids (as Mooncake's traces)").required();
  command.add("--capacity", flags->capacities, "blocks the cache holds, 0: no limit")
      .delimiter(',')
      .range(int64_t{0}, int64_t{1} << 40)
      .show_default();
  command.add("--block", flags->block, "tokens of a block of the trace")
      .range(int64_t{1}, int64_t{1} << 20)
      .show_default();
  command.footer(
      "Prints a JSON line per capacity and order of eviction, lru or gdsf (times asked for, with age):\n"
      "policy, capacity, blocks, hits, rate.");
  command.run([flags] { run(*flags); });
}

}  // namespace vlcache
