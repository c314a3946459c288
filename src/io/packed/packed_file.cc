#include "io/packed/packed_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <memory>

#include "base/at.h"
#include "base/error.h"
#include "base/json.h"
#include "base/os/shared_mapping.h"
#include "base/os/threads.h"

namespace vlcache {
namespace {

static_assert(std::endian::native == std::endian::little, "packed files are little-endian; nothing here swaps bytes");

constexpr std::array<char, 8> kMagic = {'\x89', 'V', 'L', 'W', '\r', '\n', '\x1a', '\n'};
constexpr uint32_t kVersion = 1;
constexpr int64_t kAlignment = 4096;
// What a thread reads at a time: a huge page, so that no two of them touch the same one first.
constexpr int64_t kShare = 2 << 20;
static_assert(kShare % kPackedPiece == 0);
// Between two calls of `progress`: a tenth of a second where the file has to come from a disk.
constexpr int64_t kBatch = 256 << 20;
// After so many bytes the kernel is asked to begin storing them, so that the end of writing waits for few.
constexpr int64_t kWriteBehind = 64 << 20;

struct StoredHead {
  std::array<char, 8> magic;
  uint32_t version, zero;
  int64_t index_at, index_bytes;
  uint64_t index_sum, head_sum;
};
static_assert(sizeof(StoredHead) == kPackedHeadBytes && offsetof(StoredHead, head_sum) == 40);

int64_t aligned_up(int64_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; }
int64_t n_pieces(int64_t bytes) { return (bytes + kPackedPiece - 1) / kPackedPiece; }

uint64_t sum_of_sums(std::span<const uint64_t> sums) { return XXH3_64bits(sums.data(), sums.size_bytes()); }

uint64_t sum_of(std::span<const std::byte> array) {
  std::vector<uint64_t> sums(at(n_pieces(std::ssize(array))));
  parallel_for(std::ssize(sums), [&](int64_t i, int) {
    const auto piece = array.subspan(at(i * kPackedPiece));
    sums[at(i)] = XXH3_64bits(piece.data(), std::min(piece.size(), at(kPackedPiece)));
  });
  return sum_of_sums(sums);
}

[[noreturn]] void refuse(std::string_view where, const std::string& why) {
  throw Error(ErrorCode::kInput, std::string(where) + ": " + why);
}

PackedRecord parse_record(const JsonObject& json) {
  PackedRecord record{.name = json.string("name"),
                      .about = json.raw().value("about", Json()),
                      .at = json.integer("at"),
                      .bytes = json.integer("bytes")};
  const Json* sum = json.find("sum");
  if (sum == nullptr || !sum->is_number_unsigned()) json.fail("sum", "a number of 64 bits");
  record.sum = sum->get<uint64_t>();
  return record;
}

// Hashes each piece of `bytes` after fill(piece), which returns 0 or errno.
template <typename Fill>
int hash_pieces(std::span<std::byte> bytes, uint64_t* sums, const Fill& fill) {
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(bytes.size(), at(kPackedPiece)));
    if (const int error = fill(piece); error != 0) return error;
    *sums++ = XXH3_64bits(piece.data(), piece.size());
    bytes = bytes.subspan(piece.size());
  }
  return 0;
}

// Returns 0, or errno; EIO where the file ends.
int read_piece(const File& file, int64_t offset, std::span<std::byte> to) {
  while (!to.empty()) {
    const ssize_t n = retried([&] { return pread(file.fd(), to.data(), to.size(), offset); });
    if (n <= 0) return n == 0 ? EIO : errno;
    to = to.subspan(at(n));
    offset += n;
  }
  return 0;
}

}  // namespace

PackedHead parse_packed_head(std::span<const std::byte> first, int64_t file_bytes, std::string_view where) {
  StoredHead head;
  if (first.size() < sizeof head) refuse(where, std::to_string(first.size()) + " bytes, a head has 48");
  std::memcpy(&head, first.data(), sizeof head);
  if (head.magic != kMagic) refuse(where, "not a packed file");
  if (head.version != kVersion) {
    refuse(where, "version " + std::to_string(head.version) + ", expected " + std::to_string(kVersion));
  }
  if (head.head_sum != XXH3_64bits(first.data(), offsetof(StoredHead, head_sum))) {
    refuse(where, "the checksum of its head differs");
  }
  if (head.index_bytes < 0 || head.index_bytes > kMaxPackedIndex || head.index_at < kAlignment ||
      head.index_at % kAlignment != 0 || head.index_at > file_bytes || head.index_bytes != file_bytes - head.index_at) {
    refuse(where, std::to_string(file_bytes) + " bytes, expected an index of " + std::to_string(head.index_bytes) +
                      " bytes at byte " + std::to_string(head.index_at) + " to end it (truncated?)");
  }
  return {head.index_at, head.index_bytes, head.index_sum};
}

