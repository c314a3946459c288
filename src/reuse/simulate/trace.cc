// Parses lines to requests.
#include "reuse/simulate/trace.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"

namespace vlcache {
namespace {

constexpr int64_t kMostTokens = 1 << 30, kMostAnswerTokens = 1 << 20;  // far beyond any context

int64_t count_of(const JsonObject& object, const char* key, int64_t most = kMostTokens) {
  const int64_t n = object.integer(key, 0);
  if (n < 0 || n > most) object.fail(key, "a number of tokens up to " + std::to_string(most));
  return n;
}

std::vector<Element> read_blocks(const JsonObject& line) {
  std::vector<Element> blocks;
  const Json* ids = line.find("hash_ids");
  if (ids == nullptr || !ids->is_array()) line.fail("hash_ids", "a list of whole numbers");
  for (const Json& id : *ids) {
    if (!id.is_number_integer()) line.fail("hash_ids", "a list of whole numbers");
    blocks.push_back(id.get<Element>());
  }
  return blocks;
}

std::vector<TraceImage> read_images(const JsonObject& line, int64_t n_tokens) {
  std::vector<TraceImage> images;
  const Json* list = line.find("images");
  if (list == nullptr) return images;
  if (!list->is_array()) line.fail("images", "a list of objects with id and tokens");
  int64_t end = 0;
  for (const Json& json : *list) {
    const JsonObject object(json, line.where() + ": image " + std::to_string(images.size() + 1));
    TraceImage image{.id = object.integer("id"), .begin = end, .n_tokens = count_of(object, "tokens")};
    if (image.n_tokens == 0) object.fail("tokens", "a number of tokens from 1 on");
    if (object.has("at")) image.begin = count_of(object, "at");
    if (image.begin < end) object.fail("at", "a token after the image before it");
    end = image.end();
    if (end > n_tokens) object.fail("tokens", "an image that ends within the prompt");
    images.push_back(image);
  }
  return images;
}

TraceRequest read_request(const JsonObject& line, int64_t block_tokens) {
  TraceRequest request;
  request.timestamp = line.integer("timestamp", 0);
  request.session = line.integer("session", -1);
  if (!line.has("input_length")) line.fail("input_length", "a number of tokens");
  request.n_tokens = count_of(line, "input_length");
  request.n_answer = count_of(line, "output_length", kMostAnswerTokens);
  request.blocks = read_blocks(line);
  const auto n = static_cast<int64_t>(request.blocks.size());
  if (request.n_tokens > n * block_tokens || request.n_tokens <= (n - 1) * block_tokens) {
    throw Error(ErrorCode::kInput, line.where() + ": " + std::to_string(request.n_tokens) + " tokens are not " +
                                       std::to_string(n) + " blocks of " + std::to_string(block_tokens) +
                                       " (see --block)");
  }
  request.images = read_images(line, request.n_tokens);
  return request;
}

}  // namespace

Trace parse_trace(const std::string& text, const std::string& file, int64_t block_tokens) {
  CHECK(block_tokens > 0);
  Trace trace;
  trace.problems = read_json_lines(text, file, [&](const Json& json, const std::string& where, int /*number*/) {
    trace.requests.push_back(read_request(JsonObject(json, where), block_tokens));
  });
  return trace;
}

}  // namespace vlcache
