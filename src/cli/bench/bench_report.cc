#include "cli/bench/bench_report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "analysis/html.h"
#include "base/format.h"

namespace vlcache {
namespace {

std::string test_name(const BenchCase& test) {
  if (test.width > 0) return "image " + std::to_string(test.width) + " x " + std::to_string(test.height);
  if (test.n_tiles > 0) return "tiles" + std::to_string(test.n_tiles);
  std::string name = test.n_prompt > 0 ? "pp" + std::to_string(test.n_prompt) : "tg" + std::to_string(test.n_gen);
  if (test.n_depth > 0) name += " @ d" + std::to_string(test.n_depth);
  if (test.n_seqs > 1) name += " x " + std::to_string(test.n_seqs);
  if (test.n_shared > 0) name += ", " + std::to_string(test.n_shared) + " shared";
  return name;
}

std::string two_digits(double x) { return format("%.2f", x); }

nlohmann::ordered_json to_json(const BenchReport& r) {
  const BenchResult& b = r.result;
  return {{"model", r.model},
          {"n_prompt", b.test.n_prompt},
          {"n_gen", b.test.n_gen},
          {"n_tiles", b.test.n_tiles},
          {"n_depth", b.test.n_depth},
          {"n_seqs", b.test.n_seqs},
          {"n_shared_depth", b.test.n_shared},
          {"n_threads", r.threads},
          {"dtype", dtype_name(r.dtype)},
          {"weights", r.weights},
          {"bytes_per_token", b.bytes_per_token},
          {"type_k", kv_codec_name(k_codec(r.codec))},
          {"type_v", kv_codec_name(v_codec(r.codec))},
          {"coded_bytes_read", b.coded_bytes_read},
          {"kv_bytes_read", b.kv_reads.bytes},
          {"kv_bytes_saved_by_sharing", b.kv_reads.saved},
          {"kv_mode", r.kv_mode},
          {"kept_share", b.kept_share},
          {"kv_bytes", b.kv_bytes},
          {"compress_ms", b.compress_ms},
          {"speed_up", r.speed_up},
          {"predicted_speed_up", r.predicted},
          {"avg_ts", b.avg_ts},
          {"stddev_ts", b.stddev_ts},
          {"samples_ts", b.tokens_per_s},
          {"limit_ts", b.limit_ts},
          {"limit_pct", b.limit_pct},
          {"limit", b.by_bandwidth ? "bandwidth" : "flops"},
          {"depth_0_samples_ts", b.tokens_per_s_at_0},
          {"p_ts", b.p_ts > 0 ? nlohmann::ordered_json(b.p_ts) : nlohmann::ordered_json()},
          {"p_pct", b.p_ts > 0 ? nlohmann::ordered_json(b.p_pct) : nlohmann::ordered_json()},
          {"read_gb_s", b.limits.read_gb_s},
          {"bf16_tflops", b.limits.bf16_tflops},
          {"f32_tflops", b.limits.f32_tflops},
          {"int8_tops", b.limits.int8_tops},
          {"output_hash", std::to_string(b.output_hash)},
          {"version", VLCACHE_VERSION}};
}

template <typename Field>
bool differ(const std::vector<BenchReport>& reports, Field BenchReport::*what) {
  return std::ranges::any_of(reports, [&](const BenchReport& r) { return r.*what != reports[0].*what; });
}

// The names of the compared things, of weights, KV and policies, in one report; null: in the table's heading.
std::string compared(const std::vector<BenchReport>& reports, const BenchReport* r) {
  std::string text;
  const auto add = [&](const std::string& name) { text += (text.empty() ? "" : ", ") + name; };
  if (differ(reports, &BenchReport::weights)) add(r != nullptr ? r->weights : "weights");
  if (differ(reports, &BenchReport::codec)) add(r != nullptr ? "KV " + std::string(kv_codec_name(r->codec)) : "KV");
  if (differ(reports, &BenchReport::kv_mode) || text.empty()) add(r != nullptr ? r->kv_mode : "policy");
  return text;
}

std::string label(const std::vector<BenchReport>& reports, const BenchReport& r) { return compared(reports, &r); }

// A test with the codec of its KV, where that is coded and not compared.
std::string row_name(const std::vector<BenchReport>& reports, const BenchReport& r) {
  const bool shown = is_coded(r.codec) && !differ(reports, &BenchReport::codec) && r.result.test.n_tiles == 0;
  return test_name(r.result.test) + (shown ? ", KV " + std::string(kv_codec_name(r.codec)) : "");
}

bool any_p(const std::vector<BenchReport>& reports) {
  return std::ranges::any_of(reports, [](const BenchReport& r) { return r.result.p_ts > 0; });
}

bool any_evicts(const std::vector<BenchReport>& reports) {
  return std::ranges::any_of(reports,
                             [](const BenchReport& r) { return r.result.kept_share < 1 || r.result.compress_ms > 0; });
}

// Two columns, P and the share of it, where a row has them.
std::string p_columns(const std::vector<BenchReport>& reports, const BenchResult& b) {
  if (!any_p(reports)) return "";
  return b.p_ts > 0 ? format(" %.1f | %.0f |", b.p_ts, b.p_pct) : "  |  |";
}

std::string comparison(const std::vector<BenchReport>& reports) {
  const bool p = any_p(reports), evicts = any_evicts(reports);
  std::string text = "| model | test | " + compared(reports, nullptr) +
                     " | tokens/s | speed-up | by bytes | % of limit |" + (p ? " P | % of P |" : "") + " KV MiB |" +
                     (evicts ? " kept | compressing ms |" : "") + "\n|---|---|---|---:|---:|---:|---:|" +
                     (p ? "---:|---:|" : "") + "---:|" + (evicts ? "---:|---:|" : "") + "\n";
  for (const BenchReport& r : reports) {
    const BenchResult& b = r.result;
    text += format("| %s | %s | %s | %.1f ± %.1f | %.2f | %s | %.0f |%s %.1f |", r.model.c_str(),
                   row_name(reports, r).c_str(), label(reports, r).c_str(), b.avg_ts, b.stddev_ts, r.speed_up,
                   r.predicted > 0 ? two_digits(r.predicted).c_str() : "", b.limit_pct, p_columns(reports, b).c_str(),
                   static_cast<double>(b.kv_bytes) / 1048576.0);
    text += (evicts ? format(" %.1f %% | %.1f |", 100 * b.kept_share, b.compress_ms) : "") + "\n";
  }
  return text;
}

std::string csv(const std::vector<BenchReport>& reports) {
  std::string text =
      "model,n_prompt,n_gen,n_tiles,n_depth,n_seqs,n_threads,avg_ts,stddev_ts,limit_pct,limit,read_gb_s,bf16_tflops,"
      "f32_tflops,kv_mode,kept_share,kv_bytes,compress_ms,speed_up,predicted_speed_up,weights,bytes_per_token,"
      "kv_codec,p_ts,p_pct\n";
  for (const BenchReport& r : reports) {
    const BenchResult& b = r.result;
    text += format("%s,%d,%d,%d,%d,%d,%d,%.3f,%.3f,%.1f,%s,%.1f,%.3f,%.3f,\"%s\",%.4f,%lld,%.3f,%.3f,%.3f,%s,%.0f,%s,",
                   r.model.c_str(), b.test.n_prompt, b.test.n_gen, b.test.n_tiles, b.test.n_depth, b.test.n_seqs,
                   r.threads, b.avg_ts, b.stddev_ts, b.limit_pct, b.by_bandwidth ? "bandwidth" : "flops",
                   b.limits.read_gb_s, b.limits.bf16_tflops, b.limits.f32_tflops, r.kv_mode.c_str(), b.kept_share,
                   static_cast<long long>(b.kv_bytes), b.compress_ms, r.speed_up, r.predicted, r.weights.c_str(),
                   b.bytes_per_token, kv_codec_name(r.codec).data());
    text += b.p_ts > 0 ? format("%.3f,%.1f\n", b.p_ts, b.p_pct) : ",\n";
  }
  return text;
}

std::string limits_table(const std::vector<BenchReport>& reports) {
  const bool p = any_p(reports);
  std::string text = std::string("| model | threads | test | tokens/s | % of limit | limit |") +
                     (p ? " P | % of P |" : "") + "\n|---|---:|---|---:|---:|---|" + (p ? "---:|---:|" : "") + "\n";
  for (const BenchReport& r : reports) {
    const BenchResult& b = r.result;
    const std::string limit =
        b.by_bandwidth ? format("%.1f GB/s", b.limits.read_gb_s) : format("%.2f TFLOP/s", b.limit_tflops);
    text += format("| %s | %d | %s | %.1f ± %.1f | %.0f | %s |%s\n", r.model.c_str(), r.threads,
                   row_name(reports, r).c_str(), b.avg_ts, b.stddev_ts, b.limit_pct, limit.c_str(),
                   p_columns(reports, b).c_str());
  }
  return text;
}

bool compares(const std::vector<BenchReport>& reports) {
  return differ(reports, &BenchReport::kv_mode) || differ(reports, &BenchReport::weights) ||
         differ(reports, &BenchReport::codec);
}

// The next 1, 2 or 5 times a power of ten: an axis that ends there has short labels.
double round_up(double x) {
  const double power = std::pow(10.0, std::floor(std::log10(x)));
  for (const double step : {1.0, 2.0, 5.0}) {
    if (x <= step * power) return step * power;
  }
  return 10 * power;
}

}  // namespace

std::string bench_text(const std::vector<BenchReport>& reports, const std::string& kind) {
  if (kind == "csv") return csv(reports);
  if (kind != "json") return compares(reports) ? comparison(reports) : limits_table(reports);
  nlohmann::ordered_json array = nlohmann::ordered_json::array();
  for (const BenchReport& r : reports) array.push_back(to_json(r));
  return array.dump(1) + "\n";
}

std::string bench_chart(const std::vector<BenchReport>& reports) {
  const auto decodes = [](const BenchReport& r) { return r.result.test.n_gen > 0; };
  const bool decode = std::ranges::any_of(reports, decodes), ratio = compares(reports);
  std::vector<ChartLine> lines;
  std::set<double> depths;
  double highest = 0;
  for (const BenchReport& r : reports) {
    const BenchCase& test = r.result.test;
    if (test.n_tiles > 0 || decodes(r) != decode) continue;
    std::string name =
        label(reports, r) + (decode ? " tg" : " pp") + std::to_string(decode ? test.n_gen : test.n_prompt);
    if (test.n_seqs > 1) name += " x " + std::to_string(test.n_seqs);
    if (r.threads != reports[0].threads) name += ", " + std::to_string(r.threads) + " threads";
    auto line = std::ranges::find(lines, name, &ChartLine::name);
    if (line == lines.end()) line = lines.insert(lines.end(), {name, {}});
    const double y = ratio ? r.speed_up : r.result.avg_ts, spread = ratio ? 0 : r.result.stddev_ts;
    line->points.push_back({static_cast<double>(test.n_depth), y, y - spread, y + spread});
    depths.insert(test.n_depth);
    highest = std::max(highest, y + spread);
  }
  if (!(highest > 0)) return "";
  for (ChartLine& line : lines) std::ranges::sort(line.points, {}, &ChartPoint::x);
  return svg_file(
      line_chart(lines, {.x_label = "tokens in the cache",
                         .y_label = std::string(decode ? "decoding" : "prefill") +
                                    (ratio ? ", times as fast as " + label(reports, reports[0]) : ", tokens/s"),
                         .x_ticks = {depths.begin(), depths.end()},
                         .y_high = round_up(highest),
                         .percent_x = false,
                         .percent_y = false,
                         .log_x = *depths.begin() > 0,
                         .reference = ratio ? 1.0 : -1.0}));
}

}  // namespace vlcache
