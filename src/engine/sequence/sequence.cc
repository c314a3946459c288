#include "engine/sequence/sequence.h"

#include <algorithm>

#include "base/error.h"

namespace vlcache {

Sequence::Sequence(const Prompt& prompt, KvCache cache, PolicyPtr policy, const HiddenShape& hidden)
    : cache_(std::move(cache)),
      policy_(std::move(policy)),
      slots_(cache_),
      hidden_(hidden),
      next_token_(static_cast<size_t>(cache_.shape().n_layers()), 0),
      next_token_before_(next_token_) {
  policy_->check_fits(slots_);
  cache_.set_planes(policy_->n_planes());
  continue_with(prompt);
}

Sequence::Sequence(const Sequence& other, PolicyPtr policy)
    : cache_(other.cache_.fork()),
      policy_(std::move(policy)),
      slots_(cache_),
      prompt_(other.prompt_),
      places_(other.places_),
      place_(other.place_),
      images_(other.images_),
      tokens_(other.tokens_),
      states_(other.states_),
      n_done_(other.n_done_),
      n_pending_(other.n_pending_),
      next_position_(other.next_position_),
      planned_(true),
      n_exact_(other.n_exact_),
      hidden_(other.hidden_),
      next_token_(other.next_token_),
      next_token_before_(other.next_token_before_) {
  policy_->check_fits(slots_);
  cache_.set_planes(policy_->n_planes());
}

std::unique_ptr<Sequence> Sequence::fork(PolicyPtr policy, const KeepPlan& plan) const {
  CHECK(n_pending_ == 0 && source_ == nullptr && !looking_ahead_);
  std::unique_ptr<Sequence> copy(new Sequence(*this, std::move(policy)));
  if (!plan.layers.empty()) copy->cache_.compact(plan);
  if (!in_prompt()) copy->slots_.note_prompt_end();
  copy->peak_kv_bytes_ = copy->cache_.bytes();
  return copy;
}

namespace {

bool waits(TokenState state) { return state == TokenState::kPending || state == TokenState::kEntering; }
bool is_loaded(TokenState state) { return state == TokenState::kLoaded || state == TokenState::kEntering; }

}  // namespace

void Sequence::count_states() {
  n_pending_ = static_cast<int32_t>(std::ranges::count_if(states_, waits));
  n_done_ = static_cast<int32_t>(std::ranges::find_if(states_, waits) - states_.begin());
  next_position_ = 0;
  for (size_t i = 0; i < tokens_.size(); ++i) {
    if (states_[i] != TokenState::kOutside) next_position_ = std::max(next_position_, tokens_[i].meta.t + 1);
  }
}

// Tokens before the window that the policy recomputes for every token are done; the window's own tokens are numbered
// from 0.
void Sequence::slide_window() {
  const int32_t window = policy_->recompute_window(prompt_);
  if (window == 0) return;
  const int32_t begin = std::max(0, n_tokens() - window);
  std::fill_n(states_.begin(), begin, TokenState::kOutside);
  std::replace(states_.begin() + begin, states_.end(), TokenState::kOutside, TokenState::kPending);  // after a rewind
  for (int32_t t = begin; t < n_tokens(); ++t) tokens_[static_cast<size_t>(t)].meta.t = t - begin;
}

void Sequence::reserve(int32_t n_more) {
  int32_t longest = 0;
  for (int32_t layer = 0; layer < slots_.n_layers(); ++layer) {
    for (int32_t head = 0; head < slots_.n_kv_heads(layer); ++head) {
      longest = std::max(longest, cache_.n_slots(layer, head));
    }
  }
  cache_.reserve(longest + n_pending_ + int64_t{n_more} + kPageSlots);  // a rule frees a page's worth at a time
  tokens_.reserve(tokens_.size() + static_cast<size_t>(n_more));
  states_.reserve(states_.size() + static_cast<size_t>(n_more));
}

void Sequence::add_token(int32_t id, TokenClass token_class) {
  tokens_.push_back({.id = id, .token_class = token_class, .meta = {.t = next_position_++}});
  states_.push_back(TokenState::kPending);
  ++n_pending_;
  if (policy_->keeps_kv()) return;
  release();  // every token is computed again for the next one
}

int32_t Sequence::continue_with(const Prompt& prompt) {
  discard_lookahead();
  const std::vector<Sha256Digest> keys = image_keys(prompt);
  const auto differs = std::ranges::mismatch(tokens_, prompt.tokens, {}, &TokenInfo::id).in1;
  int32_t kept = std::min(images_.n_common(static_cast<int32_t>(differs - tokens_.begin()), prompt, keys), n_done_);
  // At least one token must be computed, for its logits.
  kept = std::max(0, std::min(kept, prompt.n_tokens() - 1));
  if (images_.salt() != prompt.salt) kept = 0;
  if ((kept < n_done_ && !complete()) || !policy_->keeps_kv()) kept = 0;
  rewind(kept);
  prompt_ = prompt.shape();
  list_places(prompt);
  images_.take(prompt, keys, kept);
  replay_text_ = prompt.replay_text;
  tokens_ = prompt.token_infos();
  states_.resize(tokens_.size(), TokenState::kPending);
  slide_window();
  count_states();
  planned_ = acting().n_tokens <= n_done_;  // nothing new before that position
  watch_ms_ = 0;
  slots_.forget_prompt_end();
  reset_hooks();
  peak_kv_bytes_ = cache_.bytes();
  return kept;
}

void Sequence::rewind(int32_t n) {
  CHECK(0 <= n && n <= n_tokens());
  layered_.reset();
  first_ = -1;
  forget_kv_after(n);
  for (TokenRun& run : entering_) run.end = std::min(run.end, n);
  tokens_.resize(static_cast<size_t>(n));
  states_.resize(static_cast<size_t>(n));
  count_states();
}

void Sequence::forget_kv_after(int32_t n) {
  cache_.truncate(n);
  for (int32_t& next : next_token_) next = std::min(next, n);
  if (n <= n_exact_) n_exact_ = INT32_MAX;
}

void Sequence::release() {
  discard_lookahead();
  layered_.reset();
  first_ = -1;
  cache_.clear();
  std::ranges::fill(next_token_, 0);
  std::ranges::replace(states_, TokenState::kComputed, TokenState::kPending);
  if (source_ == nullptr) {
    n_exact_ = INT32_MAX;
    images_.reset_contents();
  }
  mark_entering();
  slide_window();
  count_states();
  planned_ = false;
  place_ = 0;
  watch_ms_ = 0;
  slots_.forget_prompt_end();
  reset_hooks();
}

void Sequence::assume_computed(int32_t n, int32_t n_exact) {
  std::fill_n(states_.begin(), n, TokenState::kComputed);
  n_exact_ = n_exact;
  std::ranges::fill(next_token_, n);
  count_states();
}

void Sequence::mark_entering() {
  for (const TokenRun& run : entering_) {
    for (int32_t t = run.begin; t < std::min(run.end, n_tokens()); ++t) {
      TokenState& state = states_[static_cast<size_t>(t)];
      CHECK(is_loaded(state));
      state = TokenState::kEntering;
    }
  }
}

void Sequence::supply(std::span<const TokenRun> tokens, SlotSource& source, std::span<const TokenRun> entering) {
  CHECK(source_ == nullptr || source_ == &source);
  source_ = &source;
  for (const TokenRun& run : tokens) {
    CHECK(0 <= run.begin && run.begin <= run.end && run.end < n_tokens());
    for (int32_t t = run.begin; t < run.end; ++t) {
      TokenState& state = states_[static_cast<size_t>(t)];
      CHECK(state == TokenState::kPending);
      state = TokenState::kLoaded;
    }
  }
  entering_.assign(entering.begin(), entering.end());
  if (!tokens.empty()) n_exact_ = std::min(n_exact_, tokens.front().begin);
  mark_entering();
  count_states();
}

void Sequence::forget_source() {
  if (source_ != nullptr && !in_prompt()) {
    source_ = nullptr;
    entering_.clear();
    std::ranges::replace(states_, TokenState::kLoaded, TokenState::kComputed);
  }
  take_back_supplied();
}

void Sequence::take_back_supplied() {
  if (source_ == nullptr) return;
  source_ = nullptr;
  entering_.clear();
  const auto first = std::ranges::find_if(states_, is_loaded);
  if (first == states_.end()) return;
  const auto n = static_cast<int32_t>(first - states_.begin());
  forget_kv_after(n);
  std::fill(first, states_.end(), TokenState::kPending);
  images_.reset_contents(n);
  count_states();
}

void Sequence::start_prompt() {
  const RowDropper* dropper = policy_->row_dropper();
  if (dropper == nullptr || planned_ || first_ >= 0 || n_done_ >= acting().n_tokens) return;
  const auto first = states_.begin() + n_done_, last = states_.begin() + acting().n_tokens;
  if (places_.size() > 1 || std::find_if(first, last, is_loaded) < last) {
    throw Error(ErrorCode::kInput, "KV policy " + policy_->name() +
                                       " computes the prompt layer by layer; it cannot evict while that is computed, "
                                       "and needs all of its new tokens computed");
  }
  std::vector<int32_t> rows = dropper->rows_per_layer(plan_inputs(n_done_));
  first_ = n_done_;
  if (rows.back() == rows.front()) return;  // nothing is dropped: all layers at once
  layered_ = std::make_unique<LayeredPrompt>(TokenRun{first_, acting().n_tokens}, std::move(rows), hidden_);
}

StepLayers Sequence::next_runs(int32_t max_rows, std::vector<TokenRun>& runs) {
  start_prompt();
  if (layered_ != nullptr) return layered_->next(max_rows, runs);
  runs.clear();
  int32_t end = in_prompt() ? prompt_.n_tokens : n_tokens();
  if (n_done_ < acting().n_tokens) end = acting().n_tokens;
  if (looking_ahead_) end = n_tokens();
  for (int32_t t = n_done_; t < end && max_rows > 0; ++t) {
    if (!waits(state(t))) continue;
    if (runs.empty() || runs.back().end != t) runs.push_back({t, t});
    ++runs.back().end;
    --max_rows;
  }
  return {};
}

int32_t Sequence::n_prefilled() const {
  if (layered_ == nullptr) return n_done_;
  const TokenRun tokens = layered_->tokens();
  return tokens.begin + static_cast<int32_t>(layered_->share_done() * (tokens.end - tokens.begin));
}

// Where the policy is to act: after each evict_every computed tokens, and at last where the prompt states.
void Sequence::list_places(const Prompt& prompt) {
  const PromptShape last = prompt.acting_shape();
  places_.clear();
  place_ = 0;
  if (prompt.evict_every > 0) {
    const int32_t every = prompt.evict_every;
    for (int32_t n = (n_done_ / every + 1) * every; n < last.n_tokens; n += every)
      places_.push_back(prompt.shape_until(n));
  }
  places_.push_back(last);
}

void Sequence::reset_hooks() {
  hooks_.reset();
  lookaheads_.clear();
  n_lookaheads_done_ = 0;
}

bool Sequence::apply_policy() {
  if (!policy_->keeps_kv()) {
    if (n_pending_ == 0) cache_.truncate(0);  // add_token() makes all tokens pending again
    return false;
  }
  if (layered_ != nullptr && layered_->at_cut()) {
    drop_rows();
    return false;
  }
  const bool compressed = n_done_ >= acting().n_tokens && !planned_ && act_after_prompt();
  if (!policy_->has_rule() || n_done_ == 0) return compressed;
  if (!in_prompt() && !slots_.knows_prompt_end()) slots_.note_prompt_end();
  int32_t last = 0;
  if (n_done_ == n_tokens()) {
    last = next_position_ - 1;
  } else {
    for (int32_t t = 0; t < n_done_; ++t) last = std::max(last, tokens_[static_cast<size_t>(t)].meta.t);
  }
  const StepInfo info{.n_tokens = n_done_,
                      .last_position = last,
                      .n_prompt = prompt_.n_tokens,
                      .in_prompt = in_prompt(),
                      .tokens = tokens_};
  policy_->on_step(info, slots_);
  KeepPlan plan;
  if (policy_->plan_step(info, slots_, plan)) {
    cache_.compact(plan);
    return true;
  }
  cache_.sweep();
  return compressed;
}

PlanInputs Sequence::plan_inputs(int32_t first) const {
  const auto seen = std::span(tokens_).first(static_cast<size_t>(acting().n_tokens));
  PlanInputs in{.slots = slots_, .tokens = seen, .prompt = acting(), .captures = {}, .first = first};
  if (hooks_ != nullptr) in.captures = hooks_->captures();
  return in;
}

void Sequence::drop_rows() {
  layered_->cut(policy_->row_dropper()->rows_after(plan_inputs(first_), layered_->last_layer(), layered_->rows(),
                                                   layered_->n_to_keep()));
}

bool Sequence::act_after_prompt() {
  CHECK(n_lookaheads_done_ == lookaheads_.size());  // look_ahead() was called
  KeepPlan plan;
  const PlanInputs in = plan_inputs(std::max(first_, 0));
  watch_ms_ += hooks_ != nullptr ? hooks_->watch_ms() : 0;
  const bool something_goes = policy_->plan(in, plan);
  if (something_goes) cache_.compact(plan);
  if (place_ + 1 < places_.size()) {
    ++place_;
    reset_hooks();
  } else {
    if (hooks_ != nullptr) hooks_->end_prompt();
    layered_.reset();
    planned_ = true;
  }
  return something_goes;
}

LayerHooks* Sequence::policy_hooks(Backend& backend) {
  if (hooks_ == nullptr) {
    if (planned_ && !policy_->wants_scores()) return nullptr;
    hooks_ = std::make_unique<PolicyHooks>(backend, *policy_, acting(), slots_);
    if (planned_) hooks_->end_prompt();
    if (hooks_->needs_whole_prompt() && places_.size() > 1) {
      const bool repeats = !hooks_->needs_all_rows();
      hooks_.reset();
      throw Error(ErrorCode::kInput, "KV policy " + policy_->name() +
                                         (repeats ? " repeats the whole prompt after itself"
                                                  : " needs the attention of the whole prompt") +
                                         "; it cannot evict while that is computed");
    }
    const auto prompt_states = std::span(states_).first(static_cast<size_t>(planned_ ? 0 : acting().n_tokens));
    const auto missing = std::ranges::count_if(prompt_states, [](TokenState s) { return s != TokenState::kPending; });
    if (hooks_->needs_all_rows() && missing > 0) {
      hooks_.reset();
      throw Error(ErrorCode::kInput, "KV policy " + policy_->name() + " needs the attention of every prompt token; " +
                                         std::to_string(missing) + " of " + std::to_string(acting().n_tokens) +
                                         " come from a cache and are not computed");
    }
    if (!planned_) list_lookaheads();
  }
  return hooks_->active() ? hooks_.get() : nullptr;
}

void Sequence::begin_step() noexcept {
  cache_.begin_step();
  next_token_before_ = next_token_;
}

void Sequence::rollback_step() noexcept {
  cache_.rollback_step();
  std::swap(next_token_, next_token_before_);
}

void Sequence::make_room(int32_t n_rows) {
  if (n_rows > 1 || source_ != nullptr) cache_.reserve(n_tokens());
}

void Sequence::finish_step(std::span<const TokenRun> runs, bool last_layer) {
  peak_kv_bytes_ = std::max(peak_kv_bytes_, cache_.bytes());
  TokenRun all;  // of a prompt computed layer by layer, with the tokens that were dropped on the way
  if (layered_ != nullptr) {
    layered_->finish_step();
    last_layer = layered_->done();
    all = layered_->tokens();
    runs = {&all, 1};
  }
  if (!last_layer) return;
  for (const TokenRun& run : runs) {
    for (int32_t t = run.begin; t < run.end; ++t) {
      TokenState& state = states_[static_cast<size_t>(t)];
      if (!waits(state)) continue;  // of loaded tokens, only the first layers were computed
      state = state == TokenState::kPending ? TokenState::kComputed : TokenState::kLoaded;
      --n_pending_;
    }
  }
  while (n_done_ < n_tokens() && !waits(state(n_done_))) ++n_done_;
}

KvView Sequence::append(int32_t layer, const RunTokens& run, int32_t* lengths) {
  int32_t& next = next_token_[static_cast<size_t>(layer)];
  CHECK(run.indices.front() >= next);
  if (source_ != nullptr && cache_.shape().n_own_heads(layer) > 0) {
    gap_tokens_.clear();
    gap_positions_.clear();
    for (int32_t t = next; t < run.indices.front(); ++t) {
      if (is_loaded(state(t))) gap_tokens_.push_back(t);
    }
    if (!gap_tokens_.empty()) source_->leave_out_missing(layer, gap_tokens_);
    for (const int32_t t : gap_tokens_) gap_positions_.push_back(tokens_[static_cast<size_t>(t)].meta.t);
    if (!gap_tokens_.empty()) {
      gap_lengths_.resize(static_cast<size_t>(cache_.shape().layers[static_cast<size_t>(layer)].n_kv_heads));
      const KvView gap = cache_.append(layer, gap_tokens_, gap_positions_, gap_lengths_.data());
      source_->load(layer, {gap_tokens_, gap_positions_}, gap);
    }
  }
  next = run.indices.back() + 1;
  return cache_.append(layer, run.indices, run.positions, lengths);
}

bool Sequence::supplies(int32_t after, int32_t before) const {
  if (source_ == nullptr) return false;
  const auto first = states_.begin() + after + 1, last = states_.begin() + before;
  return std::find_if(first, last, is_loaded) < last;
}

}  // namespace vlcache
