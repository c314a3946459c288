#include "store/redis/tier.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "store/redis/keys.h"
#include "store/redis/reader.h"
#include "store/redis/writer.h"

namespace vlcache {
namespace {

using Type = RedisReply::Type;

// A record's values are removed in groups of this size until a group removes none.
constexpr int64_t kErasedAtOnce = 64;
// A malicious server never ends a list: after this many records, or replies, the listing ends.
constexpr size_t kMaxListed = 1 << 20;
constexpr int64_t kMaxScans = 1 << 20;
constexpr size_t kMaxScanBytes = 1 << 20;
// A record stored at its first use lives so long, unless it is used again: with the bound of bytes an hour, this bounds
// what such records hold of a server that evicts by the time of use alone, or not at all.
constexpr int64_t kFirstUseMs = 60 * 60 * 1000;
// Of the server's memory, above which such records are not stored.
constexpr double kRoomyShare = 0.9;
constexpr size_t kMaxInfoBytes = 16 << 10;
constexpr std::string_view kFirstUseMark = "f";  // holds the time to live that the record has from its next use on
constexpr int64_t kLongestMs = int64_t{1} << 45;
constexpr std::string_view kProbeMs = "10000";

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

// A number of the reply to INFO: "maxmemory:1048576". nullopt: it is not there.
std::optional<int64_t> info_number(std::string_view info, std::string_view name) {
  const std::string line = "\n" + std::string(name) + ":";
  const size_t at = info.find(line);
  if (at == info.npos) return std::nullopt;
  const std::string_view value = info.substr(at + line.size());
  int64_t n = -1;
  std::from_chars(value.data(), value.data() + value.size(), n);
  return n >= 0 ? std::optional(n) : std::nullopt;
}

}  // namespace

class RedisTier::Reader final : public RecordReader {
 public:
  Reader(RedisTier& tier, RecordHeader header)
      : tier_(tier), header_(std::move(header)), sections_(tier.nodes_, tier.seal_, header_, kPieceBytes) {}

  const RecordHeader& header() const override { return header_; }
  void expect(std::span<const int32_t> sections) override { sections_.expect(sections); }

  std::optional<Miss> read(int32_t section, std::span<std::byte> to, Deadline deadline) override {
    const auto start = Clock::now();
    auto why = check_target(header_, section, to);
    if (!why) {
      why = sections_.read(section, to, deadline);
      // A header without its pieces would keep them from being written again.
      if (why && (is_corrupt(why->reason) || why->reason == MissReason::kAbsent)) drop(deadline);
    }
    if (why) why->detail = "section " + std::to_string(section) + (why->detail.empty() ? "" : ": " + why->detail);
    tier_.counter_.read(start, static_cast<int64_t>(to.size()), why);
    return why;
  }

 private:
  void drop(Deadline deadline) {
    if (!dropped_) tier_.drop(tier_.id_of(header_.key), deadline);
    dropped_ = true;
  }

