// The page of `tune reuse`: the verdict, the counts, and, if layers were profiled, what their recomputation is
// worth.
#pragma once

#include <string>
#include <vector>

#include "analysis/kv_error.h"
#include "reuse/evidence/reuse_plan.h"

namespace vlcache {

// A plan that was measured.
struct MeasuredPlan {
  std::string name;  // "documented schedule"
  ReusePlan plan;
};

// A self-contained document. plans[chosen] is the one that was written. errors: of kErrorShares; both empty if layers
// were not profiled.
std::string reuse_page(const std::vector<MeasuredPlan>& plans, size_t chosen, const GateRule& rule,
                       const ReuseSensitivity& sensitivity, const std::vector<KvError>& errors);

}  // namespace vlcache
