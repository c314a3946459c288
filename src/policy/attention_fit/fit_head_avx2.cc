#if defined(__AVX2__)
#define Eigen EigenAvx2  // a namespace of its own: the linker must not merge its templates with others
#define VLCACHE_FIT_HEAD fit_head_avx2
#include "policy/attention_fit/fit_head-inl.h"
#endif
