// The tree against a list of everything that was inserted.
#include "reuse/prefix/prefix_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <unordered_map>
#include <unordered_set>

namespace vlcache {
namespace {

constexpr int32_t kPage = 4;
using Key = std::vector<Element>;

// Knows the elements of every group, and its references.
class Groups final : public PageGroupOwner {
 public:
  std::vector<PageGroup> make(const Key& key) {
    std::vector<PageGroup> groups;
    for (size_t begin = 0; begin < key.size(); begin += kPage) {
      const size_t end = std::min(key.size(), begin + kPage);
      groups.push_back(next_++);
      contents_[groups.back()] =
          Key(key.begin() + static_cast<int64_t>(begin), key.begin() + static_cast<int64_t>(end));
    }
    return groups;
  }
  void retain(PageGroup group) override { ++held_[group]; }
  void release(PageGroup group) override {
    ASSERT_GT(held_[group], 0);
    if (--held_[group] == 0) held_.erase(group);
  }
  int64_t n_held() const { return std::ssize(held_); }
  bool can_grow(PageGroup group) const override { return !closed_.contains(group); }
  void close(PageGroup group) { closed_.insert(group); }
  const Key& contents(PageGroup group) const { return contents_.at(group); }
  bool holds(PageGroup group) const { return held_.contains(group); }

