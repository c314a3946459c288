#include "engine/sequence/sequence.h"

#include <algorithm>

#include "base/error.h"
#include "engine/hooks/first_slots.h"
#include "policy/parts.h"

namespace vlcache {
namespace {

// Adds the last n slots of every head to what is kept, unchanged, as far as the next row sees them.
void keep_last_slots(PolicySlots& slots, int32_t n, KeepPlan& plan) {
  for (int32_t layer = 0; n > 0 && layer < slots.n_layers(); ++layer) {
    for (int32_t head = 0; head < slots.n_kv_heads(layer); ++head) {
      KeepPlan::Head& kept = plan.layers[static_cast<size_t>(layer)][static_cast<size_t>(head)];
      const auto n_slots = static_cast<int32_t>(slots.tokens(layer, head).size());
      const std::span<const float> bias = slots.bias(layer, head);
      const size_t n_before = kept.keep.size() + kept.merges.size();
      CHECK(n_before == 0 || kept.planes.size() % n_before == 0);
      const size_t n_planes = n_before == 0 ? 0 : kept.planes.size() / n_before;
      const int32_t begin = std::max(n_slots - n, first_in_window(slots, layer, head));
      for (size_t plane = n_planes; plane-- > 0;) {
        const auto end = kept.planes.begin() + static_cast<int64_t>((plane + 1) * n_before);
        kept.planes.insert(end, static_cast<size_t>(n_slots - begin), 0.0f);
      }
      for (int32_t slot = begin; slot < n_slots; ++slot) {
        if (!kept.slot_bias.empty()) kept.slot_bias.push_back(bias.empty() ? 0 : bias[static_cast<size_t>(slot)]);
        kept.keep.push_back(slot);
      }
    }
  }
}

}  // namespace

Sequence::Sequence(const Prompt& prompt, KvCache cache, PolicyPtr policy, const HiddenShape& hidden)
    : cache_(std::move(cache)),
      policy_(std::move(policy)),
      slots_(cache_),
      hidden_(hidden),
      next_token_(static_cast<size_t>(cache_.shape().n_layers()), 0),
      next_token_before_(next_token_) {
  policy_->check_fits(slots_);
  cache_.set_planes(policy_->n_planes());
  cache_.keep_sinks(policy_->pattern().n_sinks);
  continue_with(prompt);
}

Sequence::Sequence(const Sequence& other, PolicyPtr policy)
    : cache_(other.cache_.fork()),
      policy_(std::move(policy)),
      slots_(cache_),
      prompt_(other.prompt_),
      tokens_(other.tokens_),
      images_(other.images_),
      acting_(other.acting_),
      n_exact_(other.n_exact_),
      hidden_(other.hidden_),
      next_token_(other.next_token_),
      next_token_before_(other.next_token_before_) {
  acting_.set_done(true);
  policy_->check_fits(slots_);
  cache_.set_planes(policy_->n_planes());
  cache_.keep_sinks(policy_->pattern().n_sinks);
}

std::unique_ptr<Sequence> Sequence::fork(PolicyPtr policy, const KeepPlan& plan) const {
  CHECK(n_pending() == 0 && !supplied_.any() && !looks_ahead());
  std::unique_ptr<Sequence> copy(new Sequence(*this, std::move(policy)));
  if (!plan.layers.empty()) copy->cache_.compact(plan);
  copy->recomputable_ = recomputable_ && plan.layers.empty() && !copy->policy_->evicts();
  if (!in_prompt()) copy->slots_.note_prompt_end();
  copy->peak_kv_bytes_ = copy->cache_.bytes();
  return copy;
}

// Tokens before the window that the policy recomputes for every token are done; the window's own positions begin at 0.
void Sequence::slide_window() {
  if (const int32_t window = policy_->recompute_window(prompt_); window > 0) tokens_.slide(window);
}

void Sequence::reserve(int32_t n_more) {
  int32_t longest = 0;
  for (int32_t layer = 0; layer < slots_.n_layers(); ++layer) {
    for (int32_t head = 0; head < slots_.n_kv_heads(layer); ++head) {
      longest = std::max(longest, cache_.n_slots(layer, head));
    }
  }
  cache_.reserve(longest + n_pending() + int64_t{n_more} + kPageSlots);  // a rule frees a page's worth at a time
  tokens_.reserve(n_more);
}

void Sequence::add_token(int32_t id, TokenClass token_class) {
  tokens_.add({.id = id, .token_class = token_class});
  if (policy_->keeps_kv()) return;
  release();  // every token is computed again for the next one
}

int32_t Sequence::continue_with(const Prompt& prompt) {
  discard_lookahead();
  const std::vector<Sha256Digest> keys = image_keys(prompt);
  const auto differs = std::ranges::mismatch(tokens(), prompt.tokens, {}, &TokenInfo::id).in1;
  int32_t kept = std::min(images_.n_common(static_cast<int32_t>(differs - tokens().begin()), prompt, keys), n_done());
  // At least one token must be computed, for its logits.
  kept = std::max(0, std::min(kept, prompt.n_tokens() - 1));
  if (images_.salt() != prompt.salt) kept = 0;
  if ((kept < n_done() && !complete()) || !policy_->keeps_kv()) kept = 0;
  if (kept < n_done()) kept = cache_.place_before(kept);
  recomputable_ = kept == 0 || (!policy_->evicts() && exact());
  rewind(kept);
  prompt_ = prompt.shape();
  acting_.list(prompt, kept);
  images_.take(prompt, keys, kept);
  lookahead_.text = prompt.replay_text;
  tokens_.take(prompt.token_infos(), kept);
  slide_window();
  acting_.set_done(acting_.next().n_tokens <= n_done());  // nothing new before that position
  watch_ms_ = 0;
  slots_.forget_prompt_end();
  reset_hooks();
  peak_kv_bytes_ = cache_.bytes();
  coded_bytes_read_before_ = cache_.coded_bytes_read();
  kv_reads_ = {};
  return kept;
}

void Sequence::rewind(int32_t n) {
  CHECK(0 <= n && n <= n_tokens());
  layered_.reset();
  first_ = -1;
  forget_kv_after(n);
  supplied_.truncate(n);
  tokens_.truncate(n);
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
  tokens_.replace(TokenState::kComputed, TokenState::kPending);
  if (!supplied_.any()) {
    n_exact_ = INT32_MAX;
    images_.reset_contents();
  }
  supplied_.enter_again(tokens_);
  slide_window();
  acting_.restart();
  watch_ms_ = 0;
  slots_.forget_prompt_end();
  reset_hooks();
}

void Sequence::assume_computed(int32_t n, int32_t n_exact) {
  const TokenRun run{0, n};
  tokens_.set({&run, 1}, TokenState::kComputed);
  n_exact_ = n_exact;
  std::ranges::fill(next_token_, n);
}

void Sequence::assume_coming(int32_t n, int32_t n_codes, PageSource& source) {
  begin_step();
  try {
    for (int32_t layer = 0; layer < cache_.shape().n_layers(); ++layer) cache_.append_coming(layer, n, n_codes);
  } catch (...) {
    rollback_step();
    throw;
  }
  assume_computed(n, n_exact_);
  page_source_ = &source;
}

void Sequence::supply(std::span<const TokenRun> tokens, SlotSource& source, std::span<const TokenRun> entering) {
  supplied_.add(tokens, source, entering, tokens_);
  if (!tokens.empty()) n_exact_ = std::min(n_exact_, tokens.front().begin);
}

void Sequence::forget_source() {
  if (supplied_.any() && !in_prompt()) {
    supplied_.clear();
    tokens_.replace(TokenState::kLoaded, TokenState::kComputed);
  }
  take_back_supplied();
}

void Sequence::take_back_supplied() {
  if (!supplied_.any()) return;
  supplied_.clear();
  const TokenRun rest{tokens_.find_supplied(0, n_tokens()), n_tokens()};
  if (rest.begin == rest.end) return;
  forget_kv_after(rest.begin);
  tokens_.set({&rest, 1}, TokenState::kPending);
  images_.reset_contents(rest.begin);
}

void Sequence::keep_places(bool regular) {
  if (regular) cache_.keep_regular_places();
  for (const int32_t n : {prompt_.n_tokens - 1, prompt_.n_tokens}) cache_.keep_place(n);  // the same prompt, and more
  const int32_t distance = std::max(kPlaceDistance, 8 * cache_.shape().largest_window());
  int32_t next = INT32_MAX;
  for (auto span = images_.spans().rbegin(); span != images_.spans().rend(); ++span) {
    if (next < INT32_MAX && next - span->end < distance) continue;
    next = span->end;
    cache_.keep_place(next);
  }
}

void Sequence::start_prompt() {
  const RowDropper* dropper = policy_->row_dropper();
  const int32_t end = acting_.next().n_tokens;
  if (dropper == nullptr || acting_.done() || first_ >= 0 || n_done() >= end) return;
  if (acting_.several() || tokens_.find_supplied(n_done(), end) < end) {
    throw Error(ErrorCode::kInput, "KV policy " + policy_->name() +
                                       " computes the prompt layer by layer; it cannot evict while that is computed, "
                                       "and needs all of its new tokens computed");
  }
  std::vector<int32_t> rows = dropper->rows_per_layer(plan_inputs(n_done(), slots_));
  first_ = n_done();
  if (rows.back() == rows.front()) return;  // nothing is dropped: all layers at once
  layered_ = std::make_unique<LayeredPrompt>(TokenRun{first_, end}, std::move(rows), hidden_);
}

StepLayers Sequence::next_runs(int32_t max_rows, std::vector<TokenRun>& runs) {
  start_prompt();
  if (layered_ != nullptr) return layered_->next(max_rows, runs);
  runs.clear();
  int32_t end = in_prompt() ? prompt_.n_tokens : n_tokens();
  if (n_done() < acting_.next().n_tokens) end = acting_.next().n_tokens;
  if (acts_later()) end = std::min(end, acts_at());
  if (looks_ahead()) end = n_tokens();
  for (int32_t t = n_done(); t < end && max_rows > 0; ++t) {
    if (!is_pending(state(t))) continue;
    if (runs.empty() || runs.back().end != t) runs.push_back({t, t});
    ++runs.back().end;
    --max_rows;
  }
  return {};
}

int32_t Sequence::n_prefilled() const {
  if (layered_ == nullptr) return n_done();
  const TokenRun tokens = layered_->tokens();
  return tokens.begin + static_cast<int32_t>(layered_->share_done() * (tokens.end - tokens.begin));
}

double Sequence::n_prompt_left() const {
  if (lookahead_.active) return static_cast<double>(std::ranges::count_if(lookahead_.tail.states, is_pending));
  return layered_ == nullptr ? n_pending() : layered_->n_rows_left();
}

void Sequence::reset_hooks() {
  hooks_.reset();
  plan_.reset();
  rule_.reset();
  lookahead_.all.clear();
  lookahead_.n_done = 0;
}

// Computed tokens on which the policy acts next.
int32_t Sequence::acts_at() const {
  const int32_t n = acting_.next().n_tokens;
  return n == prompt_.n_tokens ? n + policy_->acts_after_tokens() : n;
}

Acted Sequence::apply_policy(Clock::time_point until) {
  if (!policy_->keeps_kv()) {
    if (n_pending() == 0) cache_.truncate(0);  // add_token() makes all tokens pending again
    return Acted::kNot;
  }
  if (layered_ != nullptr && layered_->at_cut()) {
    drop_rows();
    return Acted::kNot;
  }
  if (rule_) return carry_out_rule();
  Acted acted = Acted::kNot;
  if (!acting_.done() && n_done() >= acts_at()) acted = act_after_prompt(until);
  if (acted == Acted::kUnfinished || !policy_->has_rule() || n_done() == 0 || acts_later()) return acted;
  if (!in_prompt() && !slots_.knows_prompt_end()) slots_.note_prompt_end();
  const StepInfo info{.n_tokens = n_done(), .n_prompt = prompt_.n_tokens, .in_prompt = in_prompt(), .tokens = tokens()};
  policy_->on_step(info, slots_);
  KeepPlan plan;
  rule_ = {.plan = {}, .before = acted};
  if (policy_->plan_step(info, slots_, plan)) rule_->plan = std::move(plan);
  return carry_out_rule();
}

// Throws without pages for copies; the rule has seen the step then, and is not asked again.
Acted Sequence::carry_out_rule() {
  Acted acted = rule_->before;
  if (rule_->plan) {
    cache_.compact(*rule_->plan);
    acted = Acted::kCompressed;
  } else {
    cache_.sweep();
  }
  rule_.reset();
  return acted;
}

Acted Sequence::end_answer() { return acts_later() ? act_after_prompt(Clock::time_point::max()) : Acted::kNot; }

PlanInputs Sequence::plan_inputs(int32_t first, const PolicySlots& slots) const {
  const PromptShape& part = acting_.next();
  const auto seen = tokens().first(static_cast<size_t>(part.n_tokens));
  PlanInputs in{.slots = slots, .tokens = seen, .prompt = part, .captures = {}, .first = first, .isa = cache_.isa()};
  if (hooks_ != nullptr) in.captures = hooks_->captures();
  return in;
}

void Sequence::drop_rows() {
  layered_->cut(policy_->row_dropper()->rows_after(plan_inputs(first_, slots_), layered_->last_layer(),
                                                   layered_->rows(), layered_->n_to_keep()));
}

// Makes parts of the plan. False: some are left for the next call.
bool Sequence::make_plan(PlanState& state, Clock::time_point until, bool& evicts) {
  const int32_t n_answer = n_done() - acting_.next().n_tokens, n_parts = policy_->n_plan_parts(slots_);
  FirstSlots prompt_slots(slots_, n_answer);
  const PlanInputs in = plan_inputs(std::max(first_, 0), prompt_slots);
  bool in_time = false;
  do {
    const auto begin = Clock::now();
    evicts = policy_->plan_part(in, state.n_parts_done++, state.plan);
    const auto now = Clock::now();
    in_time = until - now > now - begin;  // the next part takes about as long
  } while (evicts && state.n_parts_done < n_parts && in_time);
  if (evicts && state.n_parts_done < n_parts) return false;
  watch_ms_ += hooks_ != nullptr ? hooks_->watch_ms() : 0;
  if (evicts) keep_last_slots(slots_, n_answer, state.plan);
  return true;
}

Acted Sequence::act_after_prompt(Clock::time_point until) {
  CHECK(lookahead_.n_done == lookahead_.all.size());  // look_ahead() was called
  PlanState state = plan_ ? std::move(*plan_) : PlanState{};
  plan_.reset();  // what throws begins it again
  bool evicts = true;
  if (!state.complete) state.complete = make_plan(state, until, evicts);
  if (evicts) plan_ = std::move(state);
  if (evicts && !plan_->complete) return Acted::kUnfinished;
  if (evicts) cache_.compact(plan_->plan);  // without pages for copies it is tried again
  plan_.reset();
  const int32_t n_answer = n_done() - acting_.next().n_tokens;
  acting_.advance();
  if (!acting_.done()) {
    reset_hooks();
  } else {
    if (hooks_ != nullptr) hooks_->end_prompt();
    layered_.reset();
    if (n_answer > 0) slots_.note_prompt_end(n_answer);
  }
  return evicts ? Acted::kCompressed : Acted::kNot;
}

LayerHooks* Sequence::policy_hooks(Backend& backend) {
  if (hooks_ == nullptr) {
    if (acting_.done() && !policy_->wants_scores()) return nullptr;
    hooks_ = std::make_unique<PolicyHooks>(backend, *policy_, acting_.next(), slots_);
    if (acting_.done()) hooks_->end_prompt();
    if (hooks_->needs_whole_prompt() && acting_.several()) {
      const bool repeats = !hooks_->needs_all_rows();
      hooks_.reset();
      throw Error(ErrorCode::kInput, "KV policy " + policy_->name() +
                                         (repeats ? " repeats the whole prompt after itself"
                                                  : " needs the attention of the whole prompt") +
                                         "; it cannot evict while that is computed");
    }
    const int32_t n_prompt = acting_.next().n_tokens;
    const auto prompt_states = tokens_.states().first(static_cast<size_t>(acting_.done() ? 0 : n_prompt));
    const auto missing = std::ranges::count_if(prompt_states, [](TokenState s) { return s != TokenState::kPending; });
    if (hooks_->needs_all_rows() && missing > 0) {
      hooks_.reset();
      throw Error(ErrorCode::kInput, "KV policy " + policy_->name() + " needs the attention of every prompt token; " +
                                         std::to_string(missing) + " of " + std::to_string(n_prompt) +
                                         " come from a cache and are not computed");
    }
    if (!acting_.done()) list_lookaheads();
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
  if (n_rows > 1 || supplied_.any()) cache_.reserve(n_tokens());
}

void Sequence::finish_step(std::span<const TokenRun> runs, bool last_layer) {
  peak_kv_bytes_ = std::max(peak_kv_bytes_, cache_.bytes());
  // Tokens that may be taken back; slots of windowed layers that a plan for the prompt may keep.
  cache_.hold_values(lookahead_.active || supplied_.any() || (acts_later() && cache_.shape().largest_window() > 0));
  cache_.end_step();
  TokenRun all;  // of a prompt computed layer by layer, with the tokens that were dropped on the way
  if (layered_ != nullptr) {
    layered_->finish_step();
    last_layer = layered_->done();
    all = layered_->tokens();
    runs = {&all, 1};
  }
  if (last_layer) tokens_.finish(runs);
}

KvView Sequence::append(int32_t layer, std::span<const int32_t> run, int32_t* lengths) {
  int32_t& next = next_token_[static_cast<size_t>(layer)];
  CHECK(run.front() >= next);
  if (page_source_ != nullptr) page_source_->fill(layer);
  if (supplied_.any() && cache_.shape().n_own_heads(layer) > 0) {
    supplied_.append(tokens_, layer, next, run.front(), cache_);
  }
  next = run.back() + 1;
  return cache_.append(layer, run, lengths, tokens_.biases(run, biases_));
}

bool Sequence::supplies(int32_t after, int32_t before) const {
  return supplied_.any() && tokens_.find_supplied(after + 1, before) < before;
}

}  // namespace vlcache
