// Nodes of whole pages; a partly filled page is a leaf of its own.
#include "reuse/prefix/prefix_tree.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace vlcache {
namespace {

int64_t common(std::span<const Element> a, std::span<const Element> b) {
  return std::ranges::mismatch(a, b).in1 - a.begin();
}

}  // namespace

struct PrefixTree::Node {
  // Ordered by the elements of the first page: adjacent children have the longest common beginning.
  struct ByFirstPage {
    using is_transparent = void;
    int32_t page_size;
    std::span<const Element> first(std::span<const Element> key) const {
      return key.first(std::min(key.size(), static_cast<size_t>(page_size)));
    }
    std::span<const Element> first(const std::unique_ptr<Node>& node) const { return first(node->elements); }
    bool operator()(const auto& a, const auto& b) const {
      return std::ranges::lexicographical_compare(first(a), first(b));
    }
  };
  using Children = std::set<std::unique_ptr<Node>, ByFirstPage>;

  explicit Node(int32_t page_size) : children(ByFirstPage{page_size}) {}

  Node* parent = nullptr;
  std::vector<Element> elements;
  std::vector<PageGroup> groups;
  Children children;
  int32_t n_pins = 0;
  double cost = 1;  // of recomputing a page
  double n_uses = 0, priority = 0;
  int64_t listed = -1;  // its number among the leaves that can be evicted; -1: it cannot
};

// The longest match of a key.
struct PrefixTree::Found {
  Node* node = nullptr;    // matches completely
  int64_t n_elements = 0;  // up to the node's end
  // Of the children whose first page can grow the one with the longest common beginning after that, and its length;
  // within that page.
  Node* next = nullptr;
  int64_t n_common = 0;
  int64_t n_longest = 0;  // the same, of all children
};

PrefixTree::PrefixTree(int32_t page_size, PageGroupOwner& owner, EvictionClock& clock)
    : page_size_(page_size), owner_(owner), clock_(clock), root_(std::make_unique<Node>(page_size)) {
  CHECK(page_size > 0);
}

PrefixTree::~PrefixTree() {
  for_each_node([&](const Node& node) {
    for (const PageGroup group : node.groups) owner_.release(group);
  });
}

void PrefixTree::for_each_node(FunctionRef<void(const Node&)> visit) const {
  std::vector<const Node*> rest{root_.get()};
  while (!rest.empty()) {
    const Node& node = *rest.back();
    rest.pop_back();
    visit(node);
    for (const auto& child : node.children) rest.push_back(child.get());
  }
}

void PrefixTree::for_each_element(FunctionRef<void(Element)> visit) const {
  for_each_node([&](const Node& node) { std::ranges::for_each(node.elements, visit); });
}

PrefixTree::Pin::~Pin() {
  if (node_ == nullptr) return;
  --node_->n_pins;
  tree_->list(*node_);
}

std::span<const Element> PrefixTree::page_of(const Node& node, size_t page) const {
  const size_t begin = page * static_cast<size_t>(page_size_), n = node.elements.size() - begin;
  return std::span(node.elements).subspan(begin, std::min(n, static_cast<size_t>(page_size_)));
}

// Walks down, and splits a node whose end does not match, so that the path ends with a whole node.
PrefixTree::Found PrefixTree::find(std::span<const Element> key) {
  Found found{.node = root_.get()};
  const auto page = static_cast<size_t>(page_size_);
  while (true) {
    const std::span<const Element> rest = key.subspan(static_cast<size_t>(found.n_elements));
    if (rest.empty()) return found;
    const Node::Children& children = found.node->children;
    const auto at = children.find(rest.first(std::min(rest.size(), page)));
    if (at == children.end() || (*at)->elements.size() < page) break;
    Node* child = at->get();
    const auto n_same = static_cast<size_t>(common(child->elements, rest));
    const bool whole = n_same == child->elements.size();
    if (!whole) child = &split(*child, n_same / page);
    found = {.node = child, .n_elements = found.n_elements + std::ssize(child->elements)};
    if (!whole) break;
  }
  find_end(key.subspan(static_cast<size_t>(found.n_elements)), found);
  return found;
}

