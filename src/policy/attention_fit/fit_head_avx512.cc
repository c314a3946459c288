// fit_head on AVX512.
#if defined(__AVX512F__)
#define Eigen EigenAvx512  // templates of its own: the linker must not take them for those of other files
#define VLCACHE_FIT_HEAD fit_head_avx512
#include "policy/attention_fit/fit_head-inl.h"
#endif
