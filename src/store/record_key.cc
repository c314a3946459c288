#include "store/record_key.h"

#include <algorithm>

namespace vlcache {

bool valid(const RecordKey& key) {
  const bool known = RecordKind::kImage <= key.kind && key.kind <= RecordKind::kFile;
  const auto printable = [](char c) { return c >= ' ' && c <= '~'; };
  return known && key.layout.size() <= kMaxLayoutBytes && std::ranges::all_of(key.layout, printable);
}

std::string_view record_kind_name(RecordKind kind) {
  if (kind == RecordKind::kFile) return "file";
  return kind == RecordKind::kImage ? "image" : "prefix";
}

}  // namespace vlcache
