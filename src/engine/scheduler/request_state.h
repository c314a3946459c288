// RequestState: where a request stands between its arrival and its end, and which state may follow which.
#pragma once

#include <cstdint>
#include <string_view>

namespace vlcache {

enum class RequestState : uint8_t {
  kQueued,     // waits to be admitted, or for an origin request; has no KV
  kLoading,    // admitted; embeddings of its images, or KV that its next step needs, are being loaded
  kEncoding,   // admitted; an image must be encoded before its next step
  kPrefill,    // its prompt is computed
  kPreview,    // the first layers of its prompt are computed, for the chooser of the tokens to recompute
  kLookahead,  // lookahead tokens are computed for its policy
  kActing,     // its policy compresses its KV, between steps of others
  kDecode,     // its answer is generated
  kPreempted,  // waits to be admitted again without KV; its answer so far stays
  kFinished,   // has ended, with a FinishReason
};

std::string_view name(RequestState state);

// Whether the table of transitions has this one. A state may always follow itself, except kFinished.
bool may_follow(RequestState from, RequestState to);

// Whether it waits for admission: then it has no KV.
constexpr bool is_waiting(RequestState state) {
  return state == RequestState::kQueued || state == RequestState::kPreempted;
}
// Whether it takes part in steps.
constexpr bool is_running(RequestState state) { return !is_waiting(state) && state != RequestState::kFinished; }

}  // namespace vlcache
