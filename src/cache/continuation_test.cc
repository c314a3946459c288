// Places against their definition, over pages of random forms.
#include "cache/continuation.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "cache/page_table.h"

namespace vlcache {
namespace {

struct Forms {
  bool values, codes;
};

// Whether the next row finds pages [begin, pages_for(n)).
bool finds(int32_t begin, int32_t n, FunctionRef<Forms(int32_t page)> forms) {
  bool codes_end = false;
  for (int32_t i = begin; i < pages_for(n); ++i) {
    const Forms page = forms(i);
    codes_end = codes_end || i >= coded_end(n) || (i > 0 && !page.codes);
    if (!(i == 0 || codes_end ? page.values : page.codes)) return false;
  }
  return true;
}

bool is_place(int32_t n, int32_t window, const std::vector<CachedForms>& pages) {
  const auto at = [&](int32_t page) { return pages[static_cast<size_t>(page)]; };
  return finds(0, n,
               [&](int32_t page) {
                 return Forms{at(page).values, at(page).codes};
               }) &&
         (window == 0 || finds(window_begin(n, window), n, [&](int32_t page) {
            return Forms{at(page).window_values, at(page).window_codes};
          }));
}

TEST(ContinuationPlace, IsTheLastOneWhoseNextRowFindsEveryPage) {
  std::mt19937 random(3);
  int n_inner = 0;
  for (int i = 0; i < 800; ++i) {
    const int32_t window = i % 2 == 0 ? 0 : static_cast<int32_t>(1 + random() % 700);
    const auto n_pages = static_cast<int32_t>(1 + random() % 24), n_codes = static_cast<int32_t>(random() % 24);
    std::vector<CachedForms> pages(static_cast<size_t>(n_pages));
    for (int32_t p = 0; p < n_pages; ++p) {
      CachedForms& page = pages[static_cast<size_t>(p)];
      page = {.values = p == 0 || random() % 3 > 0, .codes = p > 0 && p < n_codes};
      if (i % 4 == 1) page.values = true;
      page.window_values = random() % 6 > 0, page.window_codes = p > 0 && random() % 6 > 0;
    }
    const auto n_most = static_cast<int32_t>(n_pages * kPageSlots - static_cast<int32_t>(random() % kPageSlots));
    int32_t expected = n_most;
    while (expected > 0 && !is_place(expected, window, pages)) --expected;
    const Continuation found =
        continuation_place(n_most, window, [&](int32_t page) { return pages[static_cast<size_t>(page)]; });
    ASSERT_EQ(found.n, expected) << i;
    for (int32_t p = 1; p < pages_for(found.n); ++p) {
      const CachedForms& page = pages[static_cast<size_t>(p)];
      ASSERT_TRUE(p < found.n_codes ? page.codes : page.values) << i;
    }
    n_inner += 0 < expected && expected < n_most ? 1 : 0;
  }
  EXPECT_GT(n_inner, 200);
}

// A prompt of 3,000 tokens whose values are kept at its end and after every 2,048 tokens.
TEST(ContinuationPlace, GoesBackToTheRegularPlaceOnceTheEndHasBecomeCodes) {
  std::vector<CachedForms> pages(47, {.values = false, .codes = true});
  for (const size_t i : {0, 30, 31, 42, 43, 44, 45, 46}) pages[i].values = true;
  for (const size_t i : {0, 44, 45, 46}) pages[i].codes = false;
  const auto place = [&](int32_t n) {
    return continuation_place(n, 0, [&](int32_t page) { return pages[static_cast<size_t>(page)]; }).n;
  };
  EXPECT_EQ(place(3000), 3000);
  EXPECT_EQ(place(2817), 2817);  // the same block of rows
  EXPECT_EQ(place(2815), 2048);
  EXPECT_EQ(place(2047), 64);
  pages[44].values = false;
  EXPECT_EQ(place(3000), 2816);
  pages[20].codes = false;
  EXPECT_EQ(place(3000), 64);
  pages[0].values = false;
  EXPECT_EQ(place(3000), 0);
}

// A prompt of 3,000 tokens of which layers with a window of 500 keep the end, and 2,048 tokens.
TEST(ContinuationPlace, GoesBackToTheLastWindow) {
  std::vector<CachedForms> pages(47, {.values = true});
  const auto place = [&](int32_t n) {
    return continuation_place(n, 500, [&](int32_t page) { return pages[static_cast<size_t>(page)]; }).n;
  };
  const auto keep = [&](int32_t n) {
    for (int32_t page = held_begin(n, 500); page < pages_for(n); ++page) {
      pages[static_cast<size_t>(page)].window_values = true;
    }
  };
  EXPECT_EQ(place(3000), 0);
  keep(2048);
  EXPECT_EQ(place(3000), 2048);
  EXPECT_EQ(place(2000), 2000);  // pages before the window stay, too
  EXPECT_EQ(place(1700), 0);
  keep(3000);
  EXPECT_EQ(place(3000), 3000);
  EXPECT_EQ(place(2745), 2745);
  EXPECT_EQ(place(2600), 2048);
}

}  // namespace
}  // namespace vlcache
