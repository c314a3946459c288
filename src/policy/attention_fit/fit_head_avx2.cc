#if defined(__AVX2__)
#define VLCACHE_FIT_HEAD fit_head_avx2
#include "policy/attention_fit/fit_head-inl.h"
#endif
