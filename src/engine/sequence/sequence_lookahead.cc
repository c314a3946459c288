// Lookahead tokens, which a sequence computes for its policy and discards: parts of the prompt repeated, a draft.
#include <algorithm>

#include "engine/sequence/sequence.h"

namespace vlcache {

void Sequence::list_lookaheads() {
  const int32_t n = acting_.next().n_tokens;
  lookahead_.all = hooks_->list_lookaheads(n, lookahead_.text);
  // The answer does not follow there, or is the draft itself.
  const bool drafts = n == prompt_.n_tokens && policy_->acts_after_tokens() == 0;
  if (!drafts) std::erase_if(lookahead_.all, [](const Lookahead& r) { return r.n_draft > 0; });
}

bool Sequence::replays_prompt() const {
  const auto replays = [](const CaptureRequest& request) { return request.replay.piece > 0; };
  return !acting_.done() && std::ranges::any_of(policy_->needs(acting_.next()), replays);
}

bool Sequence::look_ahead(FunctionRef<int32_t()> likeliest) {
  LookaheadState& l = lookahead_;
  const int32_t n_prompt = acting_.next().n_tokens;
  if (acting_.done() || n_done() < n_prompt) return false;
  if (l.active) {
    if (n_pending() > 0) return true;
    if (l.all[l.n_done].n_draft > n_tokens() - n_prompt) {
      if (const int32_t token = likeliest(); token >= 0) {
        add_token(token);
        return true;
      }
    }
    discard_lookahead();
    ++l.n_done;
  }
  for (; l.n_done < l.all.size(); ++l.n_done) {
    const bool draft = l.all[l.n_done].n_draft > 0;
    const int32_t token = draft ? likeliest() : -1;
    if (draft && token < 0) continue;
    begin_lookahead();
    if (draft) add_token(token);
    return true;
  }
  return false;
}

void Sequence::begin_lookahead() {
  const auto n = acting_.next().n_tokens;
  lookahead_.tail = tokens_.tail(n);
  lookahead_.active = true;
  rewind(n);
  Lookahead& lookahead = lookahead_.all[lookahead_.n_done];
  lookahead.first_own = n;
  if (lookahead.n_draft == 0) {
    const int32_t n_skipped = lookahead.replay.n_skipped;
    const bool first = lookahead.begin == n_skipped;
    for (const int32_t id : first ? lookahead_.text.first : lookahead_.text.later) add_token(id);
    if (!first) repeat(std::max(n_skipped, lookahead.begin - kReplayOverlap), lookahead.begin);
    for (const int32_t id : lookahead_.text.suffix) add_token(id);
    lookahead.first_repeated = n_tokens();
    repeat(lookahead.begin, lookahead.end);
  }
  hooks_->begin(lookahead);
}

// Appends tokens [begin, end) of the prompt once more, rows of images among them.
void Sequence::repeat(int32_t begin, int32_t end) {
  images_.repeat(begin, end, n_tokens());
  tokens_.repeat(begin, end);
}

void Sequence::discard_lookahead() {
  if (!lookahead_.active) return;
  lookahead_.active = false;
  rewind(acting_.next().n_tokens);
  images_.discard_repeated();
  tokens_.append(lookahead_.tail);
}

}  // namespace vlcache
