#include "cache/page_table.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace vlcache {
namespace {

std::vector<int32_t> row_of(const PageTable& table, int32_t head) {
  return {table.row(head), table.row(head) + table.n_pages(head)};
}

TEST(PageTable, GrowsAndFreesItsPages) {
  PagePool pool(4096, 64);
  {
    PageTable table({.values = &pool}, 2);
    table.set_stride(20);
    table.extend(0, 3);
    table.extend(1, 2);
    table.extend(0, 12);
    EXPECT_EQ(table.n_pages(), 14);
    const std::vector<int32_t> row = row_of(table, 0);
    table.set_stride(40);
    EXPECT_EQ(row_of(table, 0), row);
    EXPECT_EQ(table.pages() + 40, table.row(1));
    table.shorten(0, 1);
    EXPECT_EQ(pool.n_used(), 3);
    table.set_stride(3);
    EXPECT_EQ(row_of(table, 0)[0], row[0]);
    EXPECT_EQ(row_of(table, 1).size(), 2u);
  }
  EXPECT_EQ(pool.n_used(), 0);
}

TEST(PageTable, ForkSharesPagesButNotReservedOnes) {
  PagePool pool(4096, 64);
  PageTable table({.values = &pool}, 1);
  table.set_stride(30);
  for (int32_t n = 1; n <= 8; ++n) table.extend(0, n);
  const int64_t used = pool.n_used();
  EXPECT_EQ(used, 9);  // runs of 1, 1, 1, 1, 2, 3
  EXPECT_FALSE(table.any_shared());
  {
    const PageTable copy = table.fork();
    EXPECT_TRUE(table.any_shared());
    EXPECT_EQ(row_of(copy, 0), row_of(table, 0));
    EXPECT_EQ(pool.n_used(), used);
  }
  EXPECT_FALSE(table.any_shared());
  EXPECT_EQ(pool.n_used(), used);
}

class PageTableRelink : public testing::Test {
 protected:
  PageTableRelink() : pool_(4096, 64), table_({.values = &pool_}, 2) {
    table_.set_stride(8);
    table_.extend(1, 6);
    row_ = row_of(table_, 1);
  }
  PagePool pool_;
  PageTable table_;
  std::vector<int32_t> row_;
  FreshPages fresh_;
};

TEST_F(PageTableRelink, LinkedPagesMoveAndTheRestAreFreed) {
  std::vector<PageLink> links = {{.source = 2, .write = true}, {.source = 5}};
  EXPECT_EQ(table_.mark_copies(1, links), 0);
  table_.relink(1, {.first = 1, .links = links}, fresh_);
  EXPECT_EQ(row_of(table_, 1), (std::vector<int32_t>{row_[0], row_[2], row_[5]}));
  EXPECT_EQ(std::vector<int32_t>(table_.old_row(), table_.old_row() + 6), row_);
  EXPECT_EQ(pool_.n_used(), 6);  // still to be read
  table_.release_old();
  EXPECT_EQ(pool_.n_used(), 3);
}

TEST_F(PageTableRelink, SharedPagesAreReplacedOnlyWhereWritten) {
  const PageTable copy = table_.fork();
  std::vector<PageLink> links = {{.source = 1, .write = true}, {.source = 3}};
  ASSERT_EQ(table_.mark_copies(1, links), 1);
  EXPECT_TRUE(links[0].copy);
  fresh_.take(pool_, 1);
  table_.relink(1, {.first = 0, .links = links}, fresh_);
  table_.release_old();
  EXPECT_EQ(row_of(table_, 1).size(), 2u);
  EXPECT_EQ(pool_.references(row_of(table_, 1)[0]), 1);
  EXPECT_EQ(row_of(table_, 1)[1], row_[3]);
  EXPECT_EQ(pool_.references(row_[3]), 2);
  EXPECT_EQ(pool_.references(row_[1]), 1);
  EXPECT_EQ(row_of(copy, 1), row_);
  EXPECT_EQ(pool_.n_used(), 7);
}

TEST_F(PageTableRelink, ReservedPagesAreKept) {
  std::vector<PageLink> links = {{.source = 4}};
  table_.relink(1, {.first = 0, .links = links, .keep_rest = true}, fresh_);
  table_.release_old();
  EXPECT_EQ(row_of(table_, 1), (std::vector<int32_t>{row_[4], row_[0], row_[1], row_[2], row_[3], row_[5]}));
  EXPECT_EQ(pool_.n_used(), 6);
}

TEST(FreshPages, UnusedPagesAreReturned) {
  PagePool pool(4096, 4);
  FreshPages fresh;
  fresh.take(pool, 2);
  EXPECT_THROW(fresh.take(pool, 3), Error);
  EXPECT_EQ(pool.n_used(), 0);
  fresh.take(pool, 3);
  const int32_t page = fresh.next();
  fresh.give_back();
  EXPECT_EQ(pool.n_used(), 1);
  pool.release(page);
}

}  // namespace
}  // namespace vlcache
