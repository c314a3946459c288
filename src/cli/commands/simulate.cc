// `vlcache simulate`: the hit rate that caches of some size would have had on a recorded stream of requests.
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "cli/flags/command.h"
#include "reuse/simulate/replay.h"

namespace vlcache {
namespace {

struct SimulateFlags {
  std::string trace;
  std::vector<int64_t> capacities{1000, 10000, 0};
  int64_t block = 512;
  int64_t disk = -1, shared = -1;  // -1: no such tier
  std::string prefixes = "auto", route = "rr", each;
  int replicas = 1;
  int64_t delay = 0, write_rate = 0, seed = 1;
  double recompute = 0.025, embedding_bytes = 0.1, encoder_cost = 0.5, cost_spread = 0, beside = 0;
};

const std::map<std::string, Route> kRoutes{
    {"rr", Route::kRoundRobin}, {"session", Route::kSession}, {"prefix", Route::kPrefix}, {"image", Route::kImage}};

const std::map<std::string, PrefixSaving> kPrefixSavings{
    {"auto", PrefixSaving::kAuto}, {"always", PrefixSaving::kAlways}, {"off", PrefixSaving::kOff}};

ReplayOptions options_of(const SimulateFlags& flags) {
  ReplayOptions options{.disk = {},
                        .shared = {},
                        .delay = flags.delay,
                        .write_rate = flags.write_rate,
                        .prefixes = kPrefixSavings.at(flags.prefixes),
                        .n_replicas = flags.replicas,
                        .route = kRoutes.at(flags.route),
                        .block_tokens = flags.block,
                        .recompute = flags.recompute,
                        .embedding_bytes = flags.embedding_bytes,
                        .encoder_cost = flags.encoder_cost,
                        .cost_spread = flags.cost_spread,
                        .beside = flags.beside,
                        .seed = flags.seed};
  if (flags.disk >= 0) options.disk = flags.disk;
  if (flags.shared >= 0) options.shared = flags.shared;
  return options;
}

nlohmann::ordered_json counts_json(const HitCounts& counts, HitSource first) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (size_t s = size_t(first); s < counts.size(); ++s) json[std::string(kHitSourceNames[s])] = counts[s];
  return json;
}

void print_result(const char* policy, const ReplayOptions& options, const ReplayResult& result) {
  nlohmann::ordered_json line = {{"policy", policy},
                                 {"capacity", options.capacity},
                                 {"blocks", result.n_blocks},
                                 {"hits", result.n_hits},
                                 {"rate", result.rate()}};
  line["sources"] = counts_json(result.blocks, HitSource::kRam);
  if (result.n_images > 0) {
    line["images"] = {{"total", result.n_images},
                      {"possible", result.n_images_possible},
                      {"found", result.n_images_found()},
                      {"rate", result.image_rate()},
                      {"sources", counts_json(result.images, HitSource::kMiss)}};
  }
  if (options.n_replicas > 1) line["requests"] = result.n_requests;
  std::printf("%s\n", line.dump().c_str());
}

nlohmann::ordered_json request_json(const char* policy, const ReplayOptions& options, const ReplayedRequest& found) {
  nlohmann::ordered_json images = nlohmann::ordered_json::array();
  for (const HitSource source : found.images) images.push_back(kHitSourceNames[size_t(source)]);
  return {{"policy", policy},
          {"capacity", options.capacity},
          {"replica", found.replica},
          {"hits", found.n_hits()},
          {"images", std::move(images)}};
}

void run(const SimulateFlags& flags) {
  if (!flags.each.empty()) make_folder_of(flags.each);
  const Trace trace = parse_trace(read_text_file(flags.trace), flags.trace, flags.block);
  for (const std::string& problem : trace.problems) std::fprintf(stderr, "left out: %s\n", problem.c_str());
  if (trace.requests.empty()) throw Error(ErrorCode::kInput, flags.trace + ": no request in it");
  const bool images = has_images(trace);
  std::string each;
  ReplayOptions options = options_of(flags);
  for (const int64_t capacity : flags.capacities) {
    options.capacity = capacity;
    for (const auto& [name, order] : {std::pair("lru", EvictionOrder::kLru), {"gdsf", EvictionOrder::kGdsf}}) {
      if (images && order == EvictionOrder::kLru) continue;
      options.order = order;
      const char* policy = name;
      print_result(name, options, replay(trace, options, [&](const ReplayedRequest& found) {
                     if (!flags.each.empty()) each += request_json(policy, options, found).dump() + "\n";
                   }));
    }
  }
  if (!flags.each.empty()) write_file(flags.each, each);
}

constexpr int64_t kMost = int64_t{1} << 40;

void add_tier_flags(const Command& command, SimulateFlags& flags) {
  command
      .add("--disk", flags.disk,
           "Give each replica a folder of this many blocks (--cache-disk; 0: no limit; default: no folder)")
      .range(int64_t{0}, kMost);
  command
      .add("--shared", flags.shared,
           "Give all replicas a shared server of this many blocks (--cache-redis; 0: no limit; default: no server)")
      .range(int64_t{0}, kMost);
  command
      .add("--delay", flags.delay,
           "Number of later requests that have begun when a request ends, and therefore miss the records that it "
           "writes to a tier")
      .range(int64_t{0}, kMost)
      .show_default();
  command
      .add("--write-rate", flags.write_rate,
           "Blocks that a replica can write to a tier between two requests, 0: no limit (a busy replica writes slowly)")
      .range(int64_t{0}, kMost)
      .show_default();
  command
      .add("--cache-prefixes", flags.prefixes,
           "When the KV of prompts is written to the tiers: auto (at the second use, before memory evicts it, or, of "
           "prompts with images, after the first use while the replica is idle, without the bound of "
           "--cache-first-use), always (at the first use), off (never)")
      .one_of({"auto", "always", "off"})
      .show_default();
  command.add("--replicas", flags.replicas, "Number of replicas, each with memory of --capacity blocks")
      .range(1, 1024)
      .show_default();
  command
      .add("--route", flags.route,
           "Router in front of the replicas: rr (round robin), session (the replica of the conversation), prefix (the "
           "replica with the longest cached prefix if it covers half of the prompt, else the one that computed least), "
           "image (by the first image)")
      .one_of({"rr", "session", "prefix", "image"})
      .show_default();
}

void add_image_flags(const Command& command, SimulateFlags& flags) {
  const std::string heading = "Traces with images";
  command
      .add("--recompute", flags.recompute,
           "Share of a reused image's tokens that is recomputed (--reuse vlcache:r=SHARE)")
      .range(0.0, 1.0)
      .show_default()
      .group(heading);
  command
      .add("--embedding-bytes", flags.embedding_bytes,
           "Bytes of an image's embeddings per byte of its KV: hidden size / (2 x layers x KV heads x head size)")
      .range(0.0, 100.0)
      .show_default()
      .group(heading);
  command
      .add("--encoder-cost", flags.encoder_cost,
           "Time to encode an image, as a multiple of the prefill time of its tokens (`run --json` reports both)")
      .range(0.0, 1000.0)
      .show_default()
      .group(heading);
  command
      .add("--cost-spread", flags.cost_spread,
           "Noise in the compute times that a replica measures and by which it ranks evictions: standard deviation of "
           "their logarithm (0: none)")
      .range(0.0, 10.0)
      .show_default()
      .group(heading);
  command
      .add("--beside", flags.beside,
           "Mean number of other requests that a replica computes beside one; they add part of their time to its "
           "measured compute time")
      .range(0.0, 1024.0)
      .show_default()
      .group(heading);
  command.add("--seed", flags.seed, "Seed of the random times of --cost-spread and --beside")
      .range(int64_t{0}, kMost)
      .show_default()
      .group(heading);
}

}  // namespace

