#include "store/redis/reader.h"

namespace vlcache {
namespace {

// Requested at once: more than a fast network has in flight, and little for the server to buffer for a reader that has
// stopped.
constexpr int64_t kMaxBytesAhead = int64_t{4} << 20;
constexpr size_t kMaxRequestsAhead = 64;
// Sending some hundred bytes takes no time, unless the server has stopped reading.
constexpr std::chrono::milliseconds kRequestTime{20};

}  // namespace

RedisSectionReader::RedisSectionReader(RedisNodes& nodes, const RecordSeal& seal, const RecordHeader& header,
                                       int64_t piece_bytes)
    : seal_(seal),
      header_(header),
      id_(seal.id(header.key)),
      slot_(redis_slot(header_name(id_))),
      piece_bytes_(piece_bytes),
      session_(nodes) {
  int64_t offset = 0;
  for (const SectionInfo& section : header.sections) {
    offsets_.push_back(offset);
    offset += section.bytes;
  }
}

void RedisSectionReader::plan(int32_t section) {
  const auto i = static_cast<size_t>(section);
  bool first = true;
  for (const PieceRange& range : piece_ranges(offsets_[i], header_.sections[i].bytes, piece_bytes_)) {
    parts_.push_back({section, first, range});
    first = false;
  }
}

void RedisSectionReader::expect(std::span<const int32_t> sections) {
  if (failed_) return;
  for (const int32_t section : sections) {
    if (section >= 0 && static_cast<size_t>(section) < offsets_.size()) plan(section);
  }
  request_ahead(Clock::now() + kRequestTime);
}

void RedisSectionReader::request_ahead(Deadline deadline) {
  const size_t n_before = n_requested_;
  while (n_requested_ < parts_.size() && n_requested_ < kMaxRequestsAhead && bytes_requested_ < kMaxBytesAhead) {
    const PieceRange& range = parts_[n_requested_].range;
    const auto why = session_.request(slot_,
                                      {"GETRANGE", piece_name(id_, range.piece), std::to_string(range.begin),
                                       std::to_string(range.begin + range.bytes - 1)},
                                      deadline);
    if (why) no_connection_ = *why;
    if (why) break;
    ++n_requested_;
    bytes_requested_ += range.bytes;
  }
  if (n_requested_ > n_before) session_.flush(deadline);
}

std::optional<Miss> RedisSectionReader::take(const Part& part, std::span<std::byte> to, Deadline deadline) {
  if (n_requested_ == 0) request_ahead(deadline);
  if (n_requested_ == 0) return no_connection_;
  RedisReply reply;
  if (auto why = session_.receive(reply, deadline, to.size(), to)) return why;
  parts_.pop_front();
  --n_requested_;
  bytes_requested_ -= part.range.bytes;
  if (reply.is(RedisReply::Type::kError)) {
    const std::string text = session_.text_of(reply);
    return Miss{text.starts_with("WRONGTYPE") ? MissReason::kMalformed : MissReason::kIo, text};
  }
  if (!reply.is(RedisReply::Type::kString)) return session_.blame(reply);
  if (reply.n_bytes == to.size()) return std::nullopt;
  if (reply.n_bytes == 0) return Miss{MissReason::kAbsent, "evicted or flushed meanwhile"};
  return Miss{MissReason::kTruncated, std::to_string(reply.n_bytes) + " bytes, expected " + std::to_string(to.size())};
}

std::optional<Miss> RedisSectionReader::read(int32_t section, std::span<std::byte> to, Deadline deadline) {
  if (failed_) return failed_;
  const SectionInfo& expected = header_.sections[static_cast<size_t>(section)];
  ChecksumStream sum = seal_.section(id_, section, expected.bytes);
  if (expected.bytes > 0) {
    if (parts_.empty() || parts_.front().section != section || !parts_.front().first) {
      // Not the expected section: the replies in flight are of no use.
      session_.reset();
      parts_.clear();
      n_requested_ = 0;
      bytes_requested_ = 0;
      plan(section);
    }
    while (!to.empty()) {
      const Part part = parts_.front();
      const auto piece = to.first(static_cast<size_t>(part.range.bytes));
      failed_ = take(part, piece, deadline);
      if (failed_) break;
      sum.add(piece);
      to = to.subspan(piece.size());
      if (!parts_.empty()) request_ahead(deadline);
    }
  }
  if (!failed_ && !equal(sum.finish(), expected.sum)) failed_ = Miss{MissReason::kChecksum, ""};
  if (failed_ || parts_.empty()) session_.reset();
  return failed_;
}

}  // namespace vlcache
