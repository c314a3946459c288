#include "server/protocol/response_store.h"

namespace vlcache {

using OrderedJson = nlohmann::ordered_json;

void ResponseStore::add(const std::string& owner, const std::string& id, const OrderedJson& items) {
  std::string text = items.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  const auto size = static_cast<int64_t>(text.size());
  if (size > max_bytes_) return;
  const std::lock_guard lock(mutex_);
  while (bytes_ + size > max_bytes_) {
    bytes_ -= static_cast<int64_t>(responses_.front().items.size());
    by_name_.erase(responses_.front().name);
    responses_.pop_front();
  }
  responses_.push_back({{owner, id}, std::move(text)});
  by_name_[{owner, id}] = std::prev(responses_.end());
  bytes_ += size;
}

std::optional<OrderedJson> ResponseStore::find(const std::string& owner, const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto found = by_name_.find({owner, id});
  if (found == by_name_.end()) return std::nullopt;
  return OrderedJson::parse(found->second->items);
}

OrderedJson ResponseStore::find_item(const std::string& owner, const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const std::string quoted = OrderedJson(id).dump();
  for (auto response = responses_.rbegin(); response != responses_.rend(); ++response) {
    if (response->name.first != owner || response->items.find(quoted) == std::string::npos) continue;
    for (const OrderedJson& item : OrderedJson::parse(response->items)) {
      if (item.is_object() && item.value("id", OrderedJson()) == id) return item;
    }
  }
  return nullptr;
}

void ResponseStore::clear() {
  const std::lock_guard lock(mutex_);
  responses_.clear();
  by_name_.clear();
  bytes_ = 0;
}

}  // namespace vlcache
