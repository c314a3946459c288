// Lookahead tokens, which a sequence computes for its policy and discards: parts of the prompt repeated, a draft.
#include <algorithm>

#include "engine/sequence/sequence.h"

namespace vlcache {

void Sequence::list_lookaheads() {
  const int32_t n = acting().n_tokens;
  lookaheads_ = hooks_->list_lookaheads(n, replay_text_);
  if (n == prompt_.n_tokens) return;
  std::erase_if(lookaheads_, [](const Lookahead& r) { return r.n_draft > 0; });  // the answer does not follow there
}

bool Sequence::replays_prompt() const {
  const auto replays = [](const CaptureRequest& request) { return request.replay.piece > 0; };
  return !planned_ && std::ranges::any_of(policy_->needs(acting()), replays);
}

bool Sequence::look_ahead(FunctionRef<int32_t()> likeliest) {
  if (planned_ || n_done_ < acting().n_tokens) return false;
  if (looking_ahead_) {
    if (n_pending_ > 0) return true;
    if (lookaheads_[n_lookaheads_done_].n_draft > n_tokens() - acting().n_tokens) {
      if (const int32_t token = likeliest(); token >= 0) {
        add_token(token);
        return true;
      }
    }
    discard_lookahead();
    ++n_lookaheads_done_;
  }
  for (; n_lookaheads_done_ < lookaheads_.size(); ++n_lookaheads_done_) {
    const bool draft = lookaheads_[n_lookaheads_done_].n_draft > 0;
    const int32_t token = draft ? likeliest() : -1;
    if (draft && token < 0) continue;
    begin_lookahead();
    if (draft) add_token(token);
    return true;
  }
  return false;
}

void Sequence::begin_lookahead() {
  const auto n = acting().n_tokens;
  tail_.assign(tokens_.begin() + n, tokens_.end());
  tail_states_.assign(states_.begin() + n, states_.end());
  looking_ahead_ = true;
  rewind(n);
  Lookahead& lookahead = lookaheads_[n_lookaheads_done_];
  lookahead.own_position = next_position_;
  if (lookahead.n_draft == 0) {
    lookahead.begin_position = tokens_[static_cast<size_t>(lookahead.begin)].meta.t;
    lookahead.end_position = tokens_[static_cast<size_t>(lookahead.end) - 1].meta.t + 1;
    const int32_t n_sinks = lookahead.replay.n_sinks;
    const bool first = lookahead.begin == n_sinks;
    for (const int32_t id : first ? replay_text_.first : replay_text_.later) add_token(id);
    if (!first) repeat(std::max(n_sinks, lookahead.begin - kReplayOverlap), lookahead.begin);
    for (const int32_t id : replay_text_.suffix) add_token(id);
    lookahead.first_repeated = n_tokens();
    repeat(lookahead.begin, lookahead.end);
  }
  hooks_->begin(lookahead);
}

// Appends tokens [begin, end) of the prompt once more, rows of images among them.
void Sequence::repeat(int32_t begin, int32_t end) {
  images_.repeat(begin, end, n_tokens());
  for (int32_t t = begin; t < end; ++t) {
    const TokenInfo& from = tokens_[static_cast<size_t>(t)];
    const int32_t segment = from.meta.segment;
    const Modality modality = from.meta.modality;
    add_token(from.id, from.token_class);
    tokens_.back().meta.modality = modality;
    tokens_.back().meta.segment = segment;
  }
}

void Sequence::discard_lookahead() {
  if (!looking_ahead_) return;
  looking_ahead_ = false;
  rewind(acting().n_tokens);
  images_.discard_repeated();
  tokens_.insert(tokens_.end(), tail_.begin(), tail_.end());
  states_.insert(states_.end(), tail_states_.begin(), tail_states_.end());
  count_states();
}

}  // namespace vlcache
