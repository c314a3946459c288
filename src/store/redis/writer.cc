#include "store/redis/writer.h"

#include <algorithm>

#include "store/redis/keys.h"
#include "store/save_pace.h"

namespace vlcache {
namespace {

// Pieces without a header, whose writer died, expire after this time.
constexpr int64_t kUnfinishedMs = 10 * 60 * 1000;
// Pieces sent before the first one's reply is read: a full server reports it early.
constexpr int64_t kMaxPending = 4;

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The sections' bytes, concatenated and cut into pieces.
class PieceCutter {
 public:
  PieceCutter(const Record& record, int64_t piece_bytes)
      : record_(record), piece_bytes_(static_cast<size_t>(piece_bytes)) {}

  // Empty: no more pieces. Valid until the next call.
  std::string_view cut(int64_t piece) {
    size_t skip = static_cast<size_t>(piece) * piece_bytes_;
    copied_.clear();
    for (const std::span<const std::byte> section : record_.sections) {
      const auto rest = section.subspan(std::min(skip, section.size()));
      skip -= section.size() - rest.size();
      if (copied_.empty() && rest.size() >= piece_bytes_) return as_text(rest.first(piece_bytes_));  // no copy needed
      const auto some = rest.first(std::min(rest.size(), piece_bytes_ - copied_.size()));
      copied_.insert(copied_.end(), some.begin(), some.end());
      if (copied_.size() == piece_bytes_) break;
    }
    return as_text(copied_);
  }

 private:
  const Record& record_;
  size_t piece_bytes_;
  std::vector<std::byte> copied_;
};

}  // namespace

PutResult failed_put(const Miss& why) {
  const bool late = why.reason == MissReason::kLate, full = why.detail.starts_with("OOM");
  return {late ? PutOutcome::kLate : full ? PutOutcome::kNoSpace : PutOutcome::kIo, why.detail};
}

RedisRecordWriter::RedisRecordWriter(RedisSession& session, const RecordId& id, int64_t piece_bytes, Deadline deadline)
    : session_(session), id_(id), slot_(redis_slot(header_name(id))), piece_bytes_(piece_bytes), deadline_(deadline) {}

bool RedisRecordWriter::request(std::initializer_list<std::string_view> words) {
  const auto why = session_.request(slot_, words, deadline_);
  if (why) result_ = failed_put(*why);
  return !why;
}

bool RedisRecordWriter::receive(RedisReply::Type wanted, RedisReply& reply, const RedisSession::Supply& long_word) {
  std::optional<Miss> why = session_.receive(reply, deadline_, 0, {}, long_word);
  if (!why && !reply.is(wanted)) why = Miss{MissReason::kIo, session_.text_of(reply)};
  if (why) result_ = failed_put(*why);
  return !why;
}

bool RedisRecordWriter::send_pieces(const Record& record) {
  const std::string time = std::to_string(kUnfinishedMs);
  PieceCutter cutter(record, piece_bytes_);
  RedisReply reply;
  const auto confirm = [&](int64_t piece) {
    return receive(RedisReply::Type::kStatus, reply, [&] { return cutter.cut(piece); });
  };
  const int64_t n = count_pieces(record.bytes(), piece_bytes_);
  for (int64_t piece = 0; piece < n; ++piece) {
    const std::string_view bytes = cutter.cut(piece);
    if (!request({"SET", piece_name(id_, piece), bytes, "PX", time})) return false;
    session_.flush(deadline_);  // if it fails, receive() fails, too
    if (record.pace != nullptr) record.pace->stored(std::ssize(bytes), deadline_);
    if (session_.n_pending() == kMaxPending && !confirm(piece - kMaxPending + 1)) return false;
  }
  while (session_.n_pending() > 0) {
    if (!confirm(n - session_.n_pending())) return false;
  }
  return true;
}

bool RedisRecordWriter::finish(const std::vector<std::byte>& header, int64_t n_pieces, int64_t ttl_ms) {
  const std::string time = std::to_string(ttl_ms + kPiecesLiveLongerMs);
  RedisReply reply;
  for (int64_t piece = 0; piece < n_pieces; ++piece) {
    const std::string name = piece_name(id_, piece);
    const bool sent = ttl_ms > 0 ? request({"PEXPIRE", name, time}) : request({"PERSIST", name});
    if (!sent || !request({"EXISTS", name})) return false;
  }
  for (int64_t piece = 0; piece < n_pieces; ++piece) {
    if (!receive(RedisReply::Type::kInteger, reply) || !receive(RedisReply::Type::kInteger, reply)) return false;
    if (reply.integer == 1) continue;
    result_ = {PutOutcome::kNoSpace, "evicted while it was written"};
    return false;
  }
  const std::string name = header_name(id_);
  const bool sent = ttl_ms > 0 ? request({"SET", name, as_text(header), "PX", std::to_string(ttl_ms)})
                               : request({"SET", name, as_text(header)});
  return sent && receive(RedisReply::Type::kStatus, reply, [&] { return as_text(header); });
}

PutResult RedisRecordWriter::write(const RecordSeal& seal, const Record& record, int64_t ttl_ms) {
  const RecordHeader header = make_header(seal, record);
  if (send_pieces(record)) finish(encode_header(seal, header), count_pieces(record.bytes(), piece_bytes_), ttl_ms);
  return result_;
}

}  // namespace vlcache
