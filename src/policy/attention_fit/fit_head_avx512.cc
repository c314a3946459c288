#if defined(__AVX512F__)
#define VLCACHE_FIT_HEAD fit_head_avx512
#include "policy/attention_fit/fit_head-inl.h"
#endif
