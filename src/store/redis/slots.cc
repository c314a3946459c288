#include "store/redis/slots.h"

#include <algorithm>
#include <charconv>
#include <string>

namespace vlcache {
namespace {

using Type = RedisReply::Type;

// Redis is made for about a thousand nodes.
constexpr size_t kMaxNodes = 2048;
constexpr size_t kMaxHostBytes = 255;

constexpr std::array<uint16_t, 256> crc_table() {
  std::array<uint16_t, 256> table{};
  for (int i = 0; i < 256; ++i) {
    auto crc = static_cast<uint16_t>(i << 8);
    for (int bit = 0; bit < 8; ++bit) crc = static_cast<uint16_t>(crc & 0x8000 ? crc << 1 ^ 0x1021 : crc << 1);
    table[static_cast<size_t>(i)] = crc;
  }
  return table;
}

uint16_t crc16(std::string_view text) {
  static constexpr std::array<uint16_t, 256> kTable = crc_table();
  uint16_t crc = 0;
  for (const char c : text) crc = static_cast<uint16_t>(crc << 8 ^ kTable[(crc >> 8 ^ static_cast<uint8_t>(c)) & 0xff]);
  return crc;
}

std::optional<int> number_in(std::string_view text, int min, int max) {
  int n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || end != text.data() + text.size() || n < min || n > max) return std::nullopt;
  return n;
}

std::optional<RedisNode> make_node(std::string_view host, std::optional<int> port, const RedisNode& from) {
  if (host.empty() || host == "?") host = from.host;  // "?": a node that shall announce a name and has none
  const bool printable = std::ranges::all_of(host, [](char c) { return c > ' ' && c <= '~'; });
  if (!port || host.empty() || host.size() > kMaxHostBytes || !printable) return std::nullopt;
  return RedisNode{std::string(host), *port};
}

// host:port; the port follows the last colon, because an IPv6 address stands without brackets.
std::optional<RedisNode> split_node(std::string_view text, const RedisNode& from) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  return make_node(text.substr(0, colon), number_in(text.substr(colon + 1), 1, 65535), from);
}

// The text until the separator, which is removed from `rest` with it.
std::string_view next_part(std::string_view& rest, char separator) {
  const size_t end = std::min(rest.find(separator), rest.size());
  const std::string_view part = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return part;
}

std::optional<RedisNode> node_in(const RedisReply& reply, const RedisNode& from) {
  if (!reply.is(Type::kArray) || reply.elements.size() < 2) return std::nullopt;
  const RedisReply& host = reply.elements[0];
  const RedisReply& port = reply.elements[1];
  if (!(host.is(Type::kString) || host.is(Type::kNil)) || !port.is(Type::kInteger)) return std::nullopt;
  if (port.integer < 1 || port.integer > 65535) return std::nullopt;
  return make_node(host.text, static_cast<int>(port.integer), from);
}

// [first, last, [host, port, ...] of the master, the same of its replicas...]
bool take_range(const RedisReply& range, const RedisNode& from, RedisSlotTable& table) {
  const auto& parts = range.elements;
  if (!range.is(Type::kArray) || parts.size() < 3) return false;
  if (!parts[0].is(Type::kInteger) || !parts[1].is(Type::kInteger)) return false;
  const int64_t first = parts[0].integer, last = parts[1].integer;
  if (first < 0 || first > last || last >= kRedisSlots) return false;
  for (size_t i = 2; i < parts.size(); ++i) {
    const auto node = node_in(parts[i], from);
    const int16_t index = node ? table.index_of(*node) : int16_t{-1};
    if (index < 0) return false;
    if (i == 2) std::fill(table.owner.begin() + first, table.owner.begin() + last + 1, index);
  }
  return true;
}

}  // namespace

int redis_slot(std::string_view key) {
  if (const size_t open = key.find('{'); open != std::string_view::npos) {
    const size_t close = key.find('}', open + 1);
    if (close != std::string_view::npos && close > open + 1) key = key.substr(open + 1, close - open - 1);
  }
  return crc16(key) % kRedisSlots;
}

int16_t RedisSlotTable::index_of(const RedisNode& node) {
  const auto found = std::ranges::find(nodes, node);
  if (found == nodes.end() && nodes.size() == kMaxNodes) return -1;
  const auto index = static_cast<int16_t>(found - nodes.begin());
  if (found == nodes.end()) nodes.push_back(node);
  return index;
}

bool RedisSlotTable::announces(const RedisNode& node) const { return std::ranges::find(nodes, node) != nodes.end(); }

int RedisSlotTable::n_without_node() const { return static_cast<int>(std::ranges::count(owner, -1)); }

std::optional<RedisSlotTable> parse_slot_table(const RedisReply& reply, const RedisNode& from) {
  if (!reply.is(Type::kArray)) return std::nullopt;
  RedisSlotTable table;
  for (const RedisReply& range : reply.elements) {
    if (!take_range(range, from, table)) return std::nullopt;
  }
  return table;
}

std::vector<RedisNode> parse_cluster_nodes(std::string_view text, const RedisNode& from) {
  std::vector<RedisNode> nodes;
  const auto add = [&](const std::optional<RedisNode>& node) {
    if (node && nodes.size() < kMaxNodes && std::ranges::find(nodes, *node) == nodes.end()) nodes.push_back(*node);
  };
  while (!text.empty()) {
    std::string_view line = next_part(text, '\n');
    next_part(line, ' ');                                 // its id
    std::string_view address = next_part(line, ' ');      // host:port@bus port,host name,...
    const std::string_view flags = next_part(line, ' ');  // master,fail and so on
    if (flags.find("noaddr") != std::string_view::npos || flags.find("handshake") != std::string_view::npos) continue;
    std::string_view numbers = next_part(address, ',');
    const auto node = split_node(next_part(numbers, '@'), from);
    add(node);
    const std::string_view name = next_part(address, ',');
    if (node && !name.empty() && name.find('=') == std::string_view::npos) add(make_node(name, node->port, from));
  }
  return nodes;
}

std::optional<RedisRedirect> parse_redirect(std::string_view error, const RedisNode& from) {
  const std::string_view kind = next_part(error, ' ');
  if (kind != "MOVED" && kind != "ASK") return std::nullopt;
  const auto slot = number_in(next_part(error, ' '), 0, kRedisSlots - 1);
  const auto node = split_node(error, from);
  if (!slot || !node) return std::nullopt;
  return RedisRedirect{kind == "ASK", *slot, *node};
}

}  // namespace vlcache
