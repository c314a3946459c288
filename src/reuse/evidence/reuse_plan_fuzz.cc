// An untrusted reuse_plan.json: whatever parses is written and read back the same.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "base/fuzz_target.h"
#include "reuse/evidence/reuse_plan.h"

FUZZ_TARGET(reuse_plan) {
  try {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const vlcache::ReusePlan plan = vlcache::parse_reuse_plan(text, "fuzz");
    const vlcache::ReusePlan again = vlcache::parse_reuse_plan(vlcache::reuse_plan_json(plan), "fuzz");
    if (again.shares != plan.shares || again.one.answers.n_changed != plan.one.answers.n_changed) std::abort();
    if (again.kv_codec != plan.kv_codec) std::abort();
    static_cast<void>(vlcache::verdict_words(again, {}));
    static_cast<void>(vlcache::planned_chooser(plan)->plan(static_cast<int32_t>(plan.shares.size()), 100));
  } catch (const vlcache::Error&) {
  }
  return 0;
}
