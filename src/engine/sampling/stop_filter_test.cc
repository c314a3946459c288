// Stop strings split over pushes, overlapping, and at the very start.
#include "engine/sampling/stop_filter.h"

#include <gtest/gtest.h>

namespace vlcache {
namespace {

TEST(StopFilter, HoldsBackPossibleStops) {
  StopFilter f({"</end>", "STOP"});
  EXPECT_EQ(f.push("abc</"), "abc");
  EXPECT_EQ(f.push("e"), "");
  EXPECT_EQ(f.push("xST"), "</ex");
  EXPECT_EQ(f.push("OP tail"), "");
  EXPECT_TRUE(f.stopped());
  EXPECT_EQ(f.push("more"), "");
  EXPECT_EQ(f.finish(), "");
}

TEST(StopFilter, EarliestStopWins) {
  StopFilter f({"world", "lo"});
  EXPECT_EQ(f.push("hello world"), "hel");
  EXPECT_TRUE(f.stopped());
}

TEST(StopFilter, IncludedStopEndsTheText) {
  StopFilter f({"</end>", "STOP"}, /*included=*/true);
  EXPECT_EQ(f.push("abc</e"), "abc");
  EXPECT_EQ(f.push("nd> tail STOP"), "</end>");
  EXPECT_EQ(f.stopped_by(), "</end>");
  EXPECT_EQ(f.push("more") + f.finish(), "");
}

TEST(StopFilter, FinishReleasesAnUnfinishedStop) {
  StopFilter f({"aab"});
  EXPECT_EQ(f.push("xaaa"), "xa");
  EXPECT_EQ(f.finish(), "aa");
}

TEST(StopFilter, NoStopsNoDelay) {
  StopFilter f({""});
  EXPECT_EQ(f.push("abc"), "abc");
  EXPECT_FALSE(f.stopped());
}

}  // namespace
}  // namespace vlcache
