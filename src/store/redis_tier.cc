#include "store/redis_tier.h"

#include <set>

#include "base/error.h"
#include "store/redis_keys.h"
#include "store/redis_reader.h"
#include "store/redis_writer.h"

namespace vlcache {
namespace {

using Type = RedisReply::Type;

// A record's values are removed in groups of this size until a group removes none.
constexpr int64_t kErasedAtOnce = 64;
// A malicious server never ends a list: after this many records, or replies, the listing ends.
constexpr size_t kMaxListed = 1 << 20;
constexpr int64_t kMaxScans = 1 << 20;
constexpr size_t kMaxScanBytes = 1 << 20;

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

Miss unexpected(const RedisConnection& connection, const RedisReply& reply) {
  const std::string text = connection.text_of(reply);
  return {text.starts_with("WRONGTYPE") ? MissReason::kMalformed : MissReason::kIo, text};
}

}  // namespace

class RedisTier::Reader final : public RecordReader {
 public:
  Reader(RedisTier& tier, RecordHeader header)
      : tier_(tier), header_(std::move(header)), sections_(tier.pool_, tier.seal_, header_, kPieceBytes) {}

  const RecordHeader& header() const override { return header_; }
  void expect(std::span<const int32_t> sections) override { sections_.expect(sections); }

  std::optional<Miss> read(int32_t section, std::span<std::byte> to, Deadline deadline) override {
    const auto start = Clock::now();
    auto why = check_target(header_, section, to);
    if (!why) {
      why = sections_.read(section, to, deadline);
      // A header without its pieces would keep them from being written again.
      if (why && (is_corrupt(why->reason) || why->reason == MissReason::kAbsent)) drop();
    }
    if (why) why->detail = "section " + std::to_string(section) + (why->detail.empty() ? "" : ": " + why->detail);
    tier_.counter_.read(start, static_cast<int64_t>(to.size()), why);
    return why;
  }

 private:
  void drop() {
    if (!dropped_) tier_.drop(tier_.id_of(header_.key));
    dropped_ = true;
  }

