// The header of a safetensors file: a small untrusted JSON object, checked before a byte of data is touched.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/config_json.h"
#include "base/error.h"
#include "base/lone_surrogates.h"
#include "io/safetensors.h"

namespace vlcache {
namespace {

constexpr int64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr size_t kMaxRank = 64;

struct FileType {
  std::string_view name;
  int64_t bits;
  std::optional<DType> dtype;
};
constexpr std::array<FileType, 19> kFileTypes = {{{"F32", 32, DType::kF32},
                                                  {"BF16", 16, DType::kBF16},
                                                  {"F16", 16, DType::kF16},
                                                  {"I32", 32, DType::kI32},
                                                  {"I64", 64, DType::kI64},
                                                  {"U8", 8, DType::kU8},
                                                  {"I8", 8, DType::kI8},
                                                  {"F64", 64, {}},
                                                  {"U64", 64, {}},
                                                  {"U32", 32, {}},
                                                  {"U16", 16, {}},
                                                  {"I16", 16, {}},
                                                  {"BOOL", 8, {}},
                                                  {"C64", 64, {}},
                                                  {"F8_E4M3", 8, {}},
                                                  {"F8_E5M2", 8, {}},
                                                  {"F8_E8M0", 8, {}},
                                                  {"F6_E2M3", 6, {}},
                                                  {"F4", 4, {}}}};

const FileType* find_type(std::string_view name) {
  const auto it = std::find_if(kFileTypes.begin(), kFileTypes.end(), [&](const FileType& t) { return t.name == name; });
  return it == kFileTypes.end() ? nullptr : &*it;
}

// Builds the entries while the parser runs: no document tree, so a 100 MB header costs no more than its tensors, and
// nesting and duplicate names are detected where they occur.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(std::string_view where) : where_(where) {}
  std::vector<SafetensorsEntry> take() { return std::move(entries_); }

  bool key(string_t& name) override {
    if (depth_ == 1) {
      if (!names_.insert(name).second) fail("the name \"" + name + "\" stands twice");
      in_metadata_ = name == "__metadata__";
      name_ = name;
    } else {
      field_ = name;
    }
    return true;
  }
  bool start_object(size_t) override {
    ++depth_;
    if (depth_ > 2 || in_array_) fail("expected {name: {dtype, shape, data_offsets}}, found deeper nesting" + at());
    if (depth_ == 2 && !in_metadata_) {
      entries_.emplace_back().name = name_;
      seen_ = 0;
    }
    return true;
  }
  bool end_object() override {
    if (depth_ == 2 && !in_metadata_ && seen_ != (kDtype | kShape | kOffsets)) {
      fail("expected dtype, shape and data_offsets" + at());
    }
    --depth_;
    return true;
  }
  bool start_array(size_t) override {
    if (depth_ != 2 || in_array_ || in_metadata_ || (field_ != "shape" && field_ != "data_offsets"))
      unexpected("an array");
    mark(field_ == "shape" ? kShape : kOffsets);
    in_array_ = true;
    n_offsets_ = 0;
    return true;
  }
  bool end_array() override {
    in_array_ = false;
    if (field_ == "data_offsets" && n_offsets_ != 2) fail("expected two data_offsets" + at());
    return true;
  }
  bool string(string_t& value) override {
    if (depth_ != 2 || in_array_) unexpected("a string");
    if (in_metadata_) return true;
    if (field_ != "dtype") unexpected("a string");
    mark(kDtype);
    entries_.back().dtype_name = value;
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (!in_array_ || value > static_cast<uint64_t>(INT64_MAX)) unexpected("the number " + std::to_string(value));
    SafetensorsEntry& entry = entries_.back();
    if (field_ == "shape") {
      if (entry.shape.size() == kMaxRank) fail("more than 64 dimensions" + at());
      entry.shape.push_back(static_cast<int64_t>(value));
    } else {
      if (n_offsets_ == 2) fail("expected two data_offsets, found more" + at());
      (n_offsets_++ == 0 ? entry.begin : entry.end) = static_cast<int64_t>(value);
    }
    return true;
  }
  bool null() override { unexpected("null"); }
  bool boolean(bool) override { unexpected("a boolean"); }
  bool number_integer(number_integer_t value) override { unexpected("the number " + std::to_string(value)); }
  bool number_float(number_float_t, const string_t& text) override { unexpected("the number " + text.substr(0, 40)); }
  bool binary(binary_t&) override { unexpected("binary data"); }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    fail("header is not valid JSON at its byte " + std::to_string(position));
  }

 private:
  enum : unsigned { kDtype = 1, kShape = 2, kOffsets = 4 };

  void mark(unsigned field) {
    if ((seen_ & field) != 0) fail(field_ + " stands twice" + at());
    seen_ |= field;
  }
  std::string at() const { return name_.empty() ? "" : " (tensor \"" + name_.substr(0, 200) + "\")"; }
  [[noreturn]] void unexpected(const std::string& what) {
    fail("expected {name: {dtype, shape, data_offsets}}, found " + what + at());
  }
  [[noreturn]] void fail(const std::string& what) { throw Error(ErrorCode::kInput, std::string(where_) + ": " + what); }

