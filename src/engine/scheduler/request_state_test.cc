#include "engine/scheduler/request_state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace vlcache {
namespace {

using S = RequestState;

const std::vector<S> kAll{S::kQueued,    S::kLoading, S::kEncoding, S::kPrefill,   S::kPreview,
                          S::kLookahead, S::kActing,  S::kDecode,   S::kPreempted, S::kFinished};

bool is_path(const std::vector<S>& states) {
  for (size_t i = 1; i < states.size(); ++i) {
    if (!may_follow(states[i - 1], states[i])) return false;
  }
  return true;
}

TEST(RequestStates, PathsOfRequests) {
  const std::vector<std::vector<S>> paths{
      {S::kQueued, S::kPrefill, S::kDecode, S::kFinished},
      {S::kQueued, S::kPrefill, S::kEncoding, S::kPrefill, S::kDecode, S::kFinished},
      {S::kQueued, S::kPrefill, S::kLoading, S::kPreview, S::kPrefill, S::kLookahead, S::kDecode, S::kFinished},
      {S::kQueued, S::kPrefill, S::kQueued, S::kPrefill, S::kFinished},  // an origin request first; max_tokens 0
      {S::kQueued, S::kPrefill, S::kDecode, S::kPreempted, S::kDecode, S::kFinished},
      {S::kQueued, S::kPrefill, S::kDecode, S::kActing, S::kDecode, S::kFinished},  // after the answer's first tokens
      {S::kQueued, S::kPrefill, S::kActing, S::kPreempted, S::kPrefill, S::kActing, S::kFinished},
      {S::kQueued, S::kFinished},  // cancelled
  };
  for (const std::vector<S>& path : paths) EXPECT_TRUE(is_path(path)) << name(path[path.size() - 2]);
}

TEST(RequestStates, OnlyAdmittedRequestsCompute) {
  for (const S from : kAll) {
    for (const S to : kAll) {
      const bool starts = is_waiting(from) && is_running(to);
      const bool needs_admission = to == S::kPreview || to == S::kLookahead || to == S::kActing;
      EXPECT_FALSE(starts && needs_admission && may_follow(from, to)) << name(from) << " " << name(to);
    }
    EXPECT_EQ(may_follow(from, S::kPreempted), is_running(from) || from == S::kPreempted) << name(from);
  }
  EXPECT_FALSE(may_follow(S::kDecode, S::kPreview));
}

TEST(RequestStates, EveryStateMayEndAndTheEndIsFinal) {
  for (const S state : kAll) {
    EXPECT_EQ(may_follow(state, S::kFinished), state != S::kFinished) << name(state);
    EXPECT_FALSE(may_follow(S::kFinished, state)) << name(state);
    EXPECT_EQ(is_waiting(state) + is_running(state) + (state == S::kFinished), 1) << name(state);
    EXPECT_EQ(std::ranges::count(kAll, name(state), [](S s) { return name(s); }), 1);
  }
}

}  // namespace
}  // namespace vlcache