  RedisTier& tier_;
  const RecordHeader header_;
  RedisSectionReader sections_;
  bool dropped_ = false;
};

RedisTier::RedisTier(const RedisTierOptions& options)
    : ttl_ms_(options.ttl_ms), seal_(options.salt, options.id_bits), pool_(options.address, options.times) {}

std::vector<bool> RedisTier::exists(std::span<const RecordKey> keys, Deadline deadline) {
  const auto start = Clock::now();
  std::vector<bool> there(keys.size(), false);
  Miss why;
  const RedisPool::Lease connection = pool_.take(deadline, why);
  if (connection) {
    for (const RecordKey& key : keys) connection->request({"EXISTS", header_name(id_of(key))});
  }
  for (size_t i = 0; i < keys.size(); ++i) {
    RedisReply reply;
    if (connection && connection->receive(reply, deadline)) {
      there[i] = reply.is(Type::kInteger) && reply.integer == 1;
      if (reply.is(Type::kInteger)) continue;
      why = unexpected(*connection, reply);
    } else if (connection) {
      why = *connection->broken();
    }
    counter_.opened(start, why);  // the caller will not open this record: count the miss now
  }
  return there;
}

std::optional<Miss> RedisTier::take_header(const RedisConnection& connection, const RedisReply& reply,
                                           const RecordKey* expected, RecordHeader& header) const {
  if (reply.is(Type::kNil)) return Miss{MissReason::kAbsent, ""};
  if (!reply.is(Type::kString)) return unexpected(connection, reply);
  const auto bytes = bytes_of(reply.text);
  if (auto why = parse_header(seal_, bytes, kUnknownBytes, expected, header)) return why;
  if (header.bytes() != std::ssize(bytes)) return Miss{MissReason::kMalformed, "bytes after its header"};
  return check_age(header, ttl_ms_);
}

std::optional<Miss> RedisTier::read_header(const RecordKey& key, Deadline deadline, RecordHeader& header) {
  Miss why;
  const RedisPool::Lease connection = pool_.take(deadline, why);
  if (!connection) return why;
  connection->request({"GET", header_name(id_of(key))});
  RedisReply reply;
  if (!connection->receive(reply, deadline, kMaxHeaderBytes)) return connection->broken();
  return take_header(*connection, reply, &key, header);
}

OpenedRecord RedisTier::open(const RecordKey& key, Deadline deadline) {
  const auto start = Clock::now();
  RecordHeader header;
  auto why = read_header(key, deadline, header);
  if (why && is_corrupt(why->reason)) drop(id_of(key));
  counter_.opened(start, why);
  if (why) return {nullptr, std::move(*why)};
  return {std::make_unique<Reader>(*this, std::move(header)), {}};
}

PutResult RedisTier::put(const Record& record, Deadline deadline) {
  const auto start = Clock::now();
  CHECK(valid(record.key) && record.sections.size() <= kMaxSections);
  const PutResult result = store(record, deadline);
  counter_.put(start, record.bytes(), result);
  return result;
}

PutResult RedisTier::store(const Record& record, Deadline deadline) {
  Miss why;
  const RedisPool::Lease connection = pool_.take(deadline, why);
  const auto failed = [&](const Miss& miss) {
    return PutResult{miss.reason == MissReason::kLate ? PutOutcome::kLate : PutOutcome::kIo, miss.detail};
  };
  if (!connection) return failed(why);
  if (record.bytes() > kMaxRecordBytes) return {PutOutcome::kTooLarge, std::to_string(record.bytes()) + " bytes"};

  const RecordId id = id_of(record.key);
  const int64_t n_pieces = count_pieces(record.bytes(), kPieceBytes);
  std::vector<std::string> pieces{"EXISTS"};
  for (int64_t piece = 0; piece < n_pieces; ++piece) pieces.push_back(piece_name(id, piece));
  connection->request({"GET", header_name(id)});
  // A record without pieces has only a header, and EXISTS needs a name.
  connection->request(n_pieces == 0 ? std::vector<std::string_view>{"PING"}
                                    : std::vector<std::string_view>(pieces.begin(), pieces.end()));
  RedisReply first, n_there;
  if (!connection->receive(first, deadline, kMaxHeaderBytes) || !connection->receive(n_there, deadline)) {
    return failed(*connection->broken());
  }
  RecordHeader header;
  const auto no_header = take_header(*connection, first, &record.key, header);
  if (no_header && no_header->reason == MissReason::kIo) return failed(*no_header);
  // A server that evicts piece by piece may leave the header.
  if (!no_header && n_there.integer == n_pieces) return {PutOutcome::kPresent, ""};

  const PutResult result = RedisRecordWriter(*connection, id, kPieceBytes, deadline).write(seal_, record, ttl_ms_);
  if (!result.there()) drop(id);
  return result;
}

void RedisTier::drop(const RecordId& id) {
  if (erase(id)) counter_.removed();
}

bool RedisTier::erase(const RecordId& id) {
  Miss why;
  const RedisPool::Lease connection = pool_.take(kNoDeadline, why);
  return connection && erase(*connection, id);
}

bool RedisTier::erase(RedisConnection& connection, const RecordId& id) {
  RedisReply reply;
  connection.request({"UNLINK", header_name(id)});  // first: from now on the record is absent
  if (!connection.receive(reply, kNoDeadline)) return false;
  const bool was_there = reply.is(Type::kInteger) && reply.integer == 1;
  // The number of pieces is unknown without reading the header.
  for (int64_t piece = 0; piece * kPieceBytes < kMaxRecordBytes; piece += kErasedAtOnce) {
    std::vector<std::string> names{"UNLINK"};
    for (int64_t i = 0; i < kErasedAtOnce; ++i) names.push_back(piece_name(id, piece + i));
    connection.request(std::vector<std::string_view>(names.begin(), names.end()));
    if (!connection.receive(reply, kNoDeadline) || !reply.is(Type::kInteger) || reply.integer == 0) break;
  }
  return was_there;
}

std::vector<RecordId> RedisTier::find_ids(RedisConnection& connection) {
  std::set<RecordId> ids;  // a name may be listed more than once
  std::string cursor = "0";
  const std::string pattern = std::string(kRedisPrefix) + "*:h";
  for (int64_t i = 0; i < kMaxScans && ids.size() < kMaxListed; ++i) {
    connection.request({"SCAN", cursor, "MATCH", pattern, "COUNT", "1000"});
    RedisReply reply;
    if (!connection.receive(reply, kNoDeadline, kMaxScanBytes)) break;
    if (!reply.is(Type::kArray) || reply.elements.size() != 2) {
      counter_.opened(Clock::now(), unexpected(connection, reply));
      break;
    }
    for (const RedisReply& name : reply.elements[1].elements) {
      if (const auto id = id_of_header_name(name.text)) ids.insert(*id);
    }
    cursor = reply.elements[0].text;
    if (cursor == "0") break;
  }
  return {ids.begin(), ids.end()};
}

std::optional<Miss> RedisTier::list_one(RedisConnection& connection, const RecordId& id, ListedRecord& listed) {
  const std::string name = header_name(id);
  connection.request({"OBJECT", "IDLETIME", name});  // before our own read resets it
  connection.request({"GET", name});
  RedisReply idle, reply;
  if (!connection.receive(idle, kNoDeadline) || !connection.receive(reply, kNoDeadline, kMaxHeaderBytes)) {
    return connection.broken();
  }
  RecordHeader header;
  listed.id = id;
  listed.bytes = static_cast<int64_t>(reply.n_bytes);
  listed.problem = take_header(connection, reply, nullptr, header);
  if (!listed.problem) listed.bytes = header.section_offset(header.sections.size());
  if (!listed.problem && id_of(header.key) != id) {
    listed.problem = Miss{MissReason::kOtherKey, "its name is not its key's"};
  }
  listed.key = std::move(header.key);
  listed.created_ms = header.created_ms;
  // Servers that evict by frequency do not track it.
  listed.used_ms = idle.is(Type::kInteger) ? now_ms() - idle.integer * 1000 : header.created_ms;
  return std::nullopt;
}

std::vector<ListedRecord> RedisTier::list() {
  const auto start = Clock::now();
  std::vector<ListedRecord> records;
  Miss why;
  const RedisPool::Lease connection = pool_.take(kNoDeadline, why);
  if (!connection) {
    counter_.opened(start, why);
    return records;
  }
  for (const RecordId& id : find_ids(*connection)) {
    ListedRecord listed;
    if (list_one(*connection, id, listed)) break;
    if (listed.problem && listed.problem->reason == MissReason::kAbsent) continue;  // removed during the listing
    records.push_back(std::move(listed));
  }
  if (connection->broken()) counter_.opened(start, connection->broken());
  return records;
}

}  // namespace vlcache
