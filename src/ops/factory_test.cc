#include "ops/factory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/error.h"
#include "ops/quantiser.h"

namespace vlcache {
namespace {

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUnsupported);
    return e.what();
  }
  return "";
}

TEST(Factory, CreatesEveryListedBackend) {
  for (std::string_view name : backend_names()) {
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      const std::unique_ptr<Backend> backend = make_backend(name, dtype);
      EXPECT_EQ(backend->name(), name);
      EXPECT_EQ(backend->compute_dtype(), dtype);
    }
  }
  EXPECT_EQ(make_backend("auto", DType::kF32)->name(), backend_names().front());
  EXPECT_EQ(backend_names().back(), "ref");
}

// Each has the ones after it below itself, the last none; the reference has none.
TEST(Factory, LowerInstructionSetsAreThoseBelowTheLimit) {
  EXPECT_TRUE(lower_instruction_sets("ref").empty());
  EXPECT_TRUE(lower_instruction_sets("cpu", {.max_isa = "scalar"}).empty());
  std::vector<std::string_view> lower = lower_instruction_sets("auto");
  if (backend_names().front() == "cpu") {
    ASSERT_FALSE(lower.empty());
    EXPECT_EQ(lower.back(), "scalar");
  }
  while (!lower.empty()) {
    const std::string_view isa = lower.front();
    EXPECT_NE(make_backend("cpu", DType::kF32, {.max_isa = isa}), nullptr);
    lower.erase(lower.begin());
    EXPECT_EQ(lower_instruction_sets("cpu", {.max_isa = isa}), lower);
  }
}

TEST(Factory, ErrorsListTheBackends) {
  const std::string message = message_of([] { make_backend("tpu", DType::kF32); });
  EXPECT_NE(message.find("'tpu'"), std::string::npos) << message;
  EXPECT_NE(message.find("ref"), std::string::npos) << message;
  EXPECT_NE(message_of([] { make_backend("ref", DType::kF16); }).find("found f16"), std::string::npos);
}

// 8 bits: every 32 values of x are a signed byte times a scale, whatever the number of rows.
TEST(Factory, ActivationsOf8Bits) {
  constexpr int64_t kIn = 75, kOut = 70, kRows = 20;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> w(kOut * kIn);
  for (float& value : w) value = normal(random);
  std::vector<bf16> x(kRows * kIn);
  for (bf16& value : x) value = to_bf16(normal(random));
  const QuantisedRows source(kInt4, {Tensor(w.data(), DType::kF32, {kOut, kIn})});
  QuantRows codes;
  for (const std::string_view name : backend_names()) {
    const auto backend = make_backend(name, DType::kBF16, {.activation_bits = ActivationBits::k8});
    EXPECT_EQ(backend->activation_bits(), ActivationBits::k8);
    const Weight weight = backend->pack(source);
    for (const int64_t n : {int64_t{2}, kRows}) {
      std::vector<float> y(static_cast<size_t>(n * kOut)), row(kIn);
      backend->matmul(Tensor(x.data(), DType::kBF16, {n, kIn}), weight, Tensor(y.data(), DType::kF32, {n, kOut}));
      for (int64_t o = 0; o < kOut; ++o) {
        if (o % kQuantBlock == 0) source.read(o, std::min(kQuantBlock, kOut - o), codes);
        codes.dequantise(o % kQuantBlock, row.data());
        for (int64_t i = 0; i < n; ++i) {
          double sum = 0;
          for (int64_t k = 0; k < kIn; k += 32) {
            const int64_t end = std::min(kIn, k + 32);
            double largest = 0;
            for (int64_t j = k; j < end; ++j) largest = std::max<double>(largest, std::abs(to_float(x[i * kIn + j])));
            for (int64_t j = k; j < end; ++j) {
              sum += std::nearbyint(to_float(x[i * kIn + j]) * 127.0 / largest) * largest / 127.0 * row[j];
            }
          }
          // Values halfway between two bytes may go either way.
          ASSERT_NEAR(y[i * kOut + o], sum, 2e-3) << name << " row " << i << " of " << n << ", output " << o;
        }
      }
    }
  }
}

TEST(Activation, ByTheNamesOfConfigs) {
  EXPECT_EQ(activation_from_name("silu"), Activation::kSilu);
  EXPECT_EQ(activation_from_name("gelu"), Activation::kGelu);
  EXPECT_EQ(activation_from_name("gelu_new"), Activation::kGeluTanh);
  EXPECT_EQ(activation_from_name("gelu_pytorch_tanh"), Activation::kGeluTanh);
  EXPECT_EQ(activation_from_name("quick_gelu"), Activation::kQuickGelu);
  EXPECT_EQ(activation_from_name("relu"), Activation::kRelu);
  const std::string message = message_of([] { activation_from_name("mish"); });
  EXPECT_NE(message.find("quick_gelu"), std::string::npos) << message;
}

}  // namespace
}  // namespace vlcache
