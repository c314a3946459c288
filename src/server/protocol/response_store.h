// ResponseStore keeps the items of responses, so that later requests can go on with them by id.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

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
  // The item of that id in any response of the owner; null: there is none.
  nlohmann::ordered_json find_item(const std::string& owner, const std::string& id) const;
  void clear();

 private:
  struct Response {
    std::pair<std::string, std::string> name;  // owner, id
    std::string items;                         // JSON
  };

  int64_t max_bytes_;
  mutable std::mutex mutex_;  // guards all below
  int64_t bytes_ = 0;
  std::list<Response> responses_;  // oldest first
  std::map<std::pair<std::string, std::string>, std::list<Response>::iterator> by_name_;
};

}  // namespace vlcache
