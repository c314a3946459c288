// Computes activations on vectors of f32, compiled once per Highway target. Relative errors below 1e-6 where the result
// is normal.
#if defined(VLCACHE_OPS_CPU_ACTIVATION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef VLCACHE_OPS_CPU_ACTIVATION_INL_H_
#undef VLCACHE_OPS_CPU_ACTIVATION_INL_H_
#else
#define VLCACHE_OPS_CPU_ACTIVATION_INL_H_
#endif

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include "ops/backend.h"
#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace vlcache::cpu::HWY_NAMESPACE {

// x / (1 + e^-s). Highway's Exp takes arguments up to 104, where it is infinite already.
HWY_INLINE F32Vec times_sigmoid(F32Vec x, F32Vec s) {
  const F32Tag d;
  const F32Vec e = hn::Exp(d, hn::Min(hn::Neg(s), hn::Set(d, 104.0f)));
  return hn::Div(x, hn::Add(hn::Set(d, 1.0f), e));
}

// erfc(z), z >= 0: e^(-z^2) t Q(t) with t = 1 / (1 + 0.4 z). Q: our own minimax fit of the relative error (9e-8) on [0,
// 14].
HWY_INLINE F32Vec erfc_positive(F32Vec z) {
  constexpr float kQ[] = {0.225662902f,  0.225936636f, 0.205611199f,  0.178477436f, 0.115472957f,
                          0.0354319513f, 0.130496293f, -0.163056508f, 0.0459672101f};
  const F32Tag d;
  const F32Vec one = hn::Set(d, 1.0f);
  const F32Vec t = hn::Div(one, hn::MulAdd(z, hn::Set(d, 0.4f), one));
  F32Vec q = hn::Set(d, kQ[8]);
  for (int i = 7; i >= 0; --i) q = hn::MulAdd(q, t, hn::Set(d, kQ[i]));
  // e^-(zz + rest): z^2 alone, rounded, would cost z^2 ulp. (Without a fused product, on the scalar target, rest is 0.)
  const F32Vec zz = hn::Mul(z, z);
  const F32Vec rest = hn::MulSub(z, z, zz);
  const F32Vec e = hn::Exp(d, hn::Neg(zz));
  return hn::Mul(hn::NegMulAdd(e, rest, e), hn::Mul(t, q));
}

// x Phi(x) = x erfc(-x / sqrt 2) / 2: no cancellation on the negative side.
HWY_INLINE F32Vec gelu(F32Vec x) {
  const F32Tag d;
  // From 10.2 on e^-zz is zero: the limit only keeps z^2 in range.
  const F32Vec z = hn::Min(hn::Mul(hn::Abs(x), hn::Set(d, 0.70710678f)), hn::Set(d, 16.0f));
  const F32Vec tail = erfc_positive(z);
  const F32Vec twice_phi = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, hn::Sub(hn::Set(d, 2.0f), tail));
  return hn::Mul(hn::Mul(x, hn::Set(d, 0.5f)), twice_phi);
}

// 0.5 x (1 + tanh u) = x / (1 + e^-2u), u = sqrt(2/pi) (x + 0.044715 x^3).
HWY_INLINE F32Vec gelu_tanh(F32Vec x) {
  const F32Tag d;
  const F32Vec xx = hn::Mul(x, x);
  const F32Vec inner = hn::MulAdd(hn::Mul(xx, x), hn::Set(d, 0.044715f), x);
  return times_sigmoid(x, hn::Mul(inner, hn::Set(d, 1.5957691216f)));
}

HWY_INLINE F32Vec activate_vec(Activation act, F32Vec x) {
  const F32Tag d;
  switch (act) {
    case Activation::kNone:
      return x;
    case Activation::kSilu:
      return times_sigmoid(x, x);
    case Activation::kGelu:
      return gelu(x);
    case Activation::kGeluTanh:
      return gelu_tanh(x);
    case Activation::kQuickGelu:
      return times_sigmoid(x, hn::Mul(x, hn::Set(d, 1.702f)));
    case Activation::kRelu:
      return hn::Max(x, hn::Zero(d));
  }
  return x;
}

}  // namespace vlcache::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // VLCACHE_OPS_CPU_ACTIVATION_INL_H_
