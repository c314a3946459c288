// fit_head for the build's own instruction set, and the list of kernels.
#include "policy/attention_fit/fit_head.h"

#define VLCACHE_FIT_HEAD fit_head_plain
#include "policy/attention_fit/fit_head-inl.h"

namespace vlcache {

std::vector<FitKernel*> fit_kernels(Isa isa) {
  std::vector<FitKernel*> kernels;
  static_cast<void>(isa);
#if defined(__x86_64__) && !defined(VLCACHE_REF_ONLY)
  if (isa >= Isa::kAvx512) kernels.push_back(fit_head_avx512);
  if (isa >= Isa::kAvx2) kernels.push_back(fit_head_avx2);
#endif
  kernels.push_back(fit_head_plain);
  return kernels;
}

}  // namespace vlcache
