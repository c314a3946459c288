#include "server/protocol/response_store.h"

#include <iterator>

#include "base/json.h"
#include "base/json_text.h"

namespace vlcache {

using OrderedJson = nlohmann::ordered_json;

void ResponseStore::add(const std::string& owner, const std::string& id, const OrderedJson& items) {
  Response response{.name = {owner, id}, .items = {}};
  for (const OrderedJson& item : items) {
    response.items.push_back({text_in(item, "id"), item.dump(-1, ' ', false, OrderedJson::error_handler_t::replace)});
    response.bytes += std::ssize(response.items.back().json);
  }
  if (response.bytes > max_bytes_) return;
  const std::lock_guard lock(mutex_);
  while (bytes_ + response.bytes > max_bytes_) drop_oldest();
  bytes_ += response.bytes;
  responses_.push_back(std::move(response));
  const auto last = std::prev(responses_.end());
  by_name_[last->name] = last;
  for (const Item& item : last->items) {
    if (!item.id.empty()) by_item_[{owner, item.id}].push_back(&item);
  }
}

void ResponseStore::drop_oldest() {
  const Response& oldest = responses_.front();
  for (const Item& item : oldest.items) {
    const auto known = by_item_.find({oldest.name.first, item.id});
    if (known == by_item_.end()) continue;
    known->second.pop_front();
    if (known->second.empty()) by_item_.erase(known);
  }
  bytes_ -= oldest.bytes;
  by_name_.erase(oldest.name);
  responses_.pop_front();
}

std::optional<OrderedJson> ResponseStore::find(const std::string& owner, const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto found = by_name_.find({owner, id});
  if (found == by_name_.end()) return std::nullopt;
  OrderedJson items = OrderedJson::array();
  for (const Item& item : found->second->items) items.push_back(parse_ordered_json(item.json, "a stored response"));
  return items;
}

std::string ResponseStore::find_item(const std::string& owner, const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto found = by_item_.find({owner, id});
  return found == by_item_.end() ? "" : found->second.back()->json;
}

void ResponseStore::clear() {
  const std::lock_guard lock(mutex_);
  responses_.clear();
  by_name_.clear();
  by_item_.clear();
  bytes_ = 0;
}

}  // namespace vlcache
