// Known errors: V of an image scaled by 1.5.
#include "analysis/kv_error.h"

#include <numeric>

#include "engine/engine_testing.h"

namespace vlcache {
namespace {

constexpr TokenRun kImage{30, 100};

double place_mean(const std::array<double, KvError::kPlaces>& sums, const KvError& error, size_t i) {
  return error.n[i] > 0 ? sums[i] / error.n[i] : -1;
}

class KvErrorTest : public testing::Test {
 protected:
  KvErrorTest() : engine_(make_engine(3)), right_(make_sequence(*engine_, random_tokens(150))) {
    compute(*engine_, *right_, 512);
  }
  // The image's tokens are loaded, V times `factor`.
  KvError error(float factor, const TokenRun& counted) {
    const auto sequence = make_sequence(*engine_, random_tokens(150));
    CopySource source(*engine_, *right_, factor);
    sequence->supply({&kImage, 1}, source);
    compute(*engine_, *sequence, 512);
    sequence->forget_source();
    return kv_error(engine_->backend(), sequence->cache(), right_->cache(), kImage, counted);
  }

  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Sequence> right_;
};

TEST_F(KvErrorTest, IsRelativeAndSeparatesKFromV) {
  const KvError e = error(1.5f, {30, 150});
  for (size_t i = 0; i < KvError::kPlacesOfImage; ++i) {
    EXPECT_NEAR(place_mean(e.k, e, i), 0, 1e-6) << i;
    EXPECT_NEAR(place_mean(e.v, e, i), 0.5, 1e-5) << i;
  }
  for (size_t i = KvError::kPlacesOfImage; i < KvError::kPlaces; ++i) {  // computed after the image
    EXPECT_GT(place_mean(e.k, e, i), 1e-4) << i;
    EXPECT_GT(place_mean(e.v, e, i), 1e-4) << i;
  }
}

TEST_F(KvErrorTest, EqualKvHasNoError) {
  const KvError e = error(1.0f, {30, 150});
  for (size_t i = 0; i < KvError::kPlaces; ++i) {
    EXPECT_NEAR(place_mean(e.k, e, i), 0, 1e-5) << i;
    EXPECT_NEAR(place_mean(e.v, e, i), 0, 1e-5) << i;
  }
}

// 70 tokens are 32 places; those up to 118 are a quarter of the image after it, and no later token counts.
TEST_F(KvErrorTest, CountsTokensByPosition) {
  KvError e = error(1.0f, {30, 150});
  EXPECT_EQ(std::accumulate(e.n.begin(), e.n.end(), 0.0), 88);
  EXPECT_EQ(e.n[0], 3);  // tokens 30, 31, 32
  e = error(1.0f, {65, 70});
  EXPECT_EQ(std::accumulate(e.n.begin(), e.n.end(), 0.0), 5);
  EXPECT_EQ(e.n[16], 3);  // 65, 66, 67
  e.add(e);
  EXPECT_EQ(e.n[16], 6);
}

TEST_F(KvErrorTest, ChartsOmitUncountedPositions) {
  const KvError e = error(1.5f, {30, 100});
  const std::string charts = kv_error_charts({{"loaded", e}, {"twice", e}});
  EXPECT_NE(charts.find("loaded: 0.5 at 0.0156"), std::string::npos) << charts;  // the first place of V
  EXPECT_NE(charts.find("relative error of K"), std::string::npos);
  EXPECT_EQ(charts.find("nan"), std::string::npos);
  EXPECT_EQ(charts.find("at 1.02"), std::string::npos);  // no token after the image was counted
}

}  // namespace
}  // namespace vlcache
