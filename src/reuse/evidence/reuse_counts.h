// ReuseCounts: what servers count of approximate reuse while they run, and whether the gate permits it by that: for
// models of which nothing was measured before. Counts lie in a file that processes share; no text is kept.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "reuse/evidence/reuse_plan.h"

namespace vlcache {

// Any thread.
class ReuseCounts {
 public:
  // `plan`: of the model and the form of KV, without evidence. `file`: read now if it is there and of this plan; empty:
  // counts end with the process. rule.repeated is set.
  ReuseCounts(ReusePlan plan, GateRule rule, std::filesystem::path file);

  // Counts answers to prompts with several images, or with one. If the file cannot be written, they count in this
  // process, and are written with the next ones.
  void add(bool several, const ReuseEvidence& more);
  // A comparison that was given up, after requests came too often, or because memory lacked what it takes.
  void gave_up() { ++n_given_up_; }

  // Whether reuse is permitted for a prompt with that many images, by what all processes have counted.
  bool permits(size_t n_images);
  // Whether that is still to be found out.
  bool undecided(size_t n_images);

  // What was counted for one kind of prompts.
  struct Kind {
    ReuseEvidence evidence;
    GateVerdict verdict;
    // When this process found that reuse is permitted; none: it is not.
    std::optional<std::chrono::system_clock::time_point> open_since;
  };
  struct State {
    Kind one, several;
    int64_t n_given_up = 0;
  };
  State state();
  // Lines that tell of each change since the last call: reuse is permitted now, or no longer.
  std::vector<std::string> take_news();

  ReuseChooserPtr chooser() const { return chooser_; }
  const GateRule& rule() const { return rule_; }

 private:
  using Counts = std::array<ReuseEvidence, 2>;  // of one image, of several
  void read_again();
  void take(const Counts& counts, bool tells);
  Counts read() const;      // of the file
  Counts read_all() const;  // with those that could not be written
  bool write(const Counts& counts) const;

  ReusePlan plan_;
  GateRule rule_;
  std::filesystem::path file_;
  ReuseChooserPtr chooser_;
  std::atomic<int64_t> n_given_up_ = 0;
  std::mutex mutex_;  // guards all below
  std::array<Kind, 2> kinds_;
  Counts unwritten_;
  std::filesystem::file_time_type read_at_{};
  std::vector<std::string> news_;
};

// ReuseCounts for each codec of KV that requests have had: counts under one codec say nothing of another. Any thread.
class ReuseCountsByCodec {
 public:
  using Make = std::function<std::unique_ptr<ReuseCounts>(KvCodec)>;
  explicit ReuseCountsByCodec(Make make) : make_(std::move(make)) {}

  ReuseCounts& of(KvCodec codec);  // made by the first call
  std::map<KvCodec, ReuseCounts::State> states();
  std::vector<std::string> take_news();

 private:
  Make make_;
  std::mutex mutex_;  // guards counts_
  std::map<KvCodec, std::unique_ptr<ReuseCounts>> counts_;
};

// "measured on 640 requests: 99.7 % same (98.9 to 100), floor 0.2 %; on since 14:02", local time.
std::string words(const ReuseCounts::Kind& kind);

}  // namespace vlcache
