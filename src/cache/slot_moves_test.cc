// Which pages are relinked and which slots are copied, against a simple simulation of pages.
#include "cache/slot_moves.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace vlcache {
namespace {

std::vector<int32_t> range(int32_t begin, int32_t end) {
  std::vector<int32_t> r(static_cast<size_t>(end - begin));
  std::iota(r.begin(), r.end(), begin);
  return r;
}

// Executes the copies on pages that hold the numbers of their slots, and expects slot i of the result to hold kept[i].
void expect_moves_right(const SlotMoves& moves, int32_t n_slots) {
  std::vector<int32_t> old_pages(static_cast<size_t>(pages_for(n_slots)) * kPageSlots, -1);
  std::iota(old_pages.begin(), old_pages.begin() + n_slots, 0);
  std::vector<int32_t> fresh(moves.links.size() * kPageSlots, -1);
  const auto place = [&](int32_t slot) -> int32_t& {  // of a slot of the result
    const int32_t page = slot / kPageSlots, link = page - moves.first_page;
    if (link < 0) return old_pages[static_cast<size_t>(slot)];
    const PageLink& l = moves.links[static_cast<size_t>(link)];
    return l.copy ? fresh[static_cast<size_t>(link * kPageSlots + slot % kPageSlots)]
                  : old_pages[static_cast<size_t>(l.source * kPageSlots + slot % kPageSlots)];
  };
  for (size_t i = 0; i < moves.from.size(); ++i) place(moves.to[i]) = old_pages[static_cast<size_t>(moves.from[i])];
  for (int32_t i = 0; i < static_cast<int32_t>(moves.kept.size()); ++i) {
    ASSERT_EQ(place(i), moves.kept[static_cast<size_t>(i)]) << "slot " << i;
  }
  for (size_t i = 1; i < moves.links.size(); ++i) ASSERT_GT(moves.links[i].source, moves.links[i - 1].source);
}

// Four sinks, then a window from which 64 slots have slid out: 4 copies whatever the window size.
TEST(SlotMoves, SlidingWindowCopiesOnlyItsSinks) {
  SlotMoves moves;
  moves.kept = range(0, 4);
  for (int32_t slot : range(68, 3000)) moves.kept.push_back(slot);
  moves.link_pages(3000);
  moves.list_copies();
  EXPECT_EQ(moves.from.size(), 4u);
  EXPECT_EQ(moves.first_page, 0);
  EXPECT_EQ(moves.links[0].source, 1);
  EXPECT_TRUE(moves.links[0].write);
  EXPECT_EQ(moves.links[9].source, 10);
  EXPECT_FALSE(moves.links[9].write);
  expect_moves_right(moves, 3000);
}

TEST(SlotMoves, UnchangedLeadingPagesAreNotTouched) {
  SlotMoves moves;
  moves.kept = range(0, 150);
  moves.kept.erase(moves.kept.begin() + 130);
  moves.link_pages(1000);
  EXPECT_EQ(moves.first_page, 2);
  ASSERT_EQ(moves.links.size(), 1u);
  moves.list_copies();
  EXPECT_EQ(moves.from, range(131, 150));
  EXPECT_EQ(moves.to, range(130, 149));
  moves.link_pages(70);  // slot 70 will be overwritten
  EXPECT_EQ(moves.first_page, 1);
  moves.kept = range(0, 150);
  moves.link_pages(1000);
  EXPECT_EQ(moves.first_page, 3);
  EXPECT_TRUE(moves.links.empty());
}

TEST(SlotMoves, SlotsMoveUpInsideARelinkedPage) {
  SlotMoves moves;
  // Slots 63 and 64 move to places 0 and 1 of page 1, the source of the rest: 64 must move out before 63 gets its
  // place.
  moves.kept = {63, 64};
  for (int32_t slot : range(66, 128)) moves.kept.push_back(slot);
  moves.link_pages(1000);
  moves.list_copies();
  EXPECT_EQ(moves.links[0].source, 1);
  EXPECT_EQ(moves.from, (std::vector<int32_t>{64, 63}));
  EXPECT_EQ(moves.to, (std::vector<int32_t>{1, 0}));
  expect_moves_right(moves, 128);
}

TEST(SlotMoves, RandomSelectionsAgreeWithTheSimulation) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 3000; ++trial) {
    const int32_t n = 1 + static_cast<int32_t>(random() % 700);
    // Runs that are kept or dropped, of lengths from single slots to pages: shifts of every kind.
    const uint32_t longest_run = 1u << random() % 8;
    SlotMoves moves;
    bool keep = random() % 2 == 0;
    for (int32_t slot = 0; slot < n; keep = !keep) {
      const int32_t run = random() % 4 == 0 ? kPageSlots : 1 + static_cast<int32_t>(random() % longest_run);
      for (int32_t end = std::min(n, slot + run); slot < end; ++slot) {
        if (keep) moves.kept.push_back(slot);
      }
    }
    moves.link_pages(random() % 4 == 0 ? static_cast<int32_t>(random() % 700) : n);
    for (PageLink& link : moves.links) link.copy = link.write && random() % 3 == 0;
    moves.list_copies();
    ASSERT_NO_FATAL_FAILURE(expect_moves_right(moves, n)) << "trial " << trial;
  }
}

}  // namespace
}  // namespace vlcache
