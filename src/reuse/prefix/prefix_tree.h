// PrefixTree: finds the KV of prompts and completions by their beginnings (RadixAttention, arXiv:2312.07104). Pages are
// shared whole; a match may end at any element, and a sequence that continues from the middle of a page copies that
// page at its first write. The tree knows nothing of KV: pages are numbers, their owner counts references, and tells
// from the middle of which pages a sequence can continue.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/function_ref.h"

namespace vlcache {

// An element of a key: a token id, or a row of an image (the maker of keys ensures that different images have different
// elements).
using Element = int64_t;
// The KV of a page's elements in all layers and heads.
using PageGroup = int32_t;

// Owns what page groups stand for.
class PageGroupOwner {
 public:
  virtual ~PageGroupOwner() = default;
  virtual void retain(PageGroup group) = 0;
  virtual void release(PageGroup group) = 0;
  // Whether a sequence can continue from the middle of the page.
  virtual bool can_grow(PageGroup group) const {
    static_cast<void>(group);
    return true;
  }
};

// The order of eviction: the leaf with the least priority first, from its end.
class EvictionClock {
 public:
  virtual ~EvictionClock() = default;
  // Priority of pages that are requested now, for the n-th time; each costs `cost` to recompute.
  virtual double priority(double n_uses, double cost) = 0;
  // A leaf of this priority was evicted.
  virtual void went(double priority) { static_cast<void>(priority); }
};

// Least recently requested first.
class LruClock final : public EvictionClock {
 public:
  double priority(double, double) override { return ++now_; }

 private:
  double now_ = 0;
};

// Least saving first: requests x cost, plus an age that every new entry starts with (Cherkasova 1998).
class GdsfClock final : public EvictionClock {
 public:
  double priority(double n_uses, double cost) override { return age_ + n_uses * cost; }
  void went(double priority) override { age_ = priority; }

 private:
  double age_ = 0;
};

class PrefixTree {
  struct Node;

 public:
  // page_size: elements of a page. Owner and clock must outlive the tree.
  PrefixTree(int32_t page_size, PageGroupOwner& owner, EvictionClock& clock);
  ~PrefixTree();
  PrefixTree(const PrefixTree&) = delete;

  struct Match {
    // Number of leading elements of the key that are cached; if they end inside a page, it can grow.
    int64_t n_elements = 0;
    std::vector<PageGroup> groups;  // theirs, in order; the last one may hold more than that
    int64_t n_common = 0;           // the same number, whether that page can grow or not
  };
  // The longest cached beginning of `key`; counts as a request. The groups are the tree's: retain those that must
  // outlast the next eviction.
  Match match(std::span<const Element> key);
  // The same beginning; does not count as a request.
  Match peek(std::span<const Element> key);
  // Its length.
  int64_t n_common(std::span<const Element> key);
  // Takes, and retains, the groups of `key` that are not cached: groups[i] has elements [i page_size, (i + 1)
  // page_size), the last one perhaps fewer. Returns how many were taken. A partly filled page stays beside a page that
  // continues it if that cannot grow. `cost`: of recomputing a page. `asks`: whether the cached part counts as
  // requested; false for a caller that has already requested it.
  int64_t insert(std::span<const Element> key, std::span<const PageGroup> groups, double cost = 1, bool asks = true);
  // Evicts up to n_pages, except pinned ones; returns how many.
  int64_t evict(int64_t n_pages);
  // Called before pages are evicted: those of groups[n_left] on, which are the end of a leaf. `key`: the elements of
  // all groups, from the first token on.
  using EvictionListener =
      std::function<void(std::span<const Element> key, std::span<const PageGroup> groups, int64_t n_left)>;
  void on_evict(EvictionListener listener) { listener_ = std::move(listener); }
  // Priority of the next leaf to be evicted; infinity if there is none.
  double least_priority() const;
  // Visits every cached element.
  void for_each_element(FunctionRef<void(Element)> visit) const;

  // Protects the matched part of a key from eviction for this object's lifetime. The tree must outlive it.
  class Pin {
   public:
    Pin() = default;
    Pin(Pin&& other) noexcept : tree_(other.tree_), node_(std::exchange(other.node_, nullptr)) {}
    Pin& operator=(Pin&& other) noexcept {
      std::swap(tree_, other.tree_);
      std::swap(node_, other.node_);
      return *this;
    }
    ~Pin();
    bool holds() const { return node_ != nullptr; }

   private:
    friend PrefixTree;
    Pin(PrefixTree* tree, Node* node) : tree_(tree), node_(node) {}
    PrefixTree* tree_ = nullptr;
    Node* node_ = nullptr;
  };
  Pin pin(std::span<const Element> key);

  int64_t n_pages() const { return n_pages_; }

 private:
  struct Found;

  Found find(std::span<const Element> key);
  void find_end(std::span<const Element> rest, Found& found) const;
  Match match_of(const Found& found) const;
  Node& deepest(const Found& found);
  void for_each_node(FunctionRef<void(const Node&)> visit) const;
  std::span<const Element> page_of(const Node& node, size_t page) const;
  Node& add_child(Node& parent, std::span<const Element> elements, std::span<const PageGroup> groups, double cost);
  Node& split(Node& node, size_t n_pages);
  void drop_pages(Node& node, size_t n_pages);
  void announce(Node& leaf, size_t n_drop);
  void remove(Node& node);
  void touch(Node& deepest, const Node* until);
  void list(Node& node);
  void unlist(Node& node);

  int32_t page_size_;
  PageGroupOwner& owner_;
  EvictionClock& clock_;
  std::unique_ptr<Node> root_;
  // Leaves that can be evicted, the next one first: by priority, then by when they were listed.
  std::map<std::pair<double, int64_t>, Node*> leaves_;
  int64_t n_listed_ = 0;
  EvictionListener listener_;
  // The way from the root to the leaf that was evicted from last: evictions of single pages walk it once.
  struct Path {
    const Node* leaf = nullptr;
    std::vector<Element> key;
    std::vector<PageGroup> groups;
  } path_;
  int64_t n_pages_ = 0;
};

}  // namespace vlcache
