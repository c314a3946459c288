#include "store/redis_writer.h"

#include <array>

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

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The sections' bytes, concatenated and cut into pieces.
class PieceCutter {
 public:
  PieceCutter(const Record& record, int64_t piece_bytes)
      : record_(record), piece_bytes_(static_cast<size_t>(piece_bytes)) {}

  // Empty: no more pieces. Valid until kMaxPending more have been cut.
  std::span<const std::byte> next() {
    const size_t n = piece_bytes_;
    skip_empty();
    if (section_ < record_.sections.size() && record_.sections[section_].size() - at_ >= n) {  // no copy needed
      at_ += n;
      return record_.sections[section_].subspan(at_ - n, n);
    }
    std::vector<std::byte>& copied = copied_[n_copied_++ % copied_.size()];
    copied.clear();
    for (; copied.size() < n && section_ < record_.sections.size(); skip_empty()) {
      const auto rest = record_.sections[section_].subspan(at_);
      const auto some = rest.first(std::min(rest.size(), n - copied.size()));
      copied.insert(copied.end(), some.begin(), some.end());
      at_ += some.size();
    }
    return copied;
  }

 private:
  void skip_empty() {
    while (section_ < record_.sections.size() && at_ == record_.sections[section_].size()) {
      ++section_;
      at_ = 0;
    }
  }

  const Record& record_;
  size_t piece_bytes_, section_ = 0, at_ = 0, n_copied_ = 0;
  std::array<std::vector<std::byte>, kMaxPending + 1> copied_;
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

bool RedisRecordWriter::receive(RedisReply::Type wanted, RedisReply& reply) {
  std::optional<Miss> why = session_.receive(reply, deadline_);
  if (!why && !reply.is(wanted)) why = Miss{MissReason::kIo, session_.text_of(reply)};
  if (why) result_ = failed_put(*why);
  return !why;
}

bool RedisRecordWriter::send_pieces(const Record& record) {
  const std::string time = std::to_string(kUnfinishedMs);
  PieceCutter cutter(record, piece_bytes_);
  RedisReply reply;
  int64_t piece = 0;
  for (auto bytes = cutter.next(); !bytes.empty(); bytes = cutter.next()) {
    if (!request({"SET", piece_name(id_, piece++), as_text(bytes), "PX", time})) return false;
    session_.flush(deadline_);  // if it fails, receive() fails, too
    if (record.pace != nullptr) record.pace->stored(std::ssize(bytes), deadline_);
    if (session_.n_pending() < kMaxPending) continue;
    if (!receive(RedisReply::Type::kStatus, reply)) return false;
  }
  while (session_.n_pending() > 0) {
    if (!receive(RedisReply::Type::kStatus, reply)) return false;
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
  return sent && receive(RedisReply::Type::kStatus, reply);
}

PutResult RedisRecordWriter::write(const RecordSeal& seal, const Record& record, int64_t ttl_ms) {
  const RecordHeader header = make_header(seal, record);
  if (send_pieces(record)) finish(encode_header(seal, header), count_pieces(record.bytes(), piece_bytes_), ttl_ms);
  return result_;
}

}  // namespace vlcache
