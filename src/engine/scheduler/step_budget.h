// StepBudget limits how much of a prompt a step computes beside decoding requests, so that these do not wait too long
// for their next token. The budget is in milliseconds and learns from the times of earlier steps.
#pragma once

#include <array>
#include <optional>

namespace vlcache {

class StepBudget {
 public:
  // Time for prompts, relative to decoding alone, where one is to be computed: running streams then have about half
  // their pace, and the prompt takes at most nine fifths of its own time. Where n are, n * n times that: each waits for
  // those before it, and a share that only keeps up with the clients' requests would have all of them wait for good.
  static constexpr double kTimeForOne = 1.25;
  // At most: a step takes eleven times what decoding alone takes.
  static constexpr double kMostTime = 10;
  // Beside decoding requests, one step in this many computes no prompt: the time of decoding changes with requests and
  // depths.
  static constexpr int kAloneEvery = 32;

  // max_ms: of a step; 0: the time of decoding alone, plus the share for prompts as above.
  explicit StepBudget(double max_ms) : max_ms_(max_ms) {}

  // Whether the next step, in which requests decode, is to compute no prompt, to measure decoding alone.
  bool decodes_alone() const { return decode_ms_ == 0 || n_mixed_ >= kAloneEvery; }
  // Time for prompts (or images) in a step that also decodes, where n_prompts >= 1 are to be computed; none: the time
  // of decoding is not known yet.
  std::optional<double> prompt_ms(int n_prompts) const;
  // The same in FLOPs of prompts; none: their cost is not known yet.
  std::optional<double> prompt_flops(int n_prompts) const;
  // Time of a step that decodes and computes no prompt; none: not known yet.
  std::optional<double> decode_ms() const { return decode_ms_ == 0 ? std::nullopt : std::optional(decode_ms_); }
  // Records that a step took `ms` for `prompt_flops` FLOPs of prompts, beside decoding requests or by themselves.
  void took(bool decodes, double prompt_flops, double ms);

 private:
  double max_ms_;
  std::array<double, 3> alone_ms_{};  // of the last steps that decoded alone; 0: fewer so far
  double decode_ms_ = 0;              // their median; 0: not known
  // Running sums over steps with prompts, x FLOPs and y ms of them, whose line is the price of a piece: short ones cost
  // more for each FLOP, most of all where quantised weights become values first.
  struct Sums {
    double n = 0, x = 0, y = 0, xx = 0, xy = 0;
  } prices_;
  int n_mixed_ = 0;  // steps since the last that decoded alone
};

}  // namespace vlcache
