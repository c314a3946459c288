#include "base/ordered_json.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/json.h"
#include "base/json_fault.h"
#include "base/lone_surrogates.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;
using Members = OrderedJson::object_t;  // a vector of pairs

thread_local int64_t t_texts = 0;

constexpr size_t kFew = 16;  // below, comparing each with each is faster than sorting

bool few_different(const OrderedMembers& members) {
  if (members.size() > kFew) return false;
  for (size_t i = 1; i < members.size(); ++i) {
    for (size_t k = 0; k < i; ++k) {
      if (members[i].first == members[k].first) return false;
    }
  }
  return true;
}

// Removes all but the first of equal names, which gets the value of the last. Sorted, not hashed: hashes that collide
// can be made.
void remove_repeated(OrderedMembers& members) {
  if (few_different(members)) return;
  std::vector<uint32_t> order(members.size());
  std::iota(order.begin(), order.end(), 0);
  const auto name = [&](uint32_t i) -> const std::string& { return members[i].first; };
  std::ranges::sort(order, [&](uint32_t a, uint32_t b) {
    const int compared = name(a).compare(name(b));
    return compared != 0 ? compared < 0 : a < b;
  });
  std::vector<bool> repeated(members.size());
  bool any = false;
  for (size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    for (end = begin + 1; end < order.size() && name(order[end]) == name(order[begin]);) repeated[order[end++]] = true;
    if (end - begin == 1) continue;
    members[order[begin]].second = std::move(members[order[end - 1]].second);
    any = true;
  }
  if (!any) return;
  size_t i = 0;
  std::erase_if(members, [&](const auto&) { return repeated[i++]; });
}

// Builds the value as the parser reads it. Members are collected beside their object, which is made when it ends:
// its own vector copies them whenever it grows, because their names are constant.
class Builder {
 public:
  using number_integer_t = OrderedJson::number_integer_t;
  using number_unsigned_t = OrderedJson::number_unsigned_t;
  using number_float_t = OrderedJson::number_float_t;
  using string_t = OrderedJson::string_t;
  using binary_t = OrderedJson::binary_t;

  Builder(std::string_view where, const OrderedJsonOptions& options) : where_(where), options_(options) {}

  OrderedJson take() { return std::move(root_); }

  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(number_integer_t value) { return add(value); }
  bool number_unsigned(number_unsigned_t value) { return add(value); }
  bool number_float(number_float_t value, const string_t& text) {
    if (options_.big_integers && text.find_first_of(".eE") == text.npos) {
      return add(OrderedJson::binary({text.begin(), text.end()}, *options_.big_integers));
    }
    return add(value);
  }
  bool string(string_t& value) { return add(std::move(value)); }
  bool binary(binary_t& value) { return add(OrderedJson(std::move(value))); }
  bool start_object(size_t) { return open(/*is_object=*/true); }
  bool start_array(size_t) { return open(/*is_object=*/false); }
  bool key(string_t& name) {
    open_.back().members.emplace_back(std::move(name), nullptr);
    return true;
  }
  bool end_object() {
    OrderedMembers members = std::move(open_.back().members);
    open_.pop_back();
    put(ordered_object(std::move(members)));
    return true;
  }
  bool end_array() {
    OrderedJson::array_t items = std::move(open_.back().items);
    open_.pop_back();
    put(std::move(items));
    return true;
  }
  template <typename Exception>  // its own type, which the caller catches
  bool parse_error(size_t, const std::string&, const Exception& error) {
    throw error;
  }

 private:
  struct Open {
    bool is_object;
    OrderedMembers members;
    OrderedJson::array_t items;
  };

  void count() {
    if (++n_values_ <= options_.max_values) return;
    throw Error(ErrorCode::kMemory, std::string(where_) + ": more than " + std::to_string(options_.max_values) +
                                        " values (members and items); send fewer");
  }
  bool open(bool is_object) {
    count();
    open_.push_back({is_object, {}, {}});
    return true;
  }
  bool add(OrderedJson value) {
    count();
    put(std::move(value));
    return true;
  }
  void put(OrderedJson value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back().is_object) {
      open_.back().members.back().second = std::move(value);
    } else {
      open_.back().items.push_back(std::move(value));
    }
  }

  std::string_view where_;
  const OrderedJsonOptions& options_;
  OrderedJson root_;
  std::vector<Open> open_;  // the innermost is the last
  int64_t n_values_ = 0;
};

}  // namespace

OrderedJson ordered_object(OrderedMembers members) {
  remove_repeated(members);
  OrderedJson object = OrderedJson::object();
  auto& to = object.get_ref<Members&>();
  to.reserve(members.size());
  for (auto& [name, value] : members) to.emplace_back(std::move(name), std::move(value));
  return object;
}

void append_member(OrderedJson& object, std::string name, OrderedJson value) {
  if (object.is_null()) object = OrderedJson::object();
  object.get_ref<Members&>().emplace_back(std::move(name), std::move(value));
}

void update_members(OrderedJson& object, const OrderedJson& from) {
  OrderedMembers members;
  members.reserve(object.size() + from.size());
  for (auto& [name, value] : object.items()) members.emplace_back(name, std::move(value));
  for (const auto& [name, value] : from.items()) members.emplace_back(name, value);
  object = ordered_object(std::move(members));
}

MemberIndex::MemberIndex(const OrderedJson& object) {
  if (!object.is_object()) return;
  members_.reserve(object.size());
  for (const auto& [name, value] : object.get_ref<const Members&>()) members_.emplace_back(name, &value);
  std::ranges::sort(members_, {}, [](const auto& member) { return member.first; });
}

const OrderedJson* MemberIndex::find(std::string_view name) const {
  const auto at = std::ranges::lower_bound(members_, name, {}, [](const auto& member) { return member.first; });
  return at == members_.end() || at->first != name ? nullptr : at->second;
}

int64_t n_json_texts() { return t_texts; }

OrderedJson read_ordered_json(std::string_view text, std::string_view where, const OrderedJsonOptions& options) {
  ++t_texts;
  check_json_depth(text, where);
  std::string changed;
  const std::string_view whole = with_whole_pairs(text, changed);
  try {
    Builder builder(where, options);
    OrderedJson::sax_parse(whole.begin(), whole.end(), &builder);
    return builder.take();
  } catch (const OrderedJson::parse_error& e) {
    throw_json_fault(text, where, e.byte, e.what());
  } catch (const OrderedJson::exception& e) {
    throw_json_fault(text, where, std::nullopt, e.what());
  }
}

}  // namespace vlcache
