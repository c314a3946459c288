#include "store/redis_writer.h"

#include "store/redis_keys.h"
#include "store/save_pace.h"

namespace vlcache {
namespace {

// Pieces without a header, whose writer died, expire after this time.
constexpr int64_t kUnfinishedMs = 10 * 60 * 1000;
// The header expires first, so that a record ends at once, not piece by piece.
constexpr int64_t kPiecesLiveLongerMs = 60 * 1000;
// Pieces sent before the first one's reply is read: a full server reports it early.
constexpr int64_t kMaxPending = 4;

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The sections' bytes, concatenated and cut into pieces.
class PieceCutter {
 public:
  PieceCutter(const Record& record, int64_t piece_bytes)
      : record_(record), piece_bytes_(static_cast<size_t>(piece_bytes)) {}

  // Empty: no more pieces. Valid until the next call.
  std::span<const std::byte> next() {
    const size_t n = piece_bytes_;
    skip_empty();
    if (section_ < record_.sections.size() && record_.sections[section_].size() - at_ >= n) {  // no copy needed
      at_ += n;
      return record_.sections[section_].subspan(at_ - n, n);
    }
    copied_.clear();
    for (; copied_.size() < n && section_ < record_.sections.size(); skip_empty()) {
      const auto rest = record_.sections[section_].subspan(at_);
      const auto some = rest.first(std::min(rest.size(), n - copied_.size()));
      copied_.insert(copied_.end(), some.begin(), some.end());
      at_ += some.size();
    }
    return copied_;
  }

 private:
  void skip_empty() {
    while (section_ < record_.sections.size() && at_ == record_.sections[section_].size()) {
      ++section_;
      at_ = 0;
    }
  }

  const Record& record_;
  size_t piece_bytes_, section_ = 0, at_ = 0;
  std::vector<std::byte> copied_;
};

}  // namespace

PutOutcome outcome_of(const RedisReply& error) {
  return error.text.starts_with("OOM") ? PutOutcome::kNoSpace : PutOutcome::kIo;
}

bool RedisRecordWriter::fail(const RedisReply& reply) {
  result_ = {outcome_of(reply), connection_.text_of(reply)};
  return false;
}

bool RedisRecordWriter::receive(RedisReply::Type wanted, RedisReply& reply) {
  if (connection_.receive(reply, deadline_)) return reply.is(wanted) || fail(reply);
  const Miss& why = *connection_.broken();
  result_ = {why.reason == MissReason::kLate ? PutOutcome::kLate : PutOutcome::kIo, why.detail};
  return false;
}

bool RedisRecordWriter::send_pieces(const Record& record) {
  const std::string time = std::to_string(kUnfinishedMs);
  PieceCutter cutter(record, piece_bytes_);
  RedisReply reply;
  int64_t piece = 0;
  for (auto bytes = cutter.next(); !bytes.empty(); bytes = cutter.next()) {
    connection_.request({"SET", piece_name(id_, piece++), text_of(bytes), "PX", time});
    connection_.flush(deadline_);  // if it fails, receive() fails, too
    if (record.pace != nullptr) record.pace->stored(std::ssize(bytes), deadline_);
    if (connection_.n_pending() < kMaxPending) continue;
    if (!receive(RedisReply::Type::kStatus, reply)) return false;
  }
  while (connection_.n_pending() > 0) {
    if (!receive(RedisReply::Type::kStatus, reply)) return false;
  }
  return true;
}

bool RedisRecordWriter::finish(const std::vector<std::byte>& header, int64_t n_pieces, int64_t ttl_ms) {
  const std::string time = std::to_string(ttl_ms + kPiecesLiveLongerMs);
  RedisReply reply;
  for (int64_t piece = 0; piece < n_pieces; ++piece) {
    if (ttl_ms > 0) {
      connection_.request({"PEXPIRE", piece_name(id_, piece), time});
    } else {
      connection_.request({"PERSIST", piece_name(id_, piece)});
    }
    connection_.request({"EXISTS", piece_name(id_, piece)});
  }
  for (int64_t piece = 0; piece < n_pieces; ++piece) {
    if (!receive(RedisReply::Type::kInteger, reply) || !receive(RedisReply::Type::kInteger, reply)) return false;
    if (reply.integer == 1) continue;
    result_ = {PutOutcome::kNoSpace, "evicted while it was written"};
    return false;
  }
  if (ttl_ms > 0) {
    connection_.request({"SET", header_name(id_), text_of(header), "PX", std::to_string(ttl_ms)});
  } else {
    connection_.request({"SET", header_name(id_), text_of(header)});
  }
  return receive(RedisReply::Type::kStatus, reply);
}

PutResult RedisRecordWriter::write(const RecordSeal& seal, const Record& record, int64_t ttl_ms) {
  const RecordHeader header = make_header(seal, record);
  if (send_pieces(record)) finish(encode_header(seal, header), count_pieces(record.bytes(), piece_bytes_), ttl_ms);
  return result_;
}

}  // namespace vlcache
