// What a hostile node says of its cluster: a reply built from the bytes, and the bytes as text. A table that is
// accepted is within its limits.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/fuzz_target.h"
#include "store/redis/slots.h"

namespace vlcache {
namespace {

// A tree of replies: a byte for the type and the size of each, then its contents.
class ReplyBuilder {
 public:
  explicit ReplyBuilder(std::string_view bytes) : rest_(bytes) {}

  RedisReply build(int depth) {
    RedisReply reply;
    const auto head = static_cast<uint8_t>(take(1).empty() ? 0 : last_.front());
    const size_t n = head >> 3;
    reply.type = static_cast<RedisReply::Type>(head % 6);
    if (reply.is(RedisReply::Type::kInteger)) {
      for (const char c : take(n % 9))
        reply.integer = static_cast<int64_t>(static_cast<uint64_t>(reply.integer) << 8 | static_cast<uint8_t>(c));
    } else if (!reply.is(RedisReply::Type::kArray)) {
      reply.text = take(n);
    }
    for (size_t i = 0; reply.is(RedisReply::Type::kArray) && i < n && depth < 4 && !rest_.empty(); ++i) {
      reply.elements.push_back(build(depth + 1));
    }
    return reply;
  }

 private:
  std::string_view take(size_t n) {
    last_ = rest_.substr(0, n);
    rest_.remove_prefix(last_.size());
    return last_;
  }
  std::string_view rest_, last_;
};

void check(bool right) {
  if (!right) std::abort();
}
void check(const RedisNode& node) { check(!node.host.empty() && node.port > 0 && node.port < 65536); }

}  // namespace
}  // namespace vlcache

FUZZ_TARGET(redis_slots) {
  using namespace vlcache;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const RedisNode from{"seed", 1};
  if (const auto table = parse_slot_table(ReplyBuilder(text).build(0), from)) {
    for (const RedisNode& node : table->nodes) check(node);
    for (const int16_t owner : table->owner) check(owner >= -1 && owner < static_cast<int>(table->nodes.size()));
  }
  for (const RedisNode& node : parse_cluster_nodes(text, from)) check(node);
  if (const auto redirect = parse_redirect(text, from)) {
    check(redirect->node);
    check(redirect->slot >= 0 && redirect->slot < kRedisSlots);
  }
  check(redis_slot(text) >= 0 && redis_slot(text) < kRedisSlots);
  return 0;
}