// The page in which the match ends: tries children with a shorter and shorter common beginning, until one can grow.
void PrefixTree::find_end(std::span<const Element> rest, Found& found) const {
  const Node::Children& children = found.node->children;
  auto above = children.lower_bound(rest), below = above;
  while (true) {
    const int64_t n_above = above != children.end() ? common(page_of(**above, 0), rest) : 0;
    const int64_t n_below = below != children.begin() ? common(page_of(**std::prev(below), 0), rest) : 0;
    const int64_t n = std::max(n_above, n_below);
    found.n_longest = std::max(found.n_longest, n);
    if (n == 0) return;
    Node* const child = (n == n_above ? *above++ : *--below).get();
    if (!owner_.can_grow(child->groups[0])) continue;
    found.next = child;
    found.n_common = n;
    return;
  }
}

// The node with the last matching element, split after its page: the pages after that were not requested.
PrefixTree::Node& PrefixTree::deepest(const Found& found) {
  if (found.next == nullptr) return *found.node;
  return found.next->groups.size() > 1 ? split(*found.next, 1) : *found.next;
}

PrefixTree::Match PrefixTree::match(std::span<const Element> key) {
  const Found found = find(key);
  Match match = match_of(found);
  touch(deepest(found), root_.get());
  return match;
}

PrefixTree::Match PrefixTree::peek(std::span<const Element> key) { return match_of(find(key)); }

PrefixTree::Match PrefixTree::match_of(const Found& found) const {
  Match match{
      .n_elements = found.n_elements + found.n_common, .groups = {}, .n_common = found.n_elements + found.n_longest};
  std::vector<const Node*> way;
  for (const Node* node = found.node; node != nullptr; node = node->parent) way.push_back(node);
  std::ranges::reverse(way);
  for (const Node* node : way) match.groups.insert(match.groups.end(), node->groups.begin(), node->groups.end());
  if (found.next != nullptr) match.groups.push_back(found.next->groups[0]);
  return match;
}

int64_t PrefixTree::n_common(std::span<const Element> key) {
  const Found found = find(key);
  return found.n_elements + found.n_common;
}

PrefixTree::Pin PrefixTree::pin(std::span<const Element> key) {
  Node& node = deepest(find(key));
  if (&node == root_.get()) return {};
  unlist(node);
  ++node.n_pins;
  return {this, &node};
}

int64_t PrefixTree::insert(std::span<const Element> key, std::span<const PageGroup> groups, double cost, bool asks) {
  const auto page = static_cast<size_t>(page_size_);
  CHECK(groups.size() == (key.size() + page - 1) / page);
  Found found = find(key);
  const std::span<const Element> rest = key.subspan(static_cast<size_t>(found.n_elements));
  if (found.n_common == std::ssize(rest)) {
    if (asks) touch(deepest(found), root_.get());
    return 0;
  }
  const size_t n_there = static_cast<size_t>(found.n_elements) / page;
  // A partly filled page is replaced by the one that continues it.
  if (Node* shorter = found.next; shorter != nullptr && std::ssize(shorter->elements) == found.n_common &&
                                  shorter->elements.size() < page && shorter->n_pins == 0 &&
                                  owner_.can_grow(groups[n_there])) {
    unlist(*shorter);
    remove(*shorter);
  }
  Node& added = add_child(*found.node, rest, groups.subspan(n_there), cost);
  if (const size_t whole = rest.size() / page; whole > 0 && rest.size() % page != 0) split(added, whole);
  touch(added, asks ? root_.get() : found.node);
  return std::ssize(groups) - static_cast<int64_t>(n_there);
}

PrefixTree::Node& PrefixTree::add_child(Node& parent, std::span<const Element> elements,
                                        std::span<const PageGroup> groups, double cost) {
  unlist(parent);
  auto child = std::make_unique<Node>(page_size_);
  Node& added = *child;
  added.parent = &parent;
  added.cost = cost;
  added.elements.assign(elements.begin(), elements.end());
  added.groups.assign(groups.begin(), groups.end());
  for (const PageGroup group : groups) owner_.retain(group);
  n_pages_ += std::ssize(groups);
  parent.children.insert(std::move(child));
  list(added);
  return added;
}