  std::string_view where_;
  std::vector<SafetensorsEntry> entries_;
  std::unordered_set<std::string> names_;
  std::string name_, field_;
  int depth_ = 0, n_offsets_ = 0;
  unsigned seen_ = 0;
  bool in_array_ = false, in_metadata_ = false;
};

std::string describe(const SafetensorsEntry& e, std::string_view where) {
  return std::string(where) + ": tensor \"" + e.name.substr(0, 200) + "\"";
}

// Fills dtype; checks that the span has exactly the bytes of the shape. Offsets are still relative to the data section.
void check_entry(SafetensorsEntry& e, int64_t data_bytes, std::string_view where) {
  if (e.begin > e.end || e.end > data_bytes) {
    throw Error(ErrorCode::kInput, describe(e, where) + ": data_offsets [" + std::to_string(e.begin) + ", " +
                                       std::to_string(e.end) + "] do not lie within the file's " +
                                       std::to_string(data_bytes) + " bytes of data");
  }
  int64_t n = 1;
  bool overflow = false;
  for (const int64_t d : e.shape) overflow = overflow || __builtin_mul_overflow(n, d, &n);
  const FileType* type = find_type(e.dtype_name);
  if (type == nullptr) return;  // its size is unknown: an error only when the tensor is requested
  e.dtype = type->dtype;
  overflow = overflow || __builtin_mul_overflow(n, type->bits, &n);
  if (overflow || n % 8 != 0 || n / 8 != e.end - e.begin) {
    throw Error(ErrorCode::kInput, describe(e, where) + ": shape and dtype " + e.dtype_name + " need " +
                                       (overflow ? "more bytes than there are" : std::to_string(n / 8) + " bytes") +
                                       ", data_offsets span " + std::to_string(e.end - e.begin));
  }
}

// Tensors must tile the data section: no overlap (two names for one memory), no hole, nothing left over.
void check_tiling(std::vector<SafetensorsEntry>& entries, int64_t data_bytes, std::string_view where) {
  std::sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  int64_t expected = 0;
  for (const SafetensorsEntry& e : entries) {
    if (e.begin != expected) {
      throw Error(ErrorCode::kInput, describe(e, where) + ": begins at byte " + std::to_string(e.begin) +
                                         " of the data, expected " + std::to_string(expected) +
                                         (e.begin < expected ? " (overlaps another tensor)" : " (a hole before it)"));
    }
    expected = e.end;
  }
  if (expected != data_bytes) {
    throw Error(ErrorCode::kInput, std::string(where) + ": tensors end at byte " + std::to_string(expected) +
                                       " of the data, the file has " + std::to_string(data_bytes));
  }
}

}  // namespace

std::vector<SafetensorsEntry> parse_safetensors_header(std::span<const std::byte> head, int64_t file_bytes,
                                                       std::string_view where) {
  static_assert(std::endian::native == std::endian::little);
  uint64_t length = 0;
  if (head.size() < sizeof length) {
    throw Error(ErrorCode::kInput, std::string(where) + ": expected a safetensors file, found only " +
                                       std::to_string(head.size()) + " bytes");
  }
  const std::string_view beginning(reinterpret_cast<const char*>(head.data()), head.size());
  if (const std::string reason = lfs_pointer_reason(beginning); !reason.empty()) {
    throw Error(ErrorCode::kInput, std::string(where) + ": " + reason);
  }
  std::memcpy(&length, head.data(), sizeof length);
  if (length > static_cast<uint64_t>(kMaxHeaderBytes) || length > head.size() - sizeof length) {
    throw Error(ErrorCode::kInput, std::string(where) + ": header claims " + std::to_string(length) +
                                       " bytes, the file has " + std::to_string(file_bytes) +
                                       " and the limit is 100 MB: not safetensors, or truncated");
  }
  const auto* text = reinterpret_cast<const char*>(head.data()) + sizeof length;
  if (length == 0 || text[0] != '{') {
    throw Error(ErrorCode::kInput, std::string(where) + ": header does not begin with '{': not a safetensors file");
  }
  HeaderReader reader(where);
  std::string changed;
  const std::string_view header = with_whole_pairs({text, static_cast<size_t>(length)}, changed);
  nlohmann::json::sax_parse(header.begin(), header.end(), &reader);
  std::vector<SafetensorsEntry> entries = reader.take();
  const int64_t data_begin = static_cast<int64_t>(sizeof length + length);
  for (SafetensorsEntry& e : entries) check_entry(e, file_bytes - data_begin, where);
  check_tiling(entries, file_bytes - data_begin, where);
  for (SafetensorsEntry& e : entries) {
    e.begin += data_begin;
    e.end += data_begin;
  }
  return entries;
}

}  // namespace vlcache
