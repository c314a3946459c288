#include "ops/ref/ref_backend.h"

#include "ops/ref/ref_impl.h"
#include "ops/ref/rows.h"

namespace vlcache {

RefBackend::RefBackend(DType compute_dtype, ActivationBits activation_bits)
    : compute_dtype_(compute_dtype), activation_bits_(activation_bits) {
  CHECK(compute_dtype == DType::kF32 || compute_dtype == DType::kBF16);
}

std::vector<float> RefBackend::vector_of(const Tensor& t, int64_t n) const {
  check_compute(t);
  CHECK(t.numel() == n && t.dense());
  std::vector<float> values(static_cast<size_t>(n));
  load_values(t, 0, n, values.data());
  return values;
}

std::unique_ptr<Backend> make_ref_backend(DType compute_dtype, ActivationBits bits) {
  return std::make_unique<RefBackend>(compute_dtype, bits);
}

}  // namespace vlcache