// Moves the first n_pages of the node to a new parent, which is returned: pins stay with the deepest node.
PrefixTree::Node& PrefixTree::split(Node& node, size_t n_pages) {
  CHECK(0 < n_pages && n_pages < node.groups.size());
  const auto cut = static_cast<int64_t>(n_pages) * page_size_;
  Node& parent = *node.parent;
  auto lower = parent.children.extract(parent.children.find(page_of(node, 0)));
  auto upper = std::make_unique<Node>(page_size_);
  Node& made = *upper;
  made.parent = &parent;
  made.cost = node.cost;
  made.n_uses = node.n_uses;
  made.priority = node.priority;
  made.elements.assign(node.elements.begin(), node.elements.begin() + cut);
  made.groups.assign(node.groups.begin(), node.groups.begin() + static_cast<int64_t>(n_pages));
  node.elements.erase(node.elements.begin(), node.elements.begin() + cut);
  node.groups.erase(node.groups.begin(), node.groups.begin() + static_cast<int64_t>(n_pages));
  node.parent = &made;
  made.children.insert(std::move(lower));
  parent.children.insert(std::move(upper));
  return made;
}

void PrefixTree::drop_pages(Node& node, size_t n_pages) {
  for (size_t i = 0; i < n_pages; ++i) {
    owner_.release(node.groups.back());
    node.groups.pop_back();
  }
  node.elements.resize(std::min(node.elements.size(), node.groups.size() * static_cast<size_t>(page_size_)));
  n_pages_ -= static_cast<int64_t>(n_pages);
}

void PrefixTree::remove(Node& node) {
  if (path_.leaf == &node) path_.leaf = nullptr;
  Node& parent = *node.parent;
  const auto at = parent.children.find(page_of(node, 0));
  drop_pages(node, node.groups.size());
  parent.children.erase(at);
  list(parent);
}

double PrefixTree::least_priority() const {
  return leaves_.empty() ? std::numeric_limits<double>::infinity() : leaves_.begin()->first.first;
}

int64_t PrefixTree::evict(int64_t n_pages) {
  int64_t n = 0;
  while (n < n_pages && !leaves_.empty()) {
    Node& node = *leaves_.begin()->second;
    clock_.went(node.priority);
    const auto n_drop = std::min(static_cast<size_t>(n_pages - n), node.groups.size());
    if (listener_) announce(node, n_drop);
    n += static_cast<int64_t>(n_drop);
    if (n_drop < node.groups.size()) {
      drop_pages(node, n_drop);
    } else {
      unlist(node);
      remove(node);
    }
  }
  return n;
}

// Tells the listener that the last n_drop pages of the leaf are about to be evicted.
void PrefixTree::announce(Node& leaf, size_t n_drop) {
  if (path_.leaf != &leaf) {
    std::vector<const Node*> way;
    for (const Node* node = &leaf; node != nullptr; node = node->parent) way.push_back(node);
    path_ = {.leaf = &leaf, .key = {}, .groups = {}};
    std::ranges::reverse(way);
    for (const Node* node : way) {
      path_.key.insert(path_.key.end(), node->elements.begin(), node->elements.end());
      path_.groups.insert(path_.groups.end(), node->groups.begin(), node->groups.end());
    }
  }
  const size_t n_left = path_.groups.size() - n_drop;
  listener_(path_.key, path_.groups, static_cast<int64_t>(n_left));
  path_.groups.resize(n_left);
  path_.key.resize(std::min(path_.key.size(), n_left * static_cast<size_t>(page_size_)));
}

// Touches the nodes from the deepest up to `until`, which is excluded. Deepest first, so that of equally new nodes the
// deeper one is evicted first.
void PrefixTree::touch(Node& deepest, const Node* until) {
  for (Node* node = &deepest; node != until; node = node->parent) {
    const bool listed = node->listed >= 0;
    if (listed) unlist(*node);
    node->n_uses += 1;
    node->priority = clock_.priority(node->n_uses, node->cost);
    if (listed) list(*node);
  }
}

void PrefixTree::list(Node& node) {
  if (&node == root_.get() || node.n_pins > 0 || !node.children.empty() || node.listed >= 0) return;
  node.listed = n_listed_++;
  leaves_.emplace(std::pair(node.priority, node.listed), &node);
}

void PrefixTree::unlist(Node& node) {
  if (node.listed < 0) return;
  leaves_.erase({node.priority, node.listed});
  node.listed = -1;
}

}  // namespace vlcache
