// Registering generation flags and summing up a generation.
#include "cli/generate_flags.h"

#include <cstdio>

#include "base/format.h"
#include "cli/command.h"

namespace vlcache {

void add_generate_flags(const Command& command, GenerateFlags& flags) {
  const std::string group = "Generation";
  const auto add = [&](const char* names, auto& value, const char* help) {
    return command.add(names, value, help).group(group).share_environment();
  };
  add("-n,--max-tokens", flags.max_tokens, "tokens to generate at most").range(1, INT32_MAX).show_default();
  add("--temperature", flags.temperature, "0: always the likeliest token (default: as the checkpoint says, else 0)");
  add("--top-k", flags.top_k, "choose among the k likeliest (0: all)");
  add("--top-p", flags.top_p, "choose among the likeliest that make up this mass");
  add("--min-p", flags.min_p, "drop tokens less likely than this share of the likeliest");
  add("--repetition-penalty", flags.repetition_penalty, "> 1 makes tokens of prompt and answer less likely");
  add("--presence-penalty", flags.presence_penalty, "subtracted from the logits of tokens already generated")
      .show_default();
  add("--frequency-penalty", flags.frequency_penalty, "the same, once per time").show_default();
  add("--seed", flags.seed, "of the random choices").show_default();
  add("--stop", flags.stop, "end the answer before this text (one per use)").value_name("TEXT").one_per_use();
  add("--stop-token", flags.stop_tokens, "end the answer at this token id (one per use)")
      .value_name("ID")
      .one_per_use();
  add("--logprobs", flags.logprobs, "report log probabilities and this many alternatives (in JSON answers)")
      .value_name("N")
      .range(0, 1 << 20);
  add("--reuse", flags.reuse.how,
      "of pictures that were there before, wherever they stand: exact (their embeddings), off, or also their KV, of "
      "which a chooser says what is computed anew: vlcache[:r=SHARE], static[:r=SHARE], mpic[:k=N], asked[:r=SHARE] "
      "(for questions about several pictures), cacheblend[:r=SHARE], kvshare[:r=SHARE]; auto: by the plan of `tune "
      "reuse`, where that has held, else exact")
      .value_name("HOW")
      .show_default();
  add("--reuse-plan", flags.reuse.plan, "that plan (default: reuse_plan.json in the model's folder)")
      .value_name("FILE");
  add("--reuse-origin", flags.reuse.origin,
      "where a picture's KV is computed that others reuse: in the first prompt that does so exactly (first), or always "
      "by itself, so that answers do not depend on what was asked before (neutral)")
      .one_of({"first", "neutral"})
      .show_default();
  add("--reuse-bound", flags.reuse.bound, "share of answers that must have been the same for auto to follow a plan")
      .range(0.0, 1.0)
      .show_default();
  add("--cache-exact", flags.reuse.keep_exact,
      "keep a prompt's KV for later prompts as it was before a policy compressed it, too");
  add("--explain", flags.explain, "say behind every answer what was reused, and why not more");
  add("--query-aware", flags.query_aware,
      "off: a policy that evicts acts behind the last picture, before it has seen the question, as for a page that is "
      "compressed once and asked often")
      .one_of({"on", "off"})
      .show_default();
  add("--kv-evict-while-prefill", flags.evict_while_prefill,
      "evict chunk by chunk, so that the prompt's KV is never held as a whole; what goes "
      "early is judged by fewer questions");
  add("--ignore-eos", flags.ignore_eos, "go on after the end-of-sequence token");
}

void warn(const ReuseChoice& reuse) {
  if (const std::string text = reuse.warning(); !text.empty()) std::fprintf(stderr, "%s\n", text.c_str());
}

GenerateOptions generate_options(const GenerateFlags& flags, const GenerationDefaults& defaults) {
  GenerateOptions options;
  SamplingParams& s = options.sampling;
  const auto value = [](const auto& flag, const auto& fallback, auto neutral) {
    return flag       ? static_cast<decltype(neutral)>(*flag)
           : fallback ? static_cast<decltype(neutral)>(*fallback)
                      : neutral;
  };
  s.repetition_penalty = value(flags.repetition_penalty, defaults.repetition_penalty, 1.0f);
  s.temperature =
      flags.temperature.value_or(defaults.do_sample ? static_cast<float>(defaults.temperature.value_or(1.0)) : 0.0f);
  static const GenerationDefaults kNone;  // not a temporary: g++ 12 then sees reads of what is not there
  const GenerationDefaults& sampling = defaults.do_sample ? defaults : kNone;
  s.top_p = value(flags.top_p, sampling.top_p, 1.0f);
  s.min_p = value(flags.min_p, sampling.min_p, 0.0f);
  s.top_k = value(flags.top_k, sampling.top_k, 0);
  s.presence_penalty = flags.presence_penalty;
  s.frequency_penalty = flags.frequency_penalty;
  s.seed = flags.seed;
  s.n_logprobs = flags.logprobs;
  s.validate();
  options.max_tokens = flags.max_tokens;
  options.ignore_eos = flags.ignore_eos;
  options.stop = flags.stop;
  options.stop_tokens.assign(flags.stop_tokens.begin(), flags.stop_tokens.end());
  return options;
}

std::string explanation(const GenerateResult& result, const CacheTotals& totals) {
  const CacheReport& cache = result.cache;
  std::string text = format("prefix: %d of %d tokens were there", cache.n_prefix_tokens, result.n_prompt);
  if (!cache.prefix_reason.empty()) text += ": " + cache.prefix_reason;
  text += "\n";
  for (size_t i = 0; i < cache.images.size(); ++i) {
    const CacheReport::Image& image = cache.images[i];
    using Image = CacheReport::Image;
    text += format("image %zu: %d tokens ", i + 1, image.n_tokens);
    if (image.source == Image::Source::kPrefix) text += "in the prefix";
    if (image.loaded()) {
      const char* from = image.source == Image::Source::kRam ? "RAM" : image.tier.c_str();
      text += format("from %s (%s", from, image.form.c_str());
      if (image.n_kept < image.n_tokens) text += format(": %d of them are kept", image.n_kept);
      text += format("), %.1f computed anew", image.n_recomputed);
    }
    if (image.source == Image::Source::kComputed) text += "computed: " + image.reason;
    if (image.encoder == Image::Encoder::kHit) text += "; its embeddings were there";
    if (image.encoder == Image::Encoder::kComputed) text += "; its embeddings were computed";
    text += "\n";
  }
  const auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / 1048576.0; };
  const auto line = [&](const char* name, const CacheTotals::Cache& c) {
    return format("%s %lld hits, %lld misses, %.1f MiB", name, static_cast<long long>(c.n_hits),
                  static_cast<long long>(c.n_misses), mib(c.bytes));
  };
  return text + "caches: " + line("prefixes", totals.prefix) + "; " + line("images", totals.image_kv) + "; " +
         line("embeddings", totals.encoder) + format("; of %.0f MiB", mib(totals.max_bytes));
}

std::string summary(const GenerateResult& result) {
  const auto rate = [](double n, double ms) { return ms > 0 ? n / ms * 1000.0 : 0.0; };
  const Timings& t = result.timings;
  std::string line;
  if (result.n_vision > 0) line += format("vision %.0f ms (%d tokens) | ", t.vision_ms, result.n_vision);
  const double loaded = result.cache.n_loaded();
  line += format("first token %.0f ms (%d prompt tokens, ", t.ttft_ms, result.n_prompt);
  if (loaded > 0) line += format("%.0f of them from a cache, ", loaded);
  line += format("%.0f/s) | ", rate(result.n_prompt - loaded, t.prefill_ms));
  const size_t n = result.tokens.size();
  if (n > 1) {
    line += format("%zu tokens, %.1f/s | ", n, rate(static_cast<double>(n - 1), t.decode_ms));
  } else {
    line += format("%zu token%s | ", n, n == 1 ? "" : "s");
  }
  return line + format("KV %.1f MiB (%s)", static_cast<double>(result.kv.bytes) / 1048576.0, result.kv.mode.c_str());
}

}  // namespace vlcache
