// KvCodecPlan (kv_codec.json): the codec of KV pages named `auto` for a model, by the measurement of `tune codec`.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/kv_codec_name.h"
#include "reuse/evidence/reuse_gate.h"

namespace vlcache {

inline constexpr std::string_view kKvCodecPlanName = "kv_codec.json";  // beside a model

// Likeliest tokens and divergences along one text, from KV that stays values.
struct CodecEvidence {
  AnswerCounts tokens;  // whose attention read codes; changed: another is the likeliest
  double kl = 0;        // mean, nats per token
};

struct KvCodecPlan {
  std::string model;                             // ModelFiles::fingerprint
  std::string weights;                           // Model::weights_form of the model that was measured
  std::string dtype;                             // in which it computed
  double margin = 0.01;                          // share of likeliest tokens that may change beyond the floor
  KvCodec codec = KvCodec::kBF16;                // bf16 or f32: pages stay values
  CodecEvidence evidence;                        // measured with a coded `codec`
  std::map<std::string, CodecEvidence> floor;    // the same computed in other ways, all pages values
  std::map<std::string, CodecEvidence> refused;  // codecs with fewer bits, which were measured too
};

struct CodecRule {
  explicit CodecRule(double margin) : top{.margin = margin} {}

  GateRule top;              // for likeliest tokens
  double kl_margin = 0.001;  // by how much the mean divergence may pass the largest of the floor, nats per token
  int64_t fewest_tokens = 2000;
};

struct CodecVerdict {
  GateVerdict top;
  double kl_limit = 0;
  bool enough = false;  // at least rule.fewest_tokens were measured
  bool yes = false;
};
CodecVerdict judge(const CodecEvidence& evidence, const std::map<std::string, CodecEvidence>& floor,
                   const CodecRule& rule);

// "int8: 2043 of 2048 likeliest tokens stayed the same, at most 0.51 % change (95 %), 1.2 % may; mean divergence
// 0.0009, 0.0021 may", without a full stop. `name` begins it.
std::string codec_words(std::string_view name, const CodecEvidence& evidence, const CodecVerdict& verdict,
                        const CodecRule& rule);

// Throws Error(kInput) naming `where` for any text that kv_codec_plan_json did not write.
KvCodecPlan parse_kv_codec_plan(std::string_view text, std::string_view where);
std::string kv_codec_plan_json(const KvCodecPlan& plan);

// Why `auto` cannot follow the plan for a model of this form; "": it can.
struct PlannedModel {
  std::string model, weights, dtype;
};
std::string obstacle_to(const KvCodecPlan& plan, const PlannedModel& model);

}  // namespace vlcache