 private:
  PageGroup next_ = 0;
  std::unordered_map<PageGroup, Key> contents_;
  std::unordered_map<PageGroup, int> held_;
  std::unordered_set<PageGroup> closed_;  // cannot grow
};

struct Clocks {
  LruClock lru;
  GdsfClock gdsf;
  EvictionClock& of(bool is_lru) { return is_lru ? static_cast<EvictionClock&>(lru) : gdsf; }
};

int64_t common(const Key& a, const Key& b) { return std::ranges::mismatch(a, b).in1 - a.begin(); }

// The elements that a match reports must be those of its groups.
void expect_true(const Key& key, const PrefixTree::Match& match, const Groups& groups) {
  ASSERT_EQ(std::ssize(match.groups), (match.n_elements + kPage - 1) / kPage);
  for (int64_t i = 0; i < match.n_elements; ++i) {
    const PageGroup group = match.groups[static_cast<size_t>(i / kPage)];
    ASSERT_TRUE(groups.holds(group));
    ASSERT_EQ(groups.contents(group).at(static_cast<size_t>(i % kPage)), key[static_cast<size_t>(i)]);
  }
}

Key random_key(std::mt19937& random) {
  Key key(1 + random() % 30);
  for (Element& e : key) e = random() % 8 == 0 ? 1 : 0;  // long common beginnings
  return key;
}

TEST(PrefixTree, FindsTheLongestPrefix) {
  for (const bool lru : {true, false}) {
    std::mt19937 random(7);
    Clocks clocks;
    Groups groups;
    {
      PrefixTree tree(kPage, groups, clocks.of(lru));
      std::vector<Key> all;
      for (int i = 0; i < 3000; ++i) {
        const Key key = random_key(random);
        int64_t longest = 0;
        for (const Key& other : all) longest = std::max(longest, common(key, other));
        const PrefixTree::Match match = tree.match(key);
        ASSERT_EQ(match.n_elements, longest) << i;
        expect_true(key, match, groups);
        if (random() % 2 == 0) {
          tree.insert(key, groups.make(key));
          all.push_back(key);
          ASSERT_EQ(tree.match(key).n_elements, std::ssize(key));
        }
        ASSERT_EQ(tree.n_pages(), groups.n_held());
      }
    }
    EXPECT_EQ(groups.n_held(), 0);
  }
}

TEST(PrefixTree, EvictsPageByPageButNoPinnedPages) {
  for (const bool lru : {true, false}) {
    std::mt19937 random(11);
    Clocks clocks;
    Groups groups;
    PrefixTree tree(kPage, groups, clocks.of(lru));
    std::vector<std::pair<Key, PrefixTree::Pin>> pinned;
    for (int i = 0; i < 5000; ++i) {
      const Key key = random_key(random);
      tree.insert(key, groups.make(key));
      if (random() % 50 == 0) pinned.emplace_back(key, tree.pin(key));
      if (pinned.size() > 10) pinned.erase(pinned.begin() + random() % 10);
      const int64_t before = tree.n_pages(), excess = before - 60;
      if (excess > 0) {
        const int64_t n = tree.evict(excess);
        ASSERT_LE(n, excess);
        ASSERT_EQ(tree.n_pages(), before - n);
      }
      ASSERT_EQ(tree.n_pages(), groups.n_held());
      for (const auto& [own, pin] : pinned) {
        const PrefixTree::Match match = tree.match(own);
        ASSERT_EQ(match.n_elements, std::ssize(own));
        expect_true(own, match, groups);
      }
    }
    pinned.clear();
    tree.evict(tree.n_pages());
    EXPECT_EQ(tree.n_pages(), 0);
    EXPECT_EQ(tree.least_priority(), std::numeric_limits<double>::infinity());  // no node is left to evict
    EXPECT_EQ(groups.n_held(), 0);
  }
}

TEST(PrefixTree, LeastRecentlyUsedPrefixIsEvictedFirstFromItsEnd) {
  Groups groups;
  LruClock clock;
  PrefixTree tree(kPage, groups, clock);
  const Key a(12, 1), b(12, 2), c(12, 3);
  for (const Key* key : {&a, &b, &c}) tree.insert(*key, groups.make(*key));
  tree.match(a);
  EXPECT_EQ(tree.evict(4), 4);  // all of b, the last page of c
  EXPECT_EQ(tree.match(b).n_elements, 0);
  EXPECT_EQ(tree.match(c).n_elements, 8);
  EXPECT_EQ(tree.match(a).n_elements, 12);
}

TEST(PrefixTree, FrequentlyUsedPagesOutliveNewOnes) {
  Groups groups;
  GdsfClock clock;
  PrefixTree tree(1, groups, clock);
  const Key often{1}, once{2}, later{3};
  const auto insert = [&](const Key& key) {
    const std::vector<PageGroup> made = groups.make(key);
    tree.insert(key, made);
  };
  insert(often);
  for (int i = 0; i < 5; ++i) tree.match(often);
  insert(once);
  insert(later);
  EXPECT_EQ(tree.evict(2), 2);
  EXPECT_EQ(tree.match(often).n_elements, 1);
  // Age: a once popular entry is evicted after enough others.
  for (Element e = 10; e < 20; ++e) {
    insert({e});
    tree.match(Key{e});
    tree.evict(1);
  }
  EXPECT_EQ(tree.n_pages(), 1);
}

// Only the pages that a key has in common count as requested, not those after them.
TEST(PrefixTree, PagesAfterAMatchDoNotCountAsUsed) {
  Groups groups;
  GdsfClock clock;
  PrefixTree tree(kPage, groups, clock);
  const Key a{1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3}, b(8, 5);
  tree.insert(a, groups.make(a));
  tree.insert(b, groups.make(b));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(tree.match(Key{1, 1, 7}).n_elements, 2);
  EXPECT_EQ(tree.evict(4), 4);
  EXPECT_EQ(tree.match(a).n_elements, 4);
  EXPECT_EQ(tree.n_pages(), 1);
}

TEST(PrefixTree, LongerPageReplacesAPartialOne) {
  Groups groups;
  LruClock clock;
  PrefixTree tree(kPage, groups, clock);
  const Key begun{1, 2, 3, 4, 5}, on{1, 2, 3, 4, 5, 6, 7}, other{1, 2, 3, 4, 5, 9};
  EXPECT_EQ(tree.insert(begun, groups.make(begun)), 2);
  EXPECT_EQ(tree.insert(on, groups.make(on)), 1);
  EXPECT_EQ(tree.n_pages(), 2);
  EXPECT_EQ(tree.match(begun).n_elements, 5);
  EXPECT_EQ(tree.insert(other, groups.make(other)), 1);
  EXPECT_EQ(tree.n_pages(), 3);
  EXPECT_EQ(tree.insert(begun, groups.make(begun)), 0);
  EXPECT_EQ(tree.match(on).n_elements, 7);
  EXPECT_EQ(tree.match(other).n_elements, 6);
}

// Whole pages match whether they can grow or not; a match that ends inside a page needs one that can.
TEST(PrefixTree, EndsInsideAPageOnlyWhereThatCanGrow) {
  std::mt19937 random(5);
  LruClock clock;
  Groups groups;
  PrefixTree tree(kPage, groups, clock);
  std::vector<std::pair<Key, bool>> pages;  // keys up to the end of a page, and whether that can grow
  int n_shorter = 0;
  for (int i = 0; i < 800; ++i) {
    const Key key = random_key(random);
    int64_t longest = 0, expected = 0;
    for (const auto& [page, grows] : pages) longest = std::max(longest, common(key, page));
    expected = longest / kPage * kPage;
    for (const auto& [page, grows] : pages) {
      const int64_t n = common(key, page), begin = (std::ssize(page) - 1) / kPage * kPage;
      if (grows && n > begin) expected = std::max(expected, n);
    }
    const PrefixTree::Match match = tree.peek(key);
    ASSERT_EQ(match.n_elements, expected) << i;
    ASSERT_EQ(match.n_common, longest) << i;
    expect_true(key, match, groups);
    n_shorter += expected < longest ? 1 : 0;
    std::vector<PageGroup> made = groups.make(key);
    for (size_t p = static_cast<size_t>(expected) / kPage; p < made.size() && expected < std::ssize(key); ++p) {
      const size_t end = std::min(key.size(), (p + 1) * kPage);
      const bool grows = end % kPage != 0 || random() % 3 == 0;  // pages that are not full have values
      if (!grows) groups.close(made[p]);
      pages.emplace_back(Key(key.begin(), key.begin() + static_cast<int64_t>(end)), grows);
    }
    tree.insert(key, made);
    ASSERT_EQ(tree.match(key).n_elements, std::ssize(key));
    ASSERT_EQ(tree.n_pages(), groups.n_held());
  }
  EXPECT_GT(n_shorter, 50);
  tree.evict(tree.n_pages());
  EXPECT_EQ(groups.n_held(), 0);
}

}  // namespace
}  // namespace vlcache
