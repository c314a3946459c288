// RuledPolicy: a policy that leaves slots generated after the prompt to a decode rule.
#pragma once

#include <memory>

#include "policy/parts.h"

namespace vlcache {

class RuledPolicy : public Policy {
 public:
  // Null: generated tokens come on top.
  explicit RuledPolicy(std::unique_ptr<const DecodeRule> rule) : rule_(std::move(rule)) {}

  int32_t n_planes() const final { return wants_scores() ? 1 : 0; }
  bool wants_scores() const final { return rule_ != nullptr && rule_->wants_attention(); }
  bool has_rule() const final { return rule_ != nullptr; }
  void on_scores(int32_t layer, const StepScores& scores, PolicySlots& slots) const final;
  void on_step(const StepInfo& step, PolicySlots& slots) const final;

 protected:
  const DecodeRule* rule() const { return rule_.get(); }

 private:
  std::unique_ptr<const DecodeRule> rule_;
};

}  // namespace vlcache
