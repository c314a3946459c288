// PrefixTree: the KV of prompts and completions, found again by what they begin with (RadixAttention,
// arXiv:2312.07104). Pages are shared whole; a match ends at any element, and whoever goes on from the middle of a page
// copies that page at the first write. It knows nothing of KV: pages are numbers, their owner counts references.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/function_ref.h"

namespace vlcache {

// What prompts are made of here: a token id, or a row of an image (whoever makes keys sees to it that different images
// have different elements).
using Element = int64_t;
// The KV of a page's elements in all layers and heads.
using PageGroup = int32_t;

// Holds what page groups stand for.
class PageGroupOwner {
 public:
  virtual ~PageGroupOwner() = default;
  virtual void retain(PageGroup group) = 0;
  virtual void release(PageGroup group) = 0;
};

// Who goes first when room is wanted: the leaf with the least priority, from its end.
class EvictionClock {
 public:
  virtual ~EvictionClock() = default;
  // Of pages that are asked for now, for the n-th time; each takes `cost` to make anew.
  virtual double priority(double n_uses, double cost) = 0;
  // Something of this priority has gone.
  virtual void went(double priority) { static_cast<void>(priority); }
};

// What was asked for longest ago goes first.
class LruClock final : public EvictionClock {
 public:
  double priority(double, double) override { return ++now_; }

 private:
  double now_ = 0;
};

// What saves least: times asked for x cost, and an age that all begin with (Cherkasova 1998).
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
    int64_t n_elements = 0;         // of the key that are there
    std::vector<PageGroup> groups;  // theirs, in order; the last one may hold more than that
  };
  // The longest beginning of `key` that is there; it counts as asked for. The groups are the tree's: retain what is to
  // outlast the next eviction.
  Match match(std::span<const Element> key);
  // How long that beginning is, without asking for it.
  int64_t n_common(std::span<const Element> key);
  // Takes, and retains, the groups of `key` that are not there: groups[i] has elements [i page_size, (i + 1)
  // page_size), the last one perhaps fewer. Returns how many were taken. `cost`: what a page takes to make
  // anew. What is there counts as asked for where `asks`: who has asked before does not ask twice.
  int64_t insert(std::span<const Element> key, std::span<const PageGroup> groups, double cost = 1, bool asks = true);
  // Gives up to n_pages back, as many as nobody has pinned; returns how many.
  int64_t evict(int64_t n_pages);
  // Of what would go first; infinity where nothing can.
  double least_priority() const;
  // Of what is there.
  void for_each_element(FunctionRef<void(Element)> visit) const;

  // Keeps what a key has found from being evicted for as long as this lives. The tree must outlive it.
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

   private:
    friend PrefixTree;
    Pin(PrefixTree* tree, Node* node) : tree_(tree), node_(node) {}
    PrefixTree* tree_ = nullptr;
    Node* node_ = nullptr;
  };
  Pin pin(std::span<const Element> key);

  int64_t n_pages() const { return n_pages_; }
  int64_t n_nodes() const { return n_nodes_; }

 private:
  struct Found;

  Found find(std::span<const Element> key);
  Node& deepest(const Found& found);
  void for_each_node(FunctionRef<void(const Node&)> visit) const;
  std::span<const Element> page_of(const Node& node, size_t page) const;
  Node& add_child(Node& parent, std::span<const Element> elements, std::span<const PageGroup> groups, double cost);
  Node& split(Node& node, size_t n_pages);
  void drop_pages(Node& node, size_t n_pages);
  void remove(Node& node);
  void touch(Node& deepest, const Node* until);
  void list(Node& node);
  void unlist(Node& node);

  int32_t page_size_;
  PageGroupOwner& owner_;
  EvictionClock& clock_;
  std::unique_ptr<Node> root_;
  // Leaves that may go, the next one first: by priority, then by when they were listed.
  std::map<std::pair<double, int64_t>, Node*> leaves_;
  int64_t n_listed_ = 0;
  int64_t n_pages_ = 0, n_nodes_ = 0;
};

}  // namespace vlcache
