#include "cache/slot_table.h"

#include <gtest/gtest.h>

#include <cmath>

namespace vlcache {
namespace {

std::vector<int32_t> list(std::span<const int32_t> values) { return {values.begin(), values.end()}; }

SlotTable make(int32_t n_heads, int32_t n_slots) {
  SlotTable table(n_heads);
  table.set_stride(kPageSlots);
  for (int32_t t = 0; t < n_slots; ++t) {
    for (int32_t h = 0; h < n_heads; ++h) table.append(h, {&t, 1});
  }
  return table;
}

TEST(SlotTable, StoresTokensAndPlaces) {
  SlotTable table = make(2, 3);
  EXPECT_TRUE(table.complete());
  EXPECT_EQ(table.view_places(), nullptr);
  table.append(1, std::vector<int32_t>{5, 9});
  EXPECT_EQ(list(table.tokens(1)), (std::vector<int32_t>{0, 1, 2, 5, 9}));
  EXPECT_EQ(table.places(1)[4], 9);
  EXPECT_EQ(table.n_slots(0), 3);
  EXPECT_EQ(table.longest(), 5);
  EXPECT_FALSE(table.complete());
  EXPECT_NE(table.view_places(), nullptr);
  EXPECT_EQ(table.n_until(1, 4), 3);
  EXPECT_EQ(table.n_until(1, 5), 4);
  EXPECT_EQ(table.n_until(1, -1), 0);
  table.set_stride(3 * kPageSlots);
  EXPECT_EQ(table.tokens(1)[4], 9);
  EXPECT_EQ(table.view_places()[3 * kPageSlots + 4], 9);
}

TEST(SlotTable, CountsHiddenSlots) {
  SlotTable table = make(2, 10);
  EXPECT_EQ(table.view_biases(), nullptr);
  table.hide(1, 3);
  table.hide(1, 3);
  table.hide(1, 9);
  table.set_bias(1, 4, 0.5f);
  EXPECT_EQ(table.n_hidden(1), 2);
  EXPECT_EQ(table.n_hidden(0), 0);
  std::vector<int32_t> visible;
  table.list_visible(1, visible);
  EXPECT_EQ(visible, (std::vector<int32_t>{0, 1, 2, 4, 5, 6, 7, 8}));
  EXPECT_EQ(table.view_biases()[kPageSlots + 3], -INFINITY);
  table.shorten(1, 9);
  EXPECT_EQ(table.n_hidden(1), 1);
  table.set_bias(1, 3, 0);
  EXPECT_EQ(table.n_hidden(1), 0);
  table.shorten(1, 4);
  table.refresh();
  EXPECT_TRUE(table.complete());
}

TEST(SlotTable, GathersSlotsWithAllTheirFields) {
  SlotTable table = make(2, 8);
  table.set_planes(2);
  for (int32_t i = 0; i < 8; ++i) table.plane(1, 1)[static_cast<size_t>(i)] = static_cast<float>(10 * i);
  table.set_bias(1, 6, 0.5f);
  table.hide(1, 7);
  const KeepPlan::Merge merge{.sources = {5, 2}, .weights = {1, 1}};
  const std::vector<const KeepPlan::Merge*> merges = {nullptr, &merge, nullptr, nullptr};
  table.gather(1, std::vector<int32_t>{1, 2, 6, 7}, merges);
  EXPECT_EQ(list(table.tokens(1)), (std::vector<int32_t>{1, merged_token(2), 6, 7}));
  EXPECT_EQ(list(table.places(1)), (std::vector<int32_t>{1, 2, 6, 7}));
  EXPECT_EQ(table.biases(1)[2], 0.5f);
  EXPECT_EQ(table.n_hidden(1), 1);
  const std::span<const float> sums = table.plane(1, 1);
  EXPECT_EQ(std::vector<float>(sums.begin(), sums.end()), (std::vector<float>{10, 70, 60, 70}));
  EXPECT_EQ(table.plane(1, 0)[3], 0);
  EXPECT_EQ(table.n_slots(0), 8);
  // A merge of a merge begins at the first source of the first.
  const KeepPlan::Merge again{.sources = {1, 2}, .weights = {1, 1}};
  table.gather(1, std::vector<int32_t>{1}, std::vector<const KeepPlan::Merge*>{&again});
  EXPECT_EQ(table.tokens(1)[0], merged_token(2));
  EXPECT_EQ(table.plane(1, 1)[0], 130);
  EXPECT_EQ(table.n_until(1, 1), 0);
  EXPECT_EQ(table.n_until(1, 2), 1);
}

TEST(SlotTable, NewPlaneValuesAreZero) {
  SlotTable table = make(1, 4);
  table.set_planes(1);
  for (float& x : table.plane(0, 0)) x = 5;
  table.shorten(0, 2);
  const std::vector<int32_t> tokens = {2, 3};
  table.append(0, tokens);
  EXPECT_EQ(table.plane(0, 0)[1], 5);
  EXPECT_EQ(table.plane(0, 0)[3], 0);
  table.set_planes(3);
  EXPECT_EQ(table.plane(0, 0)[1], 5);
  EXPECT_EQ(table.plane(0, 2)[1], 0);
  table.set_stride(2 * kPageSlots);
  EXPECT_EQ(table.plane(0, 0)[1], 5);
  table.set_planes(0);
  table.set_planes(1);
  EXPECT_EQ(table.plane(0, 0)[1], 0);
}

TEST(SlotTable, SlotsAreAppendedWithTheirBiases) {
  SlotTable table = make(2, 3);
  const std::vector<int32_t> tokens = {3, 4};
  table.append(0, tokens, std::vector<float>{0, 0});
  EXPECT_EQ(table.view_biases(), nullptr);
  table.append(1, tokens, std::vector<float>{0, 1.5f});
  EXPECT_EQ(table.biases(1)[3], 0);
  EXPECT_EQ(table.biases(1)[4], 1.5f);
  EXPECT_EQ(table.biases(0)[4], 0);
  EXPECT_NE(table.view_biases(), nullptr);
  EXPECT_FALSE(table.complete());
}

TEST(SlotTable, RestoresTheNotedState) {
  SlotTable table = make(2, 3);
  table.note();
  table.append(0, std::vector<int32_t>{7, 8});
  table.hide(0, 4);
  table.forget();
  EXPECT_EQ(table.n_slots(0), 3);
  EXPECT_EQ(table.n_hidden(0), 0);
  EXPECT_EQ(table.view_places(), nullptr);
}

}  // namespace
}  // namespace vlcache
