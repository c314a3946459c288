// StepBudget: how much of a prompt a step computes beside requests that decode, so that these do not wait too long for
// their next token. A budget in milliseconds, by what the steps before have taken.
#pragma once

#include <array>
#include <optional>

namespace vlcache {

class StepBudget {
 public:
  // Time for prompts, of what decoding alone takes, where one is to be computed: running streams then have about half
  // their pace, and the prompt takes at most nine fifths of its own time. Where n are, n * n times that: each waits for
  // those before it, and a share that only keeps up with the clients' requests would have all of them wait for good.
  static constexpr double kTimeForOne = 1.25;
  // At most: a step takes eleven times what decoding alone takes.
  static constexpr double kMostTime = 10;
  // While others decode, one step in so many computes no prompt: what that takes changes with requests and depths.
  static constexpr int kAloneEvery = 32;

  // max_ms: of a step; 0: what decoding alone takes, and what prompts have beside it as above.
  explicit StepBudget(double max_ms) : max_ms_(max_ms) {}

  // Whether the next step, in which others decode, is to have nothing of a prompt: to see what that takes.
  bool decodes_alone() const { return decode_ms_ == 0 || n_mixed_ >= kAloneEvery; }
  // Time that it may take beside decoding where so many prompts (or pictures) are to be computed, one or more; none: it
  // is not known yet what decoding takes.
  std::optional<double> prompt_ms(int n_prompts) const;
  // FLOPs of prompts that it may have otherwise; none: it is not known yet what they cost.
  std::optional<double> prompt_flops(int n_prompts) const;
  // A step took so long that has computed so many FLOPs of prompts, beside requests that decode or by itself.
  void took(bool decodes, double prompt_flops, double ms);

 private:
  double max_ms_;
  std::array<double, 3> alone_ms_{};  // of the last steps that decoded alone; 0: there were not so many
  double decode_ms_ = 0;              // their median; 0: not known
  double ms_per_flop_ = 0;            // running mean; 0: not known
  int n_mixed_ = 0;                   // steps since the last that decoded alone
};

}  // namespace vlcache
