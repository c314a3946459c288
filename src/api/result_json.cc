#include "api/result_json.h"

#include <cmath>

#include "base/contracts/kv.h"

namespace vlcache {

using OrderedJson = nlohmann::ordered_json;

namespace {

// In a reply: each takes some 30 bytes, and a piece of a stream must not exceed what a client may leave unread.
constexpr size_t kMaxShownTokens = 16384;

OrderedJson cache_json(const CacheReport& cache) {
  constexpr std::string_view kSource[] = {"computed", "prefix", "ram", ""};
  constexpr std::string_view kEncoder[] = {"skipped", "hit", "computed"};
  OrderedJson images = OrderedJson::array();
  for (const CacheReport::Image& image : cache.images) {
    images.push_back({{"hash", hex(image.key)},
                      {"n_tokens", image.n_tokens},
                      {"source", image.tier.empty() ? kSource[static_cast<size_t>(image.source)] : image.tier},
                      {"recomputed_tokens", image.n_recomputed},
                      {"form", image.form},
                      {"kept_tokens", image.n_kept},
                      {"encoder", kEncoder[static_cast<size_t>(image.encoder)]},
                      {"reason", image.reason}});
    if (image.similar) {
      images.back()["similar_to"] = hex(*image.similar);
      images.back()["changed_tokens"] = image.n_changed;
    }
    if (image.grid[0] == 0) continue;
    images.back()["grid"] = image.grid;
    images.back()["dropped_tokens"] = image.n_dropped;
    if (image.video < 0) continue;
    images.back()["video"] = image.video;
    images.back()["frames"] = image.n_frames;
  }
  int32_t n_in_ram = cache.n_prefix_tokens;
  for (const auto& [tier, n] : cache.prefix_sources) n_in_ram -= n;
  OrderedJson sources;
  sources["ram"] = n_in_ram;
  for (const auto& [tier, n] : cache.prefix_sources) sources[tier] = n;
  return {{"prefix_tokens", cache.n_prefix_tokens},
          {"prefix_sources", std::move(sources)},
          {"prefix_reason", cache.prefix_reason},
          {"saved_ms", std::round(cache.saved_ms * 1000) / 1000},
          {"images", std::move(images)},
          {"encoded", cache.n_encoded()}};
}

OrderedJson tier_json(const TierChain::State& tier) {
  const TierStats& s = tier.stats;
  OrderedJson reasons = OrderedJson::object();
  for (size_t i = 0; i < kMissReasons; ++i) {
    if (s.n_missed[i] > 0) reasons[std::string(miss_reason_name(static_cast<MissReason>(i)))] = s.n_missed[i];
  }
  OrderedJson puts = OrderedJson::object();
  for (size_t i = 0; i < kPutOutcomes; ++i) {
    if (s.n_put[i] > 0) puts[std::string(put_outcome_name(static_cast<PutOutcome>(i)))] = s.n_put[i];
  }
  return {{"hits", s.n_hits},           {"misses", s.n_misses()},
          {"failed", s.n_failed()},     {"miss_reasons", std::move(reasons)},
          {"writes", std::move(puts)},  {"refused_writes", tier.queue.n_refused},
          {"bytes_read", s.bytes_read}, {"bytes_written", s.bytes_written},
          {"evictions", s.n_evictions}, {"read_ms", s.read_ms},
          {"write_ms", s.write_ms}};
}

OrderedJson timings_json(const Timings& t) {
  const auto ms = [](double x) { return std::round(x * 1000.0) / 1000.0; };
  return {{"load", ms(t.load_ms)},     {"queue", ms(t.queue_ms)},     {"read", ms(t.read_ms)},
          {"vision", ms(t.vision_ms)}, {"prefill", ms(t.prefill_ms)}, {"compress", ms(t.compress_ms)},
          {"ttft", ms(t.ttft_ms)},     {"decode", ms(t.decode_ms)},   {"gap", ms(t.gap_ms)}};
}

// Why there are no codes although they were asked for.
std::string not_coded_text(const KvReport& kv) {
  const auto held = kv.bytes_by_codec.find(kv.codec);
  if (!is_coded(kv.codec) || kv.coded_bytes_read > 0 || held == kv.bytes_by_codec.end() || held->second > 0) return "";
  return "no head held more than " + std::to_string(kCodedBlockPages * kPageSlots) + " tokens; pages become " +
         std::string(kv_codec_name(kv.codec)) + " beyond that";
}

OrderedJson kv_json(const KvReport& kv) {
  OrderedJson by_codec = OrderedJson::object();
  for (const auto& [codec, bytes] : kv.bytes_by_codec) by_codec[std::string(kv_codec_name(codec))] = bytes;
  OrderedJson json{{"mode", kv.mode},
                   {"codec", kv_codec_name(kv.codec)},
                   {"acted_after_tokens", kv.n_before_acting < 0 ? OrderedJson() : OrderedJson(kv.n_before_acting)},
                   {"bytes", kv.bytes},
                   {"bytes_by_codec", std::move(by_codec)},
                   {"coded_bytes_read", kv.coded_bytes_read},
                   {"bytes_read", kv.reads.bytes},
                   {"bytes_saved_by_sharing", kv.reads.saved},
                   {"prompt_bytes", kv.prompt_bytes},
                   {"peak_bytes", kv.peak_bytes},
                   {"slots", kv.slots}};
  if (std::string why = not_compressed_text(kv, "kv draft"); !why.empty()) json["not_compressed"] = std::move(why);
  if (std::string why = not_coded_text(kv); !why.empty()) json["not_coded"] = std::move(why);
  return json;
}

OrderedJson preemptions_json(const Preemptions& p) {
  return {{"times", p.n_times}, {"replayed_tokens", p.n_replayed}, {"different_tokens", p.n_different}};
}

// The tokens kept of each image; of images with too many tokens, the sizes alone.
OrderedJson kept_json(const std::vector<KeptImage>& images) {
  OrderedJson json = OrderedJson::array();
  size_t n_shown = 0;
  for (const KeptImage& image : images) {
    OrderedJson& entry = json.emplace_back(OrderedJson{{"width", image.width}, {"height", image.height}});
    n_shown += image.shares.size();
    if (n_shown > kMaxShownTokens) continue;
    OrderedJson &kept = entry["kept"] = OrderedJson::array(), &rects = entry["rects"] = OrderedJson::array();
    for (const float share : image.shares) kept.push_back(std::round(static_cast<double>(share) * 1000.0) / 1000.0);
    for (const std::optional<PixelRect>& r : image.rects) {
      rects.push_back(
          !r ? OrderedJson()
             : OrderedJson{std::lround(r->left), std::lround(r->top), std::lround(r->right), std::lround(r->bottom)});
    }
  }
  return json;
}

}  // namespace

std::string not_compressed_text(const KvReport& kv, std::string_view draft) {
  if (kv.n_before_acting >= 0) return "";
  return "the answer ended within " + std::to_string(kv.acts_after_tokens) + " tokens; " + std::string(draft) +
         " compresses the prompt";
}

OrderedJson totals_json(const CacheTotals& totals) {
  const auto cache_json = [](const CacheTotals::Cache& cache) {
    return OrderedJson{{"hits", cache.n_hits},           {"misses", cache.n_misses},
                       {"tokens", cache.n_tokens},       {"asked_tokens", cache.n_asked_tokens},
                       {"evictions", cache.n_evictions}, {"bytes", cache.bytes},
                       {"miss_reasons", cache.misses}};
  };
  OrderedJson tiers = OrderedJson::object();
  for (const TierChain::State& tier : totals.tiers) tiers[tier.name] = tier_json(tier);
  return {
      {"prefix", cache_json(totals.prefix)},
      {"image_kv", cache_json(totals.image_kv)},
      {"encoder", cache_json(totals.encoder)},
      {"images_in_prefixes", {{"images", totals.n_images_in_prefixes}, {"tokens", totals.n_image_tokens_in_prefixes}}},
      {"saved_ms", std::round(totals.saved_ms)},
      {"max_bytes", totals.max_bytes},
      {"tiers", std::move(tiers)}};
}

OrderedJson served_json(const GenerateResult& result, bool explain, const std::vector<std::string>& notes) {
  OrderedJson kv = kv_json(result.kv), cache = cache_json(result.cache), timings = timings_json(result.timings);
  timings.erase("load");
  if (!explain) {
    kv.erase("slots");
    cache.erase("prefix_reason");
    cache.erase("saved_ms");
    for (OrderedJson& image : cache["images"]) image.erase("reason");
  } else if (!result.kv.images.empty()) {
    kv["images"] = kept_json(result.kv.images);
  }
  OrderedJson json{{"kv", std::move(kv)}, {"cache", std::move(cache)}, {"timings_ms", std::move(timings)}};
  if (result.preemptions.n_times > 0) json["preemptions"] = preemptions_json(result.preemptions);
  if (!notes.empty()) json["notes"] = notes;
  return json;
}

OrderedJson result_json(const GenerateResult& result, const CacheTotals& totals) {
  OrderedJson ids = OrderedJson::array(), logprobs = OrderedJson::array();
  for (const GeneratedToken& token : result.tokens) {
    ids.push_back(token.id);
    OrderedJson top = OrderedJson::array();
    for (const TokenLogprob& t : token.top) top.push_back({{"token_id", t.token}, {"logprob", t.logprob}});
    logprobs.push_back({{"token_id", token.id}, {"logprob", token.logprob}, {"top", std::move(top)}});
  }
  OrderedJson out{
      {"text", result.text},
      {"token_ids", std::move(ids)},
      {"finish_reason", name(result.finish_reason)},
      {"tokens", {{"prompt", result.n_prompt}, {"vision", result.n_vision}, {"generated", result.tokens.size()}}},
      {"timings_ms", timings_json(result.timings)},
      {"kv", kv_json(result.kv)},
      {"cache", cache_json(result.cache)},
      {"caches", totals_json(totals)}};
  if (result.preemptions.n_times > 0) out["preemptions"] = preemptions_json(result.preemptions);
  if (result.has_logprobs) out["logprobs"] = std::move(logprobs);
  return out;
}

}  // namespace vlcache
