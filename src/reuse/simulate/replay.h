// Replays a trace without a model, through the caches that a process has: to count what would have been hits, with
// tiers and in several processes.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "reuse/prefix/prefix_saver.h"
#include "reuse/simulate/trace.h"

namespace vlcache {

enum class EvictionOrder : uint8_t { kLru, kGdsf };

// Which replica a request is sent to.
enum class Route : uint8_t {
  kRoundRobin,
  kSession,  // that of its conversation; conversations round robin
  kPrefix,   // the one whose memory has the most of its beginning, if that is half of it; else the one that computed
             // least
  kImage,    // by the id of its first image; requests without images round robin
};

struct ReplayOptions {
  EvictionOrder order = EvictionOrder::kGdsf;  // of traces without images
  // In blocks; 0: no limit. Memory and disk are each replica's own.
  int64_t capacity = 0;
  std::optional<int64_t> disk, shared;  // nullopt: there is no such tier
  // Requests that have begun when one before them ends and writes; and blocks that a replica writes to a tier from one
  // request to the next, of all: 0: no limit.
  int64_t delay = 0, write_rate = 0;
  PrefixSaving prefixes = PrefixSaving::kAuto;
  int32_t n_replicas = 1;
  Route route = Route::kRoundRobin;
  // For traces with images: tokens of a block; and per token of an image, the share that is recomputed where its KV is
  // reused, and bytes of its embeddings and time of its encoding, KV and computing it being 1.
  int64_t block_tokens = 1;
  double recompute = 0.025;
  double embedding_bytes = 0.1;
  double encoder_cost = 0.5;
  // Times are measured, and vary: the standard deviation of their logarithm, drawn with the seed.
  double cost_spread = 0;
  // The number of other requests, on average, that a replica computes beside one: the time of its prompt includes a
  // part of theirs, from none to all, and it ends after that many others have begun.
  double beside = 0;
  int64_t seed = 1;
};

// Where something was found.
enum class HitSource : uint8_t { kMiss, kPrefix, kRam, kDisk, kShared };
inline constexpr std::array<std::string_view, 5> kHitSourceNames{"computed", "prefix", "ram", "disk", "shared"};
using HitCounts = std::array<int64_t, kHitSourceNames.size()>;

// What a request found.
struct ReplayedRequest {
  int32_t replica = 0;
  HitCounts blocks{};             // of the prompt's beginning, by where they were; prefixes in memory are kRam
  std::vector<HitSource> images;  // of each image, where its KV was
  int64_t n_hits() const {
    return blocks[size_t(HitSource::kRam)] + blocks[size_t(HitSource::kDisk)] + blocks[size_t(HitSource::kShared)];
  }
};

struct ReplayResult {
  int64_t n_blocks = 0, n_hits = 0;
  HitCounts blocks{};             // hits by source
  int64_t n_images = 0;           // in all prompts
  int64_t n_images_possible = 0;  // those that an earlier request or an earlier place in the prompt had
  HitCounts images{};
  std::vector<int64_t> n_requests;  // of each replica
  double rate() const { return n_blocks == 0 ? 0 : static_cast<double>(n_hits) / static_cast<double>(n_blocks); }
  // Of the images that could be found.
  double image_rate() const {
    return n_images_possible == 0 ? 0 : static_cast<double>(n_images_found()) / static_cast<double>(n_images_possible);
  }
  int64_t n_images_found() const { return n_images - images[size_t(HitSource::kMiss)]; }
};

bool has_images(const Trace& trace);

// Every request hits the cached part of its beginning and stores all of it.
//   without images: by block; the excess is evicted after each request.
//   with images: as a vlcache server that reuses images wherever they are (KV of prompts in pages of 64 tokens, KV of
//   images and embeddings under one budget). block_tokens must divide 64.
// `each` is called for every request. Throws Error(kInput) if the trace lacks what route or options require.
ReplayResult replay(const Trace& trace, const ReplayOptions& options,
                    const std::function<void(const ReplayedRequest&)>& each = {});

}  // namespace vlcache
