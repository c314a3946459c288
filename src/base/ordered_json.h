// JSON objects that keep the order of their members, in time n log n in their number. nlohmann::ordered_json finds a
// name by comparing it with all: a loop that looks up or inserts names of an object of any size needs these instead.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace vlcache {

using OrderedMembers = std::vector<std::pair<std::string, nlohmann::ordered_json>>;

// An object of these members. Of equal names, the value of the last stands at the place of the first, as where
// nlohmann's parser and operator[] make the object.
nlohmann::ordered_json ordered_object(OrderedMembers members);

// Adds a member that the object lacks.
void append_member(nlohmann::ordered_json& object, std::string name, nlohmann::ordered_json value);

// Sets the members of another object: members that `object` has keep their places, others follow.
void update_members(nlohmann::ordered_json& object, const nlohmann::ordered_json& from);

// Finds members of an object by name. The object must outlive it and keep its members.
class MemberIndex {
 public:
  // A value that is no object has no members.
  explicit MemberIndex(const nlohmann::ordered_json& object);
  // Null: there is none.
  const nlohmann::ordered_json* find(std::string_view name) const;

 private:
  std::vector<std::pair<std::string_view, const nlohmann::ordered_json*>> members_;  // by name
};

struct OrderedJsonOptions {
  int64_t max_values = INT64_MAX;  // members and items alike; with more, Error(kMemory)
  // Integers beyond 64 bits become binary values of this subtype that hold their digits; nullopt: floats.
  std::optional<uint8_t> big_integers = std::nullopt;
};

// As parse_ordered_json (json.h).
nlohmann::ordered_json read_ordered_json(std::string_view text, std::string_view where,
                                         const OrderedJsonOptions& options);
// How many texts this thread has read so: for tests.
int64_t n_json_texts();

}  // namespace vlcache
