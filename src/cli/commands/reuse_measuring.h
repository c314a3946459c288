// ReuseMeasuring: the evidence that `tune reuse` and `verify reuse` collect, case by case, so that it can be resumed.
#pragma once

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "analysis/reuse_tuner.h"
#include "cli/flags/command.h"
#include "cli/terminal/progress.h"
#include "io/checkpoint/checkpoint.h"
#include "reuse/evidence/reuse_plan.h"

namespace vlcache {

// Measurements of cases, a line of a file each: {"what": .., "case": .., ...}.
class MeasuredCases {
 public:
  using Line = nlohmann::ordered_json;

  MeasuredCases() = default;  // in memory alone
  // Continues the file if it begins with the same settings, otherwise begins it. Throws Error(kIo).
  MeasuredCases(std::filesystem::path path, const Line& settings);

  // Null: not measured.
  const Line* find(const std::string& what, size_t i) const;
  const Line& add(const std::string& what, size_t i, Line values);
  void remove_file();

 private:
  void write(const Line& line);

  std::filesystem::path path_;  // empty: none
  std::map<std::pair<std::string, size_t>, Line> lines_;
  std::ofstream file_;
};

// Ways of the noise floor: another prefill chunk, no multiple of tiles and pages, and batches of so many.
int32_t other_chunk(const ModelFlags& flags);
inline constexpr size_t kTogether = 3;

class ReuseMeasuring {
 public:
  // All must outlive this.
  ReuseMeasuring(ReuseTuner& tuner, std::span<const ReuseCase> cases, MeasuredCases& measured, Progress& progress)
      : tuner_(tuner), cases_(cases), measured_(measured), progress_(progress) {}

  // Compares answers under the plan, and under its chooser with a preview for several images. `name` tells the
  // measurements of plans apart. Throws Interrupted.
  void compare(const std::string& name, const ReusePlan& plan);
  // How often full computation changes the answers that compare() has found: with another prefill chunk, in batches of
  // three, and on lower instruction sets, each as many cases as its time permits. Throws Interrupted.
  void measure_floor(const ModelFlags& flags, const Checkpoint& checkpoint);
  // Sets the evidence of a plan that was compared.
  void fill(const std::string& name, ReusePlan& plan) const;

  // The mean loss of every layer at each level, and the sums of the errors.
  struct Profiled {
    ReuseSensitivity sensitivity;
    std::vector<KvError> errors;
  };
  Profiled profile(std::span<const ReuseCase> cases);

 private:
  std::vector<int32_t> answer(size_t i) const;
  double full_ms() const;
  void count_way(const std::string& way, double budget_ms, ReuseTuner& tuner, size_t n_together, int32_t chunk);
  ReuseEvidence evidence(const std::string& what, bool several) const;

  ReuseTuner& tuner_;
  std::span<const ReuseCase> cases_;
  MeasuredCases& measured_;
  Progress& progress_;
  std::vector<std::string> ways_;  // of the floor
};

}  // namespace vlcache
