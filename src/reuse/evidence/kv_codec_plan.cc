#include "reuse/evidence/kv_codec_plan.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/format.h"
#include "base/json.h"
#include "reuse/evidence/codec_field.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int64_t kPlanFormat = 1;
constexpr size_t kMaxWays = 64;

OrderedJson codec_evidence_json(const CodecEvidence& e) {
  return {{"tokens", e.tokens.n}, {"changed", e.tokens.n_changed}, {"kl", e.kl}};
}

OrderedJson codec_evidences_json(const std::map<std::string, CodecEvidence>& all) {
  OrderedJson json = OrderedJson::object();
  for (const auto& [name, evidence] : all) json[name] = codec_evidence_json(evidence);
  return json;
}

CodecEvidence codec_evidence(const JsonObject& o) {
  const auto count = [&](const char* key, int64_t most) {
    const int64_t n = o.integer(key);
    if (n < 0 || n > most) o.fail(key, "an integer from 0 to " + std::to_string(most));
    return n;
  };
  CodecEvidence e;
  e.tokens.n = count("tokens", INT32_MAX);
  e.tokens.n_changed = count("changed", e.tokens.n);
  e.kl = o.number("kl");
  if (!(e.kl >= 0)) o.fail("kl", "a number >= 0");
  return e;
}

std::map<std::string, CodecEvidence> codec_evidences(const JsonObject& file, std::string_view key) {
  const JsonObject o = file.object(key);
  if (o.raw().size() > kMaxWays) file.fail(key, "at most " + std::to_string(kMaxWays) + " entries");
  std::map<std::string, CodecEvidence> all;
  for (const auto& [name, ignored] : o.raw().items()) all[name] = codec_evidence(o.object(name));
  return all;
}

}  // namespace

CodecVerdict judge(const CodecEvidence& evidence, const std::map<std::string, CodecEvidence>& floor,
                   const CodecRule& rule) {
  ReuseEvidence tops{.answers = evidence.tokens, .floor = {}, .scores = {}};
  CodecVerdict verdict;
  for (const auto& [way, measured] : floor) {
    tops.floor.push_back({way, measured.tokens});
    verdict.kl_limit = std::max(verdict.kl_limit, measured.kl);
  }
  verdict.top = judge(tops, rule.top);
  verdict.kl_limit += rule.kl_margin;
  verdict.enough = evidence.tokens.n >= rule.fewest_tokens;
  verdict.yes = verdict.enough && verdict.top.yes() && evidence.kl <= verdict.kl_limit;
  return verdict;
}

std::string codec_words(std::string_view name, const CodecEvidence& evidence, const CodecVerdict& verdict,
                        const CodecRule& rule) {
  const AnswerCounts& tokens = evidence.tokens;
  std::string text(name);
  if (tokens.n == 0) return text + ": not measured";
  text += format(": %lld of %lld likeliest tokens stayed the same, at most ",
                 static_cast<long long>(tokens.n - tokens.n_changed), static_cast<long long>(tokens.n)) +
          bound_text(verdict.top.bound) + format(" change (%g %%), ", 100 * rule.top.confidence) +
          format("%.3g %% may; mean divergence %.2g, %.2g may", 100 * verdict.top.limit, evidence.kl, verdict.kl_limit);
  if (!verdict.enough) text += format("; %lld tokens are needed", static_cast<long long>(rule.fewest_tokens));
  return text;
}

KvCodecPlan parse_kv_codec_plan(std::string_view text, std::string_view where) {
  const Json json = parse_json(text, where);
  const JsonObject file(json, std::string(where));
  if (file.integer("format") != kPlanFormat) file.fail("format", std::to_string(kPlanFormat));
  KvCodecPlan plan{.model = file.string("model"),
                   .weights = file.string("weights"),
                   .dtype = file.string("dtype"),
                   .margin = file.number("margin"),
                   .codec = codec_field(file, "codec"),
                   .evidence = {},
                   .floor = codec_evidences(file, "floor"),
                   .refused = codec_evidences(file, "refused")};
  if (!(plan.margin > 0 && plan.margin <= 1)) file.fail("margin", "a number above 0, at most 1");
  if (is_coded(plan.codec)) plan.evidence = codec_evidence(file.object("evidence"));
  return plan;
}

std::string kv_codec_plan_json(const KvCodecPlan& plan) {
  OrderedJson file{{"format", kPlanFormat}, {"model", plan.model},   {"weights", plan.weights},
                   {"dtype", plan.dtype},   {"margin", plan.margin}, {"codec", kv_codec_name(plan.codec)}};
  if (is_coded(plan.codec)) file["evidence"] = codec_evidence_json(plan.evidence);
  file["floor"] = codec_evidences_json(plan.floor);
  file["refused"] = codec_evidences_json(plan.refused);
  return file.dump(1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

std::string obstacle_to(const KvCodecPlan& plan, const PlannedModel& model) {
  if (plan.model != model.model) return "it was measured with another model";
  if (plan.weights != model.weights) {
    return "it was measured with other weights (" + plan.weights + ") than these (" + model.weights + ")";
  }
  if (plan.dtype != model.dtype)
    return "it was measured in " + plan.dtype + ", and this model computes in " + model.dtype;
  if (!is_coded(plan.codec)) return "";
  const CodecRule rule(plan.margin);
  const CodecVerdict verdict = judge(plan.evidence, plan.floor, rule);
  return verdict.yes ? ""
                     : "what it measured permits no codes: " +
                           codec_words(kv_codec_name(plan.codec), plan.evidence, verdict, rule);
}

}  // namespace vlcache
