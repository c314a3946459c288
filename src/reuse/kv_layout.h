// kv_layout() describes the layout of a model's KV in a record, and the codes that it was computed with, as text that
// is part of the record's key.
#pragma once

#include <string>

#include "cache/kv_shape.h"

namespace vlcache {

// "bf16 22x4x64": layers x kv heads x head size, with runs of equal layers merged; "bf16 22x4x64:int8/4" where full
// pages become codes, kCodedBlockPages at a time.
std::string kv_layout(const KvShape& shape);

}  // namespace vlcache