void add_simulate_command(const Command& app) {
  auto flags = std::make_shared<SimulateFlags>();
  const Command command =
      app.add_command("simulate", "Simulate hit rates of caches, tiers and replicas over a recorded trace");
  command
      .add("trace", flags->trace,
           "File of JSON lines: timestamp, input_length, hash_ids (Mooncake's format); optional: output_length, "
           "session, images [{id, tokens, at}]")
      .required();
  command
      .add("--capacity", flags->capacities,
           "Blocks that the memory of a replica holds, several separated by commas, 0: no limit")
      .delimiter(',')
      .range(int64_t{0}, kMost)
      .show_default();
  command.add("--block", flags->block, "Tokens per block of the trace")
      .range(int64_t{1}, int64_t{1} << 20)
      .show_default();
  command
      .add("--each", flags->each, "File to write with a JSON line per request: replica, hits, images (default: none)")
      .value_name("FILE");
  add_tier_flags(command, *flags);
  add_image_flags(command, *flags);
  command.footer(
      "Prints a JSON line per capacity and order of eviction, lru or gdsf (frequency with ageing): policy, capacity, "
      "blocks, hits, rate; sources: hits in ram, disk, shared; requests: of each replica.\n\nSizes. A block is the KV "
      "of --block tokens, whether of a prompt or of an image by itself: --cache-ram of 24MB holds 24,000,000 / "
      "(--block x KV bytes per token) blocks; `vlcache info -m MODEL` prints the bytes. Folder and server are counted "
      "in the same blocks.\n\nA trace with images is replayed as `serve --reuse vlcache` would: KV of prompts in pages "
      "of 64 tokens, KV of images and embeddings share --capacity (gdsf alone). --block must divide 64, best 1 (an id "
      "per token).\nimages: {total, possible (seen before), found (KV not computed), rate: found / possible, "
      "sources}.\ntools/picture_trace.py writes such traces; studies/load/replicas.py compares with servers.");
  command.run([flags] { run(*flags); });
}

}  // namespace vlcache
