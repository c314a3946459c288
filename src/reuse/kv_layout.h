// How a model's KV lies in a record, in words that are part of its key.
#pragma once

#include <string>

#include "cache/kv_shape.h"

namespace vlcache {

// "bf16 22x4x64": layers x kv heads x head size, where neighbours are alike.
std::string kv_layout(const KvShape& shape);

}  // namespace vlcache