PackedIndex parse_packed_index(const PackedHead& head, std::span<const std::byte> text, std::string_view where) {
  if (std::ssize(text) != head.index_bytes || XXH3_64bits(text.data(), text.size()) != head.index_sum) {
    refuse(where, "the checksum of its index differs");
  }
  const Json json = parse_json({reinterpret_cast<const char*>(text.data()), text.size()}, where);
  const JsonObject root(json, std::string(where));
  PackedIndex index{.key = root.string("key"), .about = json.value("about", Json()), .records = {}};
  const Json* records = root.find("records");
  if (records == nullptr || !records->is_array()) root.fail("records", "a list");
  int64_t end = kAlignment;
  std::set<std::string_view> names;
  index.records.reserve(records->size());
  for (const Json& one : *records) {
    const PackedRecord& r = index.records.emplace_back(parse_record(JsonObject(one, std::string(where))));
    if (r.at % kAlignment != 0 || r.at < end || r.at > head.index_at || r.bytes < 0 || r.bytes > head.index_at - r.at) {
      refuse(where, "record " + shown_json(one) + " does not lie between byte " + std::to_string(end) + " and byte " +
                        std::to_string(head.index_at));
    }
    if (!names.insert(r.name).second) refuse(where, "two records are named " + shown_json(Json(r.name)));
    end = r.at + r.bytes;
  }
  return index;
}

PackedFile::PackedFile(std::filesystem::path path) : path_(std::move(path)) {
  const std::string where = path_.string();
  file_ = File(retried([&] { return open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK); }));
  if (!file_) {
    throw Error(errno == ENOENT || errno == ENOTDIR ? ErrorCode::kNotFound : ErrorCode::kIo, errno_text(where));
  }
  struct stat status {};
  if (fstat(file_.fd(), &status) != 0 || !S_ISREG(status.st_mode)) refuse(where, "expected a regular file");
  if (const std::string why = foreign_reason(status); !why.empty()) refuse(where, "not trusted: " + why);
  bytes_ = status.st_size;
  const auto read_at = [&](int64_t offset, std::span<std::byte> to) {
    while (!to.empty()) {
      const ssize_t n = retried([&] { return pread(file_.fd(), to.data(), to.size(), offset); });
      if (n < 0) throw Error(ErrorCode::kIo, errno_text(where));
      if (n == 0) refuse(where, "ends at byte " + std::to_string(offset));
      to = to.subspan(at(n));
      offset += n;
    }
  };
  std::array<std::byte, kPackedHeadBytes> first{};
  const auto n_first = std::min<int64_t>(kPackedHeadBytes, bytes_);
  read_at(0, std::span(first).first(at(n_first)));
  const PackedHead head = parse_packed_head(std::span(first).first(at(n_first)), bytes_, where);
  std::vector<std::byte> text(at(head.index_bytes));
  read_at(head.index_at, text);
  index_ = parse_packed_index(head, text, where);
}

// Bytes of an array that one thread brings and hashes.
struct PackedFile::Share {
  int64_t at;
  std::span<std::byte> bytes;
  size_t first_sum;
};

// Calls bring(share, sums) for all shares of all arrays, and compares the sums that it returns with the records'.
void PackedFile::bring_all(std::span<const Buffer> arrays, const PackedProgress& progress, const Bring& bring) const {
  std::vector<Share> shares;
  int64_t total = 0, done = 0, n_sums = 0;
  for (size_t i = 0; i < arrays.size(); ++i) {
    const PackedRecord& r = index_.records[i];
    for (int64_t begin = 0; begin < r.bytes; begin += kShare) {
      const std::span bytes(arrays[i].data() + begin, at(std::min(kShare, r.bytes - begin)));
      shares.push_back({r.at + begin, bytes, at(n_sums + begin / kPackedPiece)});
    }
    n_sums += n_pieces(r.bytes);
    total += r.bytes;
  }
  std::vector<uint64_t> sums(at(n_sums));
  std::atomic<int> error{0};
  constexpr int64_t kSharesOfBatch = kBatch / kShare;
  for (auto left = std::span(shares); !left.empty() && error == 0;) {
    const auto batch = left.first(std::min(left.size(), at(kSharesOfBatch)));
    parallel_for(std::ssize(batch), [&](int64_t i, int) {
      const Share& share = batch[at(i)];
      const int failed = bring(share, sums.data() + share.first_sum);
      if (failed != 0) error = failed;
    });
    for (const Share& share : batch) done += std::ssize(share.bytes);
    if (progress) progress(done, total);
    left = left.subspan(batch.size());
  }
  if (error != 0) {
    errno = error;
    throw Error(ErrorCode::kIo, errno_text(path_.string()));
  }
  auto left = std::span<const uint64_t>(sums);
  for (const PackedRecord& r : index_.records) {
    const size_t n = at(n_pieces(r.bytes));
    if (sum_of_sums(left.first(n)) != r.sum) refuse(path_.string(), "the checksum of \"" + r.name + "\" differs");
    left = left.subspan(n);
  }
}

