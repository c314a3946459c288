// fit_head for the build's own instruction set, and the list of kernels.
#include "policy/attention_fit/fit_head.h"

#define VLCACHE_FIT_HEAD fit_head_plain
#include "policy/attention_fit/fit_head-inl.h"

namespace vlcache {

std::vector<FitKernel*> fit_kernels() {
  std::vector<FitKernel*> kernels;
#if defined(__x86_64__) && !defined(VLCACHE_REF_ONLY)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl")) {
    kernels.push_back(fit_head_avx512);
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) kernels.push_back(fit_head_avx2);
#endif
  kernels.push_back(fit_head_plain);
  return kernels;
}

}  // namespace vlcache
