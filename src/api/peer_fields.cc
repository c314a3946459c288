#include "api/peer_fields.h"

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "api/json_fields.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

// A row with its JSON parsed once.
struct CheckedField {
  const PeerField* field;
  std::vector<OrderedJson> neutral;
};

// The rows of an endpoint by name, and the objects that have rows of their own.
struct EndpointFields {
  explicit EndpointFields(PeerEndpoint endpoint) {
    for (const PeerField& field : peer_fields()) {
      const std::string name = field.name;
      if (std::string_view(field.endpoints).find(static_cast<char>(endpoint)) == std::string_view::npos) continue;
      CheckedField& row = by_name[name];
      row.field = &field;
      for (const OrderedJson& value : OrderedJson::parse(field.neutral)) row.neutral.push_back(value);
      for (size_t dot = name.find('.'); dot != name.npos; dot = name.find('.', dot + 1))
        inner.insert(name.substr(0, dot));
    }
  }
  std::map<std::string, CheckedField, std::less<>> by_name;
  std::set<std::string, std::less<>> inner;
};

const EndpointFields& fields_of(PeerEndpoint endpoint) {
  static const EndpointFields kChat(PeerEndpoint::kChat), kCompletions(PeerEndpoint::kCompletions),
      kMessages(PeerEndpoint::kMessages), kResponses(PeerEndpoint::kResponses);
  switch (endpoint) {
    case PeerEndpoint::kChat:
      return kChat;
    case PeerEndpoint::kCompletions:
      return kCompletions;
    case PeerEndpoint::kMessages:
      return kMessages;
    case PeerEndpoint::kResponses:
      break;
  }
  return kResponses;
}

bool asks_for_nothing(const CheckedField& row, const OrderedJson& value, const OrderedJson& object) {
  if (value.is_null()) return true;
  for (const OrderedJson& neutral : row.neutral) {
    if (value == neutral) return true;
  }
  if (*row.field->equals != '\0') {
    const OrderedJson* other = find_field(object, row.field->equals);
    if (other != nullptr && *other == value) return true;
  }
  if (row.field->strict) return false;
  return value == false || value == 0 || value == "" || (value.is_structured() && value.empty());
}

// `at`: the object as the table names it, with a dot; `shown`: as errors do.
void check_members(const EndpointFields& fields, const OrderedJson& object, const std::string& at,
                   const std::string& shown) {
  for (const auto& [key, value] : object.items()) {
    const std::string name = at + key;
    auto row = fields.by_name.find(name);
    if (row == fields.by_name.end() && !at.empty()) row = fields.by_name.find(at + "*");
    if (row != fields.by_name.end() && row->second.field->use == PeerField::Use::kRefused &&
        !asks_for_nothing(row->second, value, object)) {
      const std::string_view says = row->second.field->says;
      bad_field(shown + key + ": " + std::string(says.empty() ? "not supported by this server" : says));
    }
    if (value.is_object() && fields.inner.contains(name)) {
      check_members(fields, value, name + ".", shown + key + ".");
    } else if (value.is_array() && fields.inner.contains(name + "[]")) {
      for (size_t i = 0; i < value.size(); ++i) {
        if (value[i].is_object()) check_members(fields, value[i], name + "[].", item_name(shown + key, i) + ".");
      }
    }
  }
}

}  // namespace

void check_peer_fields(const OrderedJson& body, PeerEndpoint endpoint) {
  check_members(fields_of(endpoint), body, "", "");
}

}  // namespace vlcache
