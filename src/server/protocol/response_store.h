// ResponseStore keeps the items of responses, so that later requests can go on with them by id.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace vlcache {

// Any thread.
class ResponseStore {
 public:
  explicit ResponseStore(int64_t max_bytes) : max_bytes_(max_bytes) {}

  bool enabled() const { return max_bytes_ > 0; }
  // Keeps a response's items (its input and output, those of the responses before it included) for its owner; drops the
  // oldest responses that leave no room. One larger than the whole store is not kept.
  void add(const std::string& owner, const std::string& id, const nlohmann::ordered_json& items);
  // nullopt: the owner has no such response, or no longer.
  std::optional<nlohmann::ordered_json> find(const std::string& owner, const std::string& id) const;
  // The JSON of the item of that id in any response of the owner, the last that has one; "": there is none.
  std::string find_item(const std::string& owner, const std::string& id) const;
  void clear();

 private:
  using Name = std::pair<std::string, std::string>;  // owner, id
  struct Item {
    std::string id, json;
  };
  struct Response {
    Name name;
    int64_t bytes = 0;
    std::vector<Item> items;
  };
  void drop_oldest();

  int64_t max_bytes_;
  mutable std::mutex mutex_;  // guards all below
  int64_t bytes_ = 0;
  std::list<Response> responses_;  // oldest first
  std::map<Name, std::list<Response>::iterator> by_name_;
  std::map<Name, std::deque<const Item*>> by_item_;  // of each id, oldest first
};

}  // namespace vlcache
