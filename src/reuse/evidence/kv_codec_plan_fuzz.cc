// An untrusted kv_codec.json: whatever parses is written and read back the same.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "base/fuzz_target.h"
#include "reuse/evidence/kv_codec_plan.h"

FUZZ_TARGET(kv_codec_plan) {
  try {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const vlcache::KvCodecPlan plan = vlcache::parse_kv_codec_plan(text, "fuzz");
    const vlcache::KvCodecPlan again = vlcache::parse_kv_codec_plan(vlcache::kv_codec_plan_json(plan), "fuzz");
    if (again.codec != plan.codec || again.evidence.tokens.n != plan.evidence.tokens.n) std::abort();
    static_cast<void>(vlcache::obstacle_to(again, {plan.model, plan.weights, plan.dtype}));
  } catch (const vlcache::Error&) {
  }
  return 0;
}
