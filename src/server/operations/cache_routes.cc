#include "server/operations/cache_routes.h"

#include <charconv>

#include "api/json_fields.h"
#include "api/result_json.h"
#include "base/error.h"
#include "base/json_text.h"
#include "engine/engine.h"
#include "engine/image_catalog.h"
#include "engine/prompt/prompt_media.h"
#include "server/http/json_reply.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

Sha256Digest read_id(const OrderedJson& body) {
  const std::string text = text_in(body, "id");
  Sha256Digest digest{};
  bool good = text.size() == 2 * digest.size();
  for (size_t i = 0; good && i < digest.size(); ++i) {
    const char* begin = text.data() + 2 * i;
    good = std::from_chars(begin, begin + 2, digest[i], 16).ptr == begin + 2;
  }
  if (!good) bad_field("id: expected the 64 hexadecimal digits that answers give as an image's hash");
  return digest;
}

OrderedJson json_of(const ImageEntry& entry) {
  return {{"id", hex(entry.key)},
          {"kv_bytes", entry.kv_bytes},
          {"embeddings_bytes", entry.rows_bytes},
          {"uses", entry.n_uses},
          {"pinned", entry.pinned}};
}

OrderedJson json_of(const ReuseCounts::Kind& kind) {
  const AnswerCounts &answers = kind.evidence.answers, floor = noise_floor(kind.evidence);
  OrderedJson json{{"open", kind.open_since.has_value()},
                   {"compared", answers.n},
                   {"same", answers.n - answers.n_changed},
                   {"kl", kind.evidence.kl},
                   {"floor", {{"compared", floor.n}, {"changed", floor.n_changed}}},
                   {"text", words(kind)}};
  if (kind.open_since) json["open_since"] = std::chrono::system_clock::to_time_t(*kind.open_since);
  return json;
}

// For an image that is not in memory.
HttpResponse unknown_image(const Sha256Digest& id) {
  return refusal(404, "id: memory keeps no image " + hex(id) + " (GET /v1/cache/entries)", "invalid_request_error",
                 "not_found");
}

}  // namespace

HttpResponse CacheRoutes::stats() const {
  const Inference::State state = inference_.state();
  OrderedJson stats = totals_json(state.caches);
  stats["kv"] = {{"bytes", state.kv_bytes}, {"max_bytes", state.kv_max_bytes}};
  const NamedImages::State named = named_images_.state();
  stats["named_images"] = {{"images", named.n_images}, {"bytes", named.bytes}, {"max_bytes", named.max_bytes}};
  stats["requests"] = {{"running", state.n_running}, {"waiting", state.n_waiting}};
  for (const auto& [codec, reuse] : state.reuse) {
    const OrderedJson counts{
        {"one_image", json_of(reuse.one)}, {"several_images", json_of(reuse.several)}, {"given_up", reuse.n_given_up}};
    if (codec == state.kv_codec) stats["reuse"].update(counts);
    stats["reuse"]["by_codec"][std::string(kv_codec_name(codec))] = counts;
  }
  return json_response(stats);
}

void CacheRoutes::entries(const ExchangePtr& exchange) {
  inference_.between_steps([exchange](Engine& engine) {
    OrderedJson data = OrderedJson::array();
    for (const ImageEntry& entry : engine.kv().images().list()) data.push_back(json_of(entry));
    exchange->send(json_response({{"object", "list"}, {"data", std::move(data)}}));
  });
}

void CacheRoutes::pin(const HttpRequest& request, const ExchangePtr& exchange) {
  const OrderedJson body = parse_body(request.body);
  const Sha256Digest id = read_id(body);
  const bool pins = bool_field(body, "pinned", true);
  inference_.between_steps([exchange, id, pins](Engine& engine) {
    ImageCatalog& entries = engine.kv().images();
    if (!entries.has(id)) return exchange->send(unknown_image(id));
    pins ? entries.pin(id) : entries.unpin(id);
    exchange->send(json_response({{"id", hex(id)}, {"pinned", pins}}));
  });
}

void CacheRoutes::drop(const HttpRequest& request, const ExchangePtr& exchange) {
  const Sha256Digest id = read_id(parse_body(request.body));
  inference_.between_steps([exchange, id](Engine& engine) {
    ImageCatalog& entries = engine.kv().images();
    const bool known = entries.has(id) || engine.kv().tiers() != nullptr;  // tiers are not asked
    if (!known) return exchange->send(unknown_image(id));
    exchange->send(json_response({{"id", hex(id)}, {"freed_bytes", entries.drop(id)}}));
  });
}

void CacheRoutes::reset(const ExchangePtr& exchange) {
  named_images_.clear();
  responses_.clear();
  inference_.between_steps([exchange](Engine& engine) {
    engine.media().forget_documents();
    exchange->send(json_response({{"freed_bytes", engine.kv().reset()}}));
  });
}

}  // namespace vlcache