std::vector<Buffer> PackedFile::read(const PackedProgress& progress) const {
  std::vector<Buffer> arrays;
  for (const PackedRecord& r : index_.records) arrays.emplace_back(r.bytes);
  bring_all(arrays, progress, [&](const Share& share, uint64_t* sums) {
    return hash_pieces(share.bytes, sums, [&](std::span<std::byte> piece) {
      return read_piece(file_, share.at + (piece.data() - share.bytes.data()), piece);
    });
  });
  return arrays;
}

std::vector<Buffer> PackedFile::map(const PackedProgress& progress) const {
  const auto mapping = std::make_shared<const SharedMapping>(
      file_, bytes_,
      "vlcache: " + path_.string() +
          ": weights that are shared with other processes (--packed-share) cannot be read any more: the file was cut "
          "short or its medium has failed. Start again: the file is verified, or made again; without --packed-share "
          "weights are held in memory of the process");
  std::vector<Buffer> arrays;
  for (const PackedRecord& r : index_.records) {
    arrays.push_back(Buffer::part_of(mapping, mapping->bytes().subspan(at(r.at), at(r.bytes))));
  }
  bring_all(arrays, progress, [&](const Share& share, uint64_t* sums) {
    const int error = mapping->populate(share.at, share.at + std::ssize(share.bytes));
    return error != 0 ? error : hash_pieces(share.bytes, sums, [](std::span<std::byte>) { return 0; });
  });
  return arrays;
}

void PackedFile::touch() const {
  const timespec times[2] = {{0, UTIME_OMIT}, {0, UTIME_NOW}};
  static_cast<void>(futimens(file_.fd(), times));
}

PackedFileWriter::PackedFileWriter(std::filesystem::path folder) : file_(std::move(folder)) {
  const std::vector<std::byte> head(at(kAlignment));
  file_.write(head);
  bytes_ = kAlignment;
}

void PackedFileWriter::add(const std::string& name, nlohmann::json about, std::span<const std::byte> array) {
  if (!problem().empty() || !names_.insert(name).second) return;
  records_.push_back(
      {.name = name, .about = std::move(about), .at = bytes_, .bytes = std::ssize(array), .sum = sum_of(array)});
  file_.write(array);
  const std::vector<std::byte> gap(at(aligned_up(std::ssize(array)) - std::ssize(array)));
  file_.write(gap);
  bytes_ += aligned_up(std::ssize(array));
  if (problem().empty() && bytes_ - synced_bytes_ >= kWriteBehind) {
    sync_file_range(file_.file().fd(), synced_bytes_, bytes_ - synced_bytes_, SYNC_FILE_RANGE_WRITE);
    synced_bytes_ = bytes_;
  }
}

void PackedFileWriter::commit(const std::filesystem::path& path, std::string key, nlohmann::json about) {
  Json index = {{"key", std::move(key)}, {"about", std::move(about)}, {"records", Json::array()}};
  for (PackedRecord& r : records_) {
    index["records"].push_back(
        {{"name", std::move(r.name)}, {"about", std::move(r.about)}, {"at", r.at}, {"bytes", r.bytes}, {"sum", r.sum}});
  }
  const std::string text = index.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (std::ssize(text) > kMaxPackedIndex) problem_ = "an index of " + std::to_string(text.size()) + " bytes";
  if (!problem().empty()) return;
  StoredHead head{.magic = kMagic,
                  .version = kVersion,
                  .zero = 0,
                  .index_at = bytes_,
                  .index_bytes = std::ssize(text),
                  .index_sum = XXH3_64bits(text.data(), text.size()),
                  .head_sum = 0};
  head.head_sum = XXH3_64bits(&head, offsetof(StoredHead, head_sum));
  file_.write(std::as_bytes(std::span(text)));
  file_.write_at(0, std::as_bytes(std::span(&head, 1)));
  file_.commit(path);
  bytes_ += std::ssize(text);
}

}  // namespace vlcache
