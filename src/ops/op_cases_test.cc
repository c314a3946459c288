// Every backend against ops/ref in f32, on every case of the table; and docs/ops.md against the table.
#include "ops/cases/op_cases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <set>
#include <span>
#include <sstream>

#include "base/os/threads.h"
#include "ops/factory.h"
#include "ops/ref/rows.h"
#include "tests/testing.h"

namespace vlcache {
namespace {

// |found - expected| may be at most relative * |expected| + absolute * (root mean square of the expected row).
struct Tolerance {
  double relative, absolute;
};

// f32: both sides round at 2^-24, but sum up to 1536 products in different order, and vector exp, erf and tanh may
//      be off by some units in the last place.
// bf16: the result is rounded once (2^-9 relative), a normalised value, an epilogue's sum or the weights of a softmax
//      once more before; cancellation turns the latter into an absolute error.
Tolerance tolerance_of(DType values) {
  return values == DType::kF32 ? Tolerance{2e-5, 2e-5} : Tolerance{0x1p-7, 0x1p-7};
}

std::vector<float> read_all(const Tensor& t) {
  std::vector<float> values(static_cast<size_t>(t.numel()));
  for (int64_t i = 0; i < t.rows(); ++i) load_row(t, i, values.data() + i * t.row_size());
  return values;
}

bool equal(float a, float b) { return a == b || std::memcmp(&a, &b, sizeof a) == 0; }

// Two outputs of the same shape, row by row.
struct Comparison {
  Agreement agreement;
  Tolerance tolerance;
  int64_t row_size;
};

double root_mean_square(std::span<const float> values) {
  double squares = 0.0;
  for (float v : values) squares += std::isfinite(v) ? static_cast<double>(v) * v : 0.0;
  return std::sqrt(squares / static_cast<double>(values.size()));
}

// Where `found` first disagrees, or "".
std::string first_difference(const std::vector<float>& found, const std::vector<float>& expected,
                             const Comparison& by) {
  if (found.size() != expected.size()) return "sizes differ";
  double off_counts = 0.0, all_counts = 0.0, rms = 0.0;
  const size_t row_size = static_cast<size_t>(by.row_size);
  for (size_t i = 0; i < found.size(); ++i) {
    if (i % row_size == 0) rms = root_mean_square(std::span(expected).subspan(i, row_size));
    const double f = found[i], e = expected[i], error = std::abs(f - e);
    bool agrees = equal(found[i], expected[i]) && !std::isnan(f);
    const bool rounds_weights = by.agreement == Agreement::kWeightsRounded;
    if ((by.agreement == Agreement::kRounded || rounds_weights) && std::isfinite(error)) {
      // Rounded weights of some tens of inputs: a standard deviation of 0.2 % of the sum's own, of thousands of sums.
      const double absolute = by.tolerance.absolute * (rounds_weights ? 2 : 1);
      agrees |= error <= by.tolerance.relative * std::abs(e) + absolute * rms;
    }
    if (by.agreement == Agreement::kCounts) {
      agrees |= error <= 1.0;
      off_counts += error;
      all_counts += e;
    }
    if (!agrees) {
      std::ostringstream text;
      text << "row " << i / row_size << " column " << i % row_size << ": expected " << e << ", found " << f
           << " (rms of the row " << rms << ")";
      return text.str();
    }
  }
  // Only comparisons very close to the limit may differ.
  if (off_counts > 1.0 + 1e-3 * all_counts) return std::to_string(off_counts) + " counts are off";
  return "";
}

bool all_ones(const Tensor& t) {
  for (int64_t i = 0; i < t.rows(); ++i) {
    const std::byte* row = t.data + i * t.stride * dtype_bytes(t.dtype);
    if (std::any_of(row, row + t.row_size() * dtype_bytes(t.dtype), [](std::byte b) { return b != std::byte{0xff}; })) {
      return false;
    }
  }
  return true;
}

void run_case(const OpCase& c, const OpSetup& setup, PreparedOp& op) {
  c.prepare(setup, op);
  op.run();
  if (op.finish) op.finish();
}

struct Pairing {
  const char* backend;
  DType dtype;
  std::string op;
};

void PrintTo(const Pairing& p, std::ostream* out) { *out << p.backend << " " << dtype_name(p.dtype) << " " << p.op; }

std::vector<Pairing> pairings() {
  std::vector<Pairing> all;
  for (const OpInfo& info : op_infos()) {
    all.push_back({"ref", DType::kBF16, std::string(info.op)});
    for (DType dtype : {DType::kF32, DType::kBF16}) all.push_back({"cpu", dtype, std::string(info.op)});
  }
  return all;
}

class OpAgreement : public testing::TestWithParam<Pairing> {
  void SetUp() override { set_threads(3); }  // more than one, and no divisor of most shapes
};

TEST_P(OpAgreement, WithRefInF32) {
  const Pairing& p = GetParam();
  const std::vector<std::string_view> names = backend_names();
  if (std::find(names.begin(), names.end(), p.backend) == names.end()) {
    GTEST_SKIP() << "backend " << p.backend << " is not in this build";
  }
  const std::unique_ptr<Backend> ref = make_backend("ref", DType::kF32), backend = make_backend(p.backend, p.dtype);
  int n_cases = 0;
  for (const OpCase& c : op_cases()) {
    if (c.op != p.op) continue;
    SCOPED_TRACE(c.name());
    const uint64_t seed = static_cast<uint64_t>(++n_cases);
    if (shortened() && p.op == "attention_stats" && n_cases % 2 == 0) continue;  // half of the slowest op's cases
    PreparedOp expected, found;
    run_case(c, {*ref, p.dtype, seed}, expected);
    run_case(c, {*backend, p.dtype, seed}, found);
    ASSERT_EQ(found.outputs.size(), expected.outputs.size());
    ASSERT_FALSE(expected.outputs.empty());
    for (size_t i = 0; i < found.outputs.size(); ++i) {
      const OpOutput& e = expected.outputs[i];
      const Comparison by{e.agreement, tolerance_of(p.dtype), e.values.row_size()};
      EXPECT_EQ(first_difference(read_all(found.outputs[i].values), read_all(e.values), by), "") << "output " << e.name;
    }
    for (const PreparedOp* op : {&expected, &found}) {
      for (const Tensor& t : op->untouched) EXPECT_TRUE(all_ones(t)) << "written outside its outputs";
    }
  }
  EXPECT_GT(n_cases, 0) << "op without a case";
}

INSTANTIATE_TEST_SUITE_P(All, OpAgreement, testing::ValuesIn(pairings()), [](const auto& info) {
  return info.param.op + "_" + info.param.backend + "_" + std::string(dtype_name(info.param.dtype));
});

TEST(OpTable, EveryCaseBelongsToAnOpAndHasAUniqueName) {
  std::set<std::string> ops;
  for (const OpInfo& info : op_infos()) ops.insert(std::string(info.op));
  for (const std::vector<OpCase>& cases : {op_cases(), op_bench_cases()}) {
    std::set<std::string> names;
    for (const OpCase& c : cases) {
      EXPECT_EQ(ops.count(c.op), 1u) << c.op;
      EXPECT_TRUE(names.insert(c.name()).second) << "twice: " << c.name();
    }
  }
}

// Else bench/op_bench has nothing to compare its times with.
TEST(OpTable, EveryBenchCaseStatesItsWork) {
  for (const OpCase& c : op_bench_cases()) EXPECT_GT(c.flops + c.bytes, 0) << c.name();
}

// The comparison itself must be able to fail.
TEST(OpTable, FirstDifferenceSeesDifferences) {
  auto same = [](const std::vector<float>& found, const std::vector<float>& expected, Agreement agreement) {
    return first_difference(found, expected, {agreement, {1e-3, 1e-3}, static_cast<int64_t>(expected.size())}).empty();
  };
  const float nan = std::nanf(""), inf = INFINITY;
  EXPECT_TRUE(same({1, -inf}, {1, -inf}, Agreement::kRounded));
  EXPECT_TRUE(same({1.001f, 2}, {1, 2}, Agreement::kRounded));
  EXPECT_FALSE(same({1.1f, 2}, {1, 2}, Agreement::kRounded));
  EXPECT_FALSE(same({1.001f}, {1}, Agreement::kExact));
  EXPECT_FALSE(same({nan}, {nan}, Agreement::kRounded));
  EXPECT_FALSE(same({inf}, {-inf}, Agreement::kRounded));
  EXPECT_TRUE(same({4, 5}, {4, 4}, Agreement::kCounts));
  EXPECT_FALSE(same({4, 6}, {4, 4}, Agreement::kCounts));
  EXPECT_FALSE(same({5, 5, 5}, {4, 4, 4}, Agreement::kCounts));
  // A row of large numbers excuses nothing in a row of small ones.
  EXPECT_NE(first_difference({1000, 0.5f}, {1000, 0}, {Agreement::kRounded, {1e-3, 1e-3}, 1}), "");
}

TEST(OpTable, DocsAreUpToDate) {
  std::ifstream file(std::string(VLCACHE_SOURCE_DIR) + "/docs/ops.md");
  std::stringstream found;
  found << file.rdbuf();
  if (found.str() == ops_markdown()) return;
  const std::string fresh = testing::TempDir() + "ops.md";
  std::ofstream(fresh) << ops_markdown();
  FAIL() << "docs/ops.md does not match the table; renew it with: cp " << fresh << " docs/ops.md";
}

}  // namespace
}  // namespace vlcache
