// Writes the report of `vlcache bench`: a row for every case and policy, as a table, CSV, JSON and a chart.
#pragma once

#include <string>
#include <vector>

#include "base/dtype.h"
#include "cli/bench/bench_runner.h"

namespace vlcache {

struct BenchReport {
  std::string model;
  int threads = 0;
  DType dtype = DType::kBF16;
  std::string weights = "dense";   // as --weights names them
  KvCodec codec = KvCodec::kBF16;  // full pages have it
  std::string kv_mode;
  BenchResult result;
  double speed_up = 1, predicted = 0;  // over the first policy; predicted: by the bytes read, 0: another limit applies
};

// `kind`: md, csv or json; ends with a line break.
std::string bench_text(const std::vector<BenchReport>& reports, const std::string& kind);

// Tokens/s of decoding over the depth, or of prefill if no case decodes, a line for each policy and batch size; with
// several policies, their speed relative to the first. An SVG file; empty if only tiles were timed.
std::string bench_chart(const std::vector<BenchReport>& reports);

}  // namespace vlcache
