// --kv-codec and --kv-dtype: the form of KV pages, and what `auto` means for a model.
#pragma once

#include <optional>
#include <string>

#include "cli/flags/command.h"
#include "reuse/evidence/kv_codec_plan.h"

namespace vlcache {

void add_codec_flags(const Command& command, ModelFlags& flags);
// The fault of a name for --kv-codec; "": none.
std::string fault_of_codec(const std::string& name);

// What kv_codec.json beside a model makes of `auto`.
struct PlannedCodec {
  std::optional<KvCodec> codec;  // none: no file, or one that is not followed; KV stays values
  std::string reason;            // a sentence without a full stop, for `info`
  std::string fault;             // why the file is not followed; "": it is, or there is none
};
PlannedCodec planned_codec(const ModelFlags& flags, const Checkpoint& checkpoint);
// The codec of requests that name none.
KvCodec default_codec(const ModelFlags& flags, const Checkpoint& checkpoint);
// The dtype that the model computes in.
DType compute_dtype(const ModelFlags& flags, const Checkpoint& checkpoint);
// The codec by which a measurement that is resumed names its KV: that of the flags, or of the file that `auto` follows.
std::string kv_codec_setting(const ModelFlags& flags, const Checkpoint& checkpoint);

}  // namespace vlcache
