// Every backend against ops/ref in f32, on every case of the table; and docs/ops.md against the table.
#include "ops/op_cases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>

#include "base/threads.h"
#include "ops/factory.h"
#include "ops/ref/rows.h"

namespace vlcache {
namespace {

// |found - expected| may be at most relative * |expected| + absolute * (root mean square of the expected output).
struct Tolerance {
  double relative, absolute;
};

// f32: both sides round at 2^-24, but sum up to 1536 products in different order, and vector exp, erf and tanh may be
// some
//      units in the last place off.
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

// Where `found` first disagrees, or "".
std::string first_difference(const std::vector<float>& found, const std::vector<float>& expected, Agreement agreement,
                             const Tolerance& tolerance) {
  if (found.size() != expected.size()) return "sizes differ";
  double squares = 0.0, off_counts = 0.0, all_counts = 0.0;
  for (float e : expected) squares += std::isfinite(e) ? static_cast<double>(e) * e : 0.0;
  const double rms = std::sqrt(squares / static_cast<double>(std::max<size_t>(1, expected.size())));
  for (size_t i = 0; i < found.size(); ++i) {
    const double f = found[i], e = expected[i], error = std::abs(f - e);
    bool agrees = equal(found[i], expected[i]) && !std::isnan(f);
    if (agreement == Agreement::kRounded)
      agrees |= std::isfinite(error) && error <= tolerance.relative * std::abs(e) + tolerance.absolute * rms;
    if (agreement == Agreement::kCounts) {
      agrees |= error <= 1.0;
      off_counts += error;
      all_counts += e;
    }
    if (!agrees) {
      std::ostringstream text;
      text << "element " << i << " of " << found.size() << ": expected " << e << ", found " << f << " (rms " << rms
           << ")";
      return text.str();
    }
  }
  // Only comparisons at the very edge may fall to the other side.
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
    PreparedOp expected, found;
    run_case(c, {*ref, p.dtype, seed}, expected);
    run_case(c, {*backend, p.dtype, seed}, found);
    ASSERT_EQ(found.outputs.size(), expected.outputs.size());
    ASSERT_FALSE(expected.outputs.empty());
    for (size_t i = 0; i < found.outputs.size(); ++i) {
      const OpOutput& e = expected.outputs[i];
      EXPECT_EQ(
          first_difference(read_all(found.outputs[i].values), read_all(e.values), e.agreement, tolerance_of(p.dtype)),
          "")
          << "output " << e.name;
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

TEST(OpTable, EveryCaseBelongsToAnOpAndHasItsOwnName) {
  std::set<std::string> ops, names;
  for (const OpInfo& info : op_infos()) ops.insert(std::string(info.op));
  for (const OpCase& c : op_cases()) {
    EXPECT_EQ(ops.count(c.op), 1u) << c.op;
    EXPECT_TRUE(names.insert(c.name()).second) << "twice: " << c.name();
  }
}

// The comparison itself must be able to fail.
TEST(OpTable, FirstDifferenceSeesDifferences) {
  const Tolerance t{1e-3, 1e-3};
  const float nan = std::nanf(""), inf = INFINITY;
  EXPECT_EQ(first_difference({1, -inf}, {1, -inf}, Agreement::kRounded, t), "");
  EXPECT_EQ(first_difference({1.001f, 2}, {1, 2}, Agreement::kRounded, t), "");
  EXPECT_NE(first_difference({1.1f, 2}, {1, 2}, Agreement::kRounded, t), "");
  EXPECT_NE(first_difference({1.001f}, {1}, Agreement::kExact, t), "");
  EXPECT_NE(first_difference({nan}, {nan}, Agreement::kRounded, t), "");
  EXPECT_NE(first_difference({inf}, {-inf}, Agreement::kRounded, t), "");
  EXPECT_EQ(first_difference({4, 5}, {4, 4}, Agreement::kCounts, t), "");
  EXPECT_NE(first_difference({4, 6}, {4, 4}, Agreement::kCounts, t), "");
  EXPECT_NE(first_difference({5, 5, 5}, {4, 4, 4}, Agreement::kCounts, t), "");
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