  RedisTier& tier_;
  const RecordHeader header_;
  RedisSectionReader sections_;
  bool dropped_ = false;
};

RedisTier::RedisTier(const RedisTierOptions& options)
    : place_(options.address.shown()),
      ttl_ms_(options.ttl_ms),
      seal_(options.salt, options.id_bits),
      nodes_(options.address, options.times, options.tls, options.allowed) {}

Miss RedisTier::unexpected(const RedisReply& reply) const {
  const std::string text = text_of(reply);
  return {text.starts_with("WRONGTYPE") ? MissReason::kMalformed : MissReason::kIo, text};
}

std::vector<bool> RedisTier::exists(std::span<const RecordKey> keys, Deadline deadline) {
  const auto start = Clock::now();
  std::vector<bool> there(keys.size(), false);
  std::vector<std::optional<Miss>> missed(keys.size());
  RedisSession session(nodes_);
  for (size_t i = 0; i < keys.size(); ++i) {
    const std::string name = header_name(id_of(keys[i]));
    missed[i] = session.request(redis_slot(name), {"EXISTS", name}, deadline);
  }
  session.flush(deadline);  // to all nodes before the first reply is waited for
  for (size_t i = 0; i < keys.size(); ++i) {
    RedisReply reply;
    if (!missed[i]) missed[i] = session.receive(reply, deadline);
    there[i] = !missed[i] && reply.is(Type::kInteger) && reply.integer == 1;
    if (!missed[i] && !reply.is(Type::kInteger)) missed[i] = unexpected(reply);
    if (missed[i]) counter_.opened(start, missed[i]);  // the caller will not open this record: count the miss now
  }
  return there;
}

std::optional<Miss> RedisTier::take_header(const RedisReply& reply, const RecordKey* expected,
                                           RecordHeader& header) const {
  if (reply.is(Type::kNil)) return Miss{MissReason::kAbsent, ""};
  if (!reply.is(Type::kString)) return unexpected(reply);
  const auto bytes = bytes_of(reply.text);
  if (auto why = parse_header(seal_, bytes, kUnknownBytes, expected, header)) return why;
  if (header.bytes() != std::ssize(bytes)) return Miss{MissReason::kMalformed, "bytes after its header"};
  return check_age(header, ttl_ms_);
}

std::optional<Miss> RedisTier::read_header(const RecordKey& key, Deadline deadline, RecordHeader& header) {
  RedisSession session(nodes_);
  const std::string name = header_name(id_of(key));
  RedisReply reply;
  if (auto why = session.request(redis_slot(name), {"GET", name}, deadline)) return why;
  if (auto why = session.receive(reply, deadline, kMaxHeaderBytes)) return why;
  return take_header(reply, &key, header);
}

OpenedRecord RedisTier::open(const RecordKey& key, Deadline deadline) {
  const auto start = Clock::now();
  RecordHeader header;
  auto why = read_header(key, deadline, header);
  if (why && is_corrupt(why->reason)) drop(id_of(key), deadline);
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

std::optional<Miss> RedisTier::look(RedisSession& session, const Record& record, Deadline deadline, RedisReply& header,
                                    int64_t& n_pieces) {
  const RecordId id = id_of(record.key);
  const int slot = redis_slot(header_name(id));
  if (auto why = session.request(slot, {"GET", header_name(id)}, deadline)) return why;
  const int64_t n = count_pieces(record.bytes(), kPieceBytes);
  for (int64_t piece = 0; piece < n; ++piece) {
    if (auto why = session.request(slot, {"EXISTS", piece_name(id, piece)}, deadline)) return why;
  }
  if (auto why = session.receive(header, deadline, kMaxHeaderBytes)) return why;
  n_pieces = 0;
  for (int64_t piece = 0; piece < n; ++piece) {
    RedisReply reply;
    if (auto why = session.receive(reply, deadline)) return why;
    n_pieces += reply.integer;
  }
  return std::nullopt;
}

PutResult RedisTier::store(const Record& record, Deadline deadline) {
  RedisSession session(nodes_);
  RedisReply first;
  int64_t n_pieces = 0;
  if (record.bytes() > kMaxRecordBytes) return {PutOutcome::kTooLarge, std::to_string(record.bytes()) + " bytes"};
  if (const auto why = look(session, record, deadline, first, n_pieces)) return failed_put(*why);
  RecordHeader header;
  const auto no_header = take_header(first, &record.key, header);
  if (no_header && no_header->reason == MissReason::kIo) return failed_put(*no_header);
  // A server that evicts piece by piece may leave the header.
  if (!no_header && n_pieces == count_pieces(record.bytes(), kPieceBytes)) {
    used(record.key);
    return {PutOutcome::kPresent, ""};
  }
  int64_t lives_ms = ttl_ms_;
  if (record.first_use) {
    if (std::string why = no_room(session, record, deadline); !why.empty()) return {PutOutcome::kOutranked, why};
    lives_ms = ttl_ms_ == 0 ? kFirstUseMs : std::min(ttl_ms_, kFirstUseMs);
  }
  const RecordId id = id_of(record.key);
  const PutResult result = RedisRecordWriter(session, id, kPieceBytes, deadline).write(seal_, record, lives_ms);
  if (!result.there()) drop(id, deadline);
  if (result.there() && record.first_use) {
    const std::string mark = value_name(id, kFirstUseMark), ttl = std::to_string(ttl_ms_);
    RedisReply reply;
    if (!session.request(redis_slot(mark), {"SET", mark, ttl, "PX", std::to_string(lives_ms)}, deadline)) {
      session.receive(reply, deadline);  // without the mark, the record does not live longer
    }
  }
  return result;
}

// A user without the right to INFO does not know.
std::string RedisTier::no_room(RedisSession& session, const Record& record, Deadline deadline) {
  RedisReply info;
  std::optional<Miss> why = session.request(redis_slot(header_name(id_of(record.key))), {"INFO", "memory"}, deadline);
  if (!why) why = session.receive(info, deadline, kMaxInfoBytes);
  if (why) return "INFO: " + why->detail;
  if (!info.is(Type::kString)) return "INFO: " + text_of(info);
  const auto used = info_number(info.text, "used_memory"), most = info_number(info.text, "maxmemory");
  if (!used || !most) return "INFO: no used_memory and maxmemory";
  const bool fits =
      *most == 0 || static_cast<double>(*used + record.bytes()) <= kRoomyShare * static_cast<double>(*most);
  return fits ? "" : "the server is full";
}

void RedisTier::used(const RecordKey& key) {
  const RecordId id = id_of(key);
  const std::string name = header_name(id), mark = value_name(id, kFirstUseMark);
  const int slot = redis_slot(name);
  RedisSession session(nodes_);
  RedisReply reply;
  if (session.request(slot, {"GET", mark}, kNoDeadline) || session.receive(reply, kNoDeadline)) return;
  int64_t ttl_ms = -1;  // as the process that stored it has set it
  std::from_chars(reply.text.data(), reply.text.data() + reply.text.size(), ttl_ms);
  if (!reply.is(Type::kString) || ttl_ms < 0) return;
  RecordHeader header;
  if (session.request(slot, {"GET", name}, kNoDeadline) || session.receive(reply, kNoDeadline, kMaxHeaderBytes)) return;
  if (take_header(reply, &key, header)) return;
  const int64_t left_ms = std::max<int64_t>(1, std::min(ttl_ms, kLongestMs) - (now_ms() - header.created_ms));
  const auto prolong = [&](const std::string& value, int64_t more_ms) {
    if (ttl_ms == 0) return session.request(slot, {"PERSIST", value}, kNoDeadline);
    return session.request(slot, {"PEXPIRE", value, std::to_string(left_ms + more_ms)}, kNoDeadline);
  };
  // The header last, so that it does not outlive its pieces.
  const auto bytes = header.section_offset(header.sections.size()) - header.bytes();
  for (int64_t piece = 0; piece < count_pieces(bytes, kPieceBytes); ++piece) {
    if (prolong(piece_name(id, piece), RedisRecordWriter::kPiecesLiveLongerMs)) return;
    if (session.receive(reply, kNoDeadline) || !reply.is(Type::kInteger)) return;
  }
  if (prolong(name, 0) || session.receive(reply, kNoDeadline)) return;
  if (!session.request(slot, {"UNLINK", mark}, kNoDeadline)) session.receive(reply, kNoDeadline);
}

void RedisTier::probe() {
  const std::string name = std::string(kRedisPrefix) + "probe-" + claimant_ + std::string(kRedisTagEnd) + "p";
  const int slot = redis_slot(name);
  RedisSession session(nodes_);
  RedisReply set, got;
  std::optional<Miss> why = session.request(slot, {"SET", name, "probe", "PX", kProbeMs}, kNoDeadline);
  if (!why) why = session.receive(set, kNoDeadline);
  PutResult written = why ? failed_put(*why) : PutResult{};
  if (!why && set.is(Type::kError)) written = failed_put({MissReason::kIo, text_of(set) + " (SET)"});
  if (!why) why = session.request(slot, {"GET", name}, kNoDeadline);
  if (!why) why = session.receive(got, kNoDeadline);
  if (!why && got.is(Type::kError)) why = Miss{MissReason::kIo, text_of(got) + " (GET)"};
  counter_.probed(why, written);
  if (set.is(Type::kStatus) && !session.request(slot, {"UNLINK", name}, kNoDeadline)) session.receive(got, kNoDeadline);
}

void RedisTier::drop(const RecordId& id, Deadline deadline) {
  if (erase(id, deadline)) counter_.removed();
}

bool RedisTier::erase(const RecordId& id, Deadline deadline) {
  RedisSession session(nodes_);
  const int slot = redis_slot(header_name(id));
  RedisReply reply;
  if (session.request(slot, {"UNLINK", header_name(id)}, deadline)) return false;
  if (session.receive(reply, deadline)) return false;  // from now on the record is absent
  const bool was_there = reply.is(Type::kInteger) && reply.integer == 1;
  // The number of pieces is unknown without reading the header.
  for (int64_t piece = 0; piece * kPieceBytes < kMaxRecordBytes; piece += kErasedAtOnce) {
    int64_t n_removed = 0;
    for (int64_t i = 0; i < kErasedAtOnce; ++i) {
      if (session.request(slot, {"UNLINK", piece_name(id, piece + i)}, deadline)) return was_there;
    }
    for (int64_t i = 0; i < kErasedAtOnce; ++i) {
      if (session.receive(reply, deadline) || !reply.is(Type::kInteger)) return was_there;
      n_removed += reply.integer;
    }
    if (n_removed == 0) break;
  }
  return was_there;
}

bool RedisTier::claim(const RecordKey& key, Clock::duration time, Deadline deadline) {
  RedisSession session(nodes_);
  const std::string name = value_name(id_of(key), "c");
  const auto ms = std::max<int64_t>(1, std::chrono::duration_cast<std::chrono::milliseconds>(time).count());
  const int slot = redis_slot(name);
  if (session.request(slot, {"SET", name, claimant_, "NX", "PX", std::to_string(ms)}, deadline)) return true;
  if (session.request(slot, {"GET", name}, deadline)) return true;
  RedisReply set, owner;
  if (session.receive(set, deadline) || session.receive(owner, deadline)) return true;
  return !set.is(Type::kNil) || !owner.is(Type::kString) || owner.text == claimant_;
}

void RedisTier::release(const RecordKey& key) {
  RedisSession session(nodes_);
  const std::string name = value_name(id_of(key), "c");
  RedisReply owner;
  if (session.request(redis_slot(name), {"GET", name}, kNoDeadline) || session.receive(owner, kNoDeadline)) return;
  if (owner.text != claimant_ || session.request(redis_slot(name), {"UNLINK", name}, kNoDeadline)) return;
  session.receive(owner, kNoDeadline);
}

std::optional<Miss> RedisTier::scan(RedisPool& pool, std::set<RecordId>& ids) const {
  Miss why;
  const RedisPool::Lease connection = pool.take(kNoDeadline, why);
  if (!connection) return why;
  std::string cursor = "0";
  const std::string pattern = std::string(kRedisPrefix) + "*" + std::string(kRedisTagEnd) + "h";
  for (int64_t i = 0; i < kMaxScans && ids.size() < kMaxListed; ++i) {
    connection->request({"SCAN", cursor, "MATCH", pattern, "COUNT", "1000"});
    RedisReply reply;
    if (!connection->receive(reply, kNoDeadline, kMaxScanBytes)) return connection->broken();
    if (!reply.is(Type::kArray) || reply.elements.size() != 2) return unexpected(reply);
    for (const RedisReply& name : reply.elements[1].elements) {
      if (const auto id = id_of_header_name(name.text)) ids.insert(*id);
    }
    cursor = reply.elements[0].text;
    if (cursor == "0") break;
  }
  return std::nullopt;
}

// Counts a failure for each node that cannot be listed, and one if slots have none.
std::vector<RecordId> RedisTier::find_ids() {
  const auto start = Clock::now();
  std::set<RecordId> ids;  // a name may be listed more than once
  std::optional<Miss> why;
  const std::vector<RedisNodes::Pool> masters = nodes_.masters(why);
  if (why) counter_.opened(start, why);
  for (const RedisNodes::Pool& master : masters) {
    if (const auto failed = scan(*master, ids)) counter_.opened(start, failed);
  }
  return {ids.begin(), ids.end()};
}

std::optional<Miss> RedisTier::list_one(const RecordId& id, ListedRecord& listed) {
  const std::string name = header_name(id);
  const int slot = redis_slot(name);
  RedisSession session(nodes_);
  RedisReply idle, reply;
  // Before our own read resets it.
  if (auto why = session.request(slot, {"OBJECT", "IDLETIME", name}, kNoDeadline)) return why;
  if (auto why = session.request(slot, {"GET", name}, kNoDeadline)) return why;
  if (auto why = session.receive(idle, kNoDeadline)) return why;
  if (auto why = session.receive(reply, kNoDeadline, kMaxHeaderBytes)) return why;
  RecordHeader header;
  listed.id = id;
  listed.bytes = static_cast<int64_t>(reply.n_bytes);
  listed.problem = take_header(reply, nullptr, header);
  if (!listed.problem) listed.bytes = header.section_offset(header.sections.size());
  if (!listed.problem && id_of(header.key) != id) {
    listed.problem = Miss{MissReason::kOtherKey, "its name is not its key's"};
  }
  listed.key = std::move(header.key);
  listed.created_ms = header.created_ms;
  listed.saves_ms = header.saves_ms;
  // Servers that evict by frequency do not track it.
  listed.used_ms = idle.is(Type::kInteger) ? now_ms() - idle.integer * 1000 : header.created_ms;
  return std::nullopt;
}

std::vector<ListedRecord> RedisTier::list() {
  const auto start = Clock::now();
  std::vector<ListedRecord> records;
  for (const RecordId& id : find_ids()) {
    ListedRecord listed;
    if (const auto why = list_one(id, listed)) {
      counter_.opened(start, why);
      if (!nodes_.is_cluster()) break;
      continue;
    }
    if (listed.problem && listed.problem->reason == MissReason::kAbsent) continue;  // removed during the listing
    records.push_back(std::move(listed));
  }
  return records;
}

}  // namespace vlcache
