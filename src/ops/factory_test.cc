#include "ops/factory.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"

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
