#include "cli/flags/codec_flags.h"

#include "api/kv_codec_choice.h"
#include "base/error.h"
#include "base/json.h"

namespace vlcache {

std::string fault_of_codec(const std::string& name) {
  try {
    parse_kv_codec(name);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

void add_codec_flags(const Command& command, ModelFlags& flags) {
  command
      .add(
          "--kv-codec", flags.kv_codec,
          "Form of the KV cache. int8, k8v4, int4: full pages become codes of 8 bits, of 8 for K and 4 for V, or of 4, "
          "which attention reads as they are: about 52, 40 or 28 % of the memory, an answer close to the exact one "
          "(docs/codecs.md); bf16, f32: values; auto: what `tune codec` has measured for this model, else values in "
          "bf16, or in f32 with --dtype f32")
      .value_name("auto|bf16|f32|int8|k8v4|int4")
      .check(fault_of_codec)
      .show_default();
  command.add("--kv-dtype", flags.kv_dtype, "An older form of --kv-codec")
      .one_of({"auto", "f32", "bf16"})
      .show_default();
}

DType compute_dtype(const ModelFlags& flags, const Checkpoint& checkpoint) {
  return compute_dtype_of(Model::read_config(checkpoint), asked_dtype(flags));
}

KvCodec default_codec(const ModelFlags& flags, const Checkpoint& checkpoint) {
  const std::optional<KvCodec> asked = joined_kv_codec(flags.kv_codec, flags.kv_dtype);
  if (asked) return *asked;
  const std::optional<KvCodec> planned = planned_codec(flags, checkpoint).codec;
  return planned ? *planned : value_codec(compute_dtype(flags, checkpoint));
}

PlannedCodec planned_codec(const ModelFlags& flags, const Checkpoint& checkpoint) {
  const DType dtype = compute_dtype(flags, checkpoint);
  const std::string values(kv_codec_name(value_codec(dtype)));
  const std::string path = checkpoint.companion(kKvCodecPlanName).string();
  const auto refused = [&](const std::string& fault) {
    return PlannedCodec{.codec = {}, .reason = values + "; not followed: " + fault, .fault = fault};
  };
  KvCodecPlan plan;
  std::string obstacle;
  try {
    plan = parse_kv_codec_plan(read_text_file(path), path);
    obstacle =
        obstacle_to(plan, {checkpoint.fingerprint(), weights_form(flags, checkpoint), std::string(dtype_name(dtype))});
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNotFound) return refused(error.what());
    return {.codec = {},
            .reason = values + "; `vlcache tune codec` measures whether fewer bits give the same answers",
            .fault = {}};
  }
  if (!obstacle.empty()) return refused(path + ": " + obstacle);
  if (!is_coded(plan.codec)) {
    return {.codec = {},
            .reason = values + ": no codec stays within the noise of the arithmetic (" + path + ")",
            .fault = {}};
  }
  const CodecRule rule(plan.margin);
  const CodecVerdict verdict = judge(plan.evidence, plan.floor, rule);
  return {.codec = plan.codec,
          .reason = codec_words(kv_codec_name(plan.codec), plan.evidence, verdict, rule) + " (" + path + ")",
          .fault = {}};
}

std::string kv_codec_setting(const ModelFlags& flags, const Checkpoint& checkpoint) {
  if (joined_kv_codec(flags.kv_codec, flags.kv_dtype)) return flags.kv_codec;
  const std::optional<KvCodec> planned = planned_codec(flags, checkpoint).codec;
  return planned ? std::string(kv_codec_name(*planned)) : flags.kv_codec;
}

}  // namespace vlcache
