#if defined(__AVX512F__)
#define Eigen EigenAvx512  // a namespace of its own: the linker must not merge its templates with others
#define VLCACHE_FIT_HEAD fit_head_avx512
#include "policy/attention_fit/fit_head-inl.h"
#endif
