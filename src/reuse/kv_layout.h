// kv_layout() describes the layout of a model's KV in a record, as text that is part of the record's key.
#pragma once

#include <string>

#include "cache/kv_shape.h"

namespace vlcache {

// "bf16 22x4x64": layers x kv heads x head size, with runs of equal layers merged.
std::string kv_layout(const KvShape& shape);

}  // namespace vlcache
