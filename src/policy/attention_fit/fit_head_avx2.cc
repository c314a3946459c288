// fit_head on AVX2.
#if defined(__AVX2__)
#define Eigen EigenAvx2  // templates of its own: the linker must not take them for those of other files
#define VLCACHE_FIT_HEAD fit_head_avx2
#include "policy/attention_fit/fit_head-inl.h"
#endif
