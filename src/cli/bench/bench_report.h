// What `vlcache bench` prints: a row for every case and policy; as a table, CSV, JSON and a chart.
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
  KvCodec codec = KvCodec::kBF16;
  std::string kv_mode;
  BenchResult result;
  double speed_up = 1, predicted = 0;  // beside the first policy; by the bytes that are read, 0: the limit is another
};

// `kind`: md, csv or json; ends with a line break.
std::string bench_text(const std::vector<BenchReport>& reports, const std::string& kind);

// Tokens/s of decoding over the depth, or of prefill where nothing decodes, a line for each policy and batch; with
// several policies how many times faster than the first. An SVG file; empty where only tiles were timed.
std::string bench_chart(const std::vector<BenchReport>& reports);

}  // namespace vlcache
