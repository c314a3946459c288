// kv_layout() describes the layout of a model's KV in a record, and the codes that it was computed with, as text that
// is part of the record's key.
#pragma once

#include <string>

#include "cache/kv_shape.h"

namespace vlcache {

// "bf16 22x4x64": layers x kv heads x head size, with runs of equal layers merged; "bf16:int8/4 22x4x64" where full
// pages become codes, kCodedBlockPages at a time, and "bf16 2x4x64 20x4x64:int8/4" where some layers' do.
std::string kv_layout(const KvShape& shape);

}  // namespace vlcache
