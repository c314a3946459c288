// Parses lines to requests, and replays requests to count hits.
#include "reuse/trace.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"

namespace vlcache {
namespace {

TraceRequest read_request(const JsonObject& line, int64_t block_tokens) {
  TraceRequest request;
  request.timestamp = line.integer("timestamp", 0);
  request.n_tokens = line.integer("input_length");
  const Json* ids = line.find("hash_ids");
  if (ids == nullptr || !ids->is_array()) line.fail("hash_ids", "a list of whole numbers");
  for (const Json& id : *ids) {
    if (!id.is_number_integer()) line.fail("hash_ids", "a list of whole numbers");
    request.blocks.push_back(id.get<Element>());
  }
  const auto n = static_cast<int64_t>(request.blocks.size());
  if (request.n_tokens < 0 || request.n_tokens > n * block_tokens || request.n_tokens <= (n - 1) * block_tokens) {
    throw Error(ErrorCode::kInput, line.where() + ": " + std::to_string(request.n_tokens) + " tokens are not " +
                                       std::to_string(n) + " blocks of " + std::to_string(block_tokens) +
                                       " (see --block)");
  }
  return request;
}

// An owner of blocks without contents.
class NoKv final : public PageGroupOwner {
  void retain(PageGroup) override {}
  void release(PageGroup) override {}
};

}  // namespace

Trace parse_trace(const std::string& text, const std::string& file, int64_t block_tokens) {
  CHECK(block_tokens > 0);
  Trace trace;
  trace.problems = read_json_lines(text, file, [&](const Json& json, const std::string& where, int /*number*/) {
    trace.requests.push_back(read_request(JsonObject(json, where), block_tokens));
  });
  return trace;
}

ReplayResult replay(const Trace& trace, EvictionClock& clock, int64_t capacity) {
  NoKv owner;
  PrefixTree tree(1, owner, clock);
  ReplayResult result;
  std::vector<PageGroup> groups;
  for (const TraceRequest& request : trace.requests) {
    groups.resize(request.blocks.size());
    result.n_blocks += std::ssize(request.blocks);
    result.n_hits += std::ssize(request.blocks) - tree.insert(request.blocks, groups);
    if (capacity > 0 && tree.n_pages() > capacity) tree.evict(tree.n_pages() - capacity);
  }
  return result;
}

}  // namespace vlcache
