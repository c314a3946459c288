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

// Who goes first when room is wanted; always from the end of a leaf.
enum class EvictionOrder : uint8_t {
  kLru,   // what was asked for longest ago
  kGdsf,  // what saves least: times asked for x cost, and an age that all begin with (Cherkasova 1998)
};

class PrefixTree {
  struct Node;

 public:
  // page_size: elements of a page. The owner must outlive the tree.
  PrefixTree(int32_t page_size, PageGroupOwner& owner, EvictionOrder order);
  ~PrefixTree();
  PrefixTree(const PrefixTree&) = delete;

  struct Match {
    int64_t n_elements = 0;         // of the key that are there
    std::vector<PageGroup> groups;  // theirs, in order; the last one may hold more than that
  };
  // The longest beginning of `key` that is there; it counts as asked for. The groups are the tree's: retain what is to
  // outlast the next eviction.
  Match match(std::span<const Element> key);
  // Takes, and retains, the groups of `key` that are not there: groups[i] has elements [i page_size, (i + 1)
  // page_size), the last one perhaps fewer. Returns how many were taken. What is there counts as asked for.
  int64_t insert(std::span<const Element> key, std::span<const PageGroup> groups);
  // Gives up to n_pages back, as many as nobody has pinned; returns how many.
  int64_t evict(int64_t n_pages);

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
  std::span<const Element> page_of(const Node& node, size_t page) const;
  Node& add_child(Node& parent, std::span<const Element> elements, std::span<const PageGroup> groups);
  Node& split(Node& node, size_t n_pages);
  void drop_pages(Node& node, size_t n_pages);
  void remove(Node& node);
  void touch(Node& deepest);
  void list(Node& node);
  void unlist(Node& node);

  int32_t page_size_;
  PageGroupOwner& owner_;
  EvictionOrder order_;
  std::unique_ptr<Node> root_;
  // Leaves that may go, the next one first: by priority, then by when they were listed.
  std::map<std::pair<double, int64_t>, Node*> leaves_;
  double clock_ = 0;  // LRU: of the last touch; GDSF: priority of what went last
  int64_t n_listed_ = 0;
  int64_t n_pages_ = 0, n_nodes_ = 0;
};

}  // namespace vlcache
