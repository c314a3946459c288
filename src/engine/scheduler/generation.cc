#include "engine/scheduler/generation.h"

#include <algorithm>
#include <utility>

#include "base/numeric/divergence.h"
#include "engine/engine_caches.h"
#include "engine/reuse/prefix_reuse.h"
#include "engine/scheduler/image_selection.h"
#include "engine/scheduler/token_stream.h"
#include "engine/scheduler/waiting_prompt.h"
#include "engine/sequence/sequence.h"
#include "io/tokenizer/tokenizer.h"

namespace vlcache {
namespace {

// Answers up to this length have room in the tables, so that their steps allocate nothing.
constexpr int32_t kRoomTokens = 1024;

KvCaches& caches_of(Engine& engine, const Request& request) {
  CHECK(request.sequence != nullptr || request.policy != nullptr);
  if (request.sequence != nullptr) return engine.caches().of(request.sequence->codec());
  return engine.caches().of(request.kv_codec.value_or(default_codec(engine, *request.policy)));
}

}  // namespace

Generation::Generation(Engine& engine, Request request)
    : engine_(engine),
      request_(std::move(request)),
      kv_(caches_of(engine, request_)),
      sequence_(request_.sequence),
      images_(engine, kv_, request_, result_),
      progress_(engine, request_),
      begin_(request_.asked_at.value_or(Clock::now())) {
  result_.timings.queue_ms = ms_since(begin_);
  const GenerateOptions& options = request_.options;
  if (options.max_tokens < 0) {
    throw Error(ErrorCode::kInput, "max_tokens: expected an integer >= 0, found " + std::to_string(options.max_tokens));
  }
  const Policy& policy = sequence_ != nullptr ? sequence_->policy() : *request_.policy;
  if (request_.callbacks.on_logits != nullptr && policy.row_dropper() != nullptr) {
    throw Error(ErrorCode::kInput, "logits of every prompt token: KV policy " + policy.name() +
                                       " drops tokens on their way through the layers; choose another");
  }
  const auto n_given = static_cast<int32_t>(request_.given.size());
  const PromptExtent extent = sequence_ != nullptr ? PromptExtent{sequence_->n_tokens(), sequence_->next_position()}
                                                   : extent_seen(request_.prompt, policy);
  check_suits(engine.model().config(), policy);
  check_codec_suits(codec(), policy);
  check_prompt_fits(engine, policy, extent.with(n_given), options.max_tokens);
  stream_ = std::make_unique<TokenStream>(engine, request_);
  result_.has_logprobs = options.sampling.n_logprobs >= 0;
  result_.timings.load_ms = engine.load_ms();
  const int32_t n_dropped = request_.prompt.selection ? request_.prompt.selection->n_dropped : 0;
  result_.n_prompt = request_.prompt.n_tokens() + n_dropped + n_given;
  result_.n_vision = request_.prompt.n_vision_tokens() + n_dropped;
  result_.kv.mode = policy.name();
  result_.kv.codec = codec();
  find_stored_prefix(policy);
}

Generation::~Generation() = default;

KvCodec Generation::codec() const { return kv_.codec(); }

void Generation::enter(RequestState state) {
  CHECK(may_follow(state_, state));
  state_ = state;
}

// What its next step computes, if nothing has to be loaded or encoded before.
RequestState Generation::computing() const {
  if (sequence_->looks_ahead()) return RequestState::kLookahead;
  return has_tokens() && !sequence_->in_prompt() ? RequestState::kDecode : RequestState::kPrefill;
}

RequestState Generation::next_state() {
  if (state_ == RequestState::kActing) return state_;
  if (images_.encodes()) {
    enter(RequestState::kEncoding);
  } else if (awaits_load(Deadline::min())) {
    enter(RequestState::kLoading);
  } else if (state_ == RequestState::kLoading || state_ == RequestState::kEncoding) {
    enter(computing());
  }
  return state_;
}

bool Generation::awaits_search(Deadline until) {
  if (prefix_load_.pending(until)) return true;
  return images_.awaits_search(std::max(sequence_ != nullptr ? sequence_->n_done() : 0, prefix_load_.n_known()), until);
}

WaitingPrompt& Generation::waiting_prompt() {
  if (waiting_prompt_ == nullptr) {
    ReuseOptions options = request_.reuse;
    options.prefix = takes_prefix();
    const Policy& policy = sequence_ != nullptr ? sequence_->policy() : *request_.policy;
    waiting_prompt_ = std::make_unique<WaitingPrompt>(engine_, kv_, request_.prompt, images_.list(), policy, options,
                                                      images_.search(), sequence_ != nullptr ? sequence_->n_done() : 0);
  }
  return *waiting_prompt_;
}

std::span<const Element> Generation::promised() {
  if (sequence_ == nullptr || images_.reuse() == nullptr) return {};
  if (!promised_) promised_ = PrefixReuse::promise(engine_, *sequence_, request_.prompt, request_.reuse);
  return *promised_;
}

// Per-token logits need every token computed, so prefix reuse is disabled.
bool Generation::takes_prefix() const { return request_.reuse.prefix && request_.callbacks.on_logits == nullptr; }

void Generation::start() {
  images_.search().start();
  progress_.start();
  if (sequence_ == nullptr) {
    select_image_tokens(engine_, *request_.policy, request_.prompt, /*earlier=*/nullptr,
                        [this](const ComputeWork& done) { progress_.encoded(done); });
    own_sequence_ = engine_.new_sequence(request_.prompt, request_.policy, codec());
    sequence_ = own_sequence_.get();
  }
  find_prefix();
  sequence_->start_prompt();
  make_room();
  if (request_.prompt.selection) {
    result_.timings.compress_ms = select_ms_ += std::exchange(request_.prompt.selection->select_ms, 0);
  }
  images_.start(*sequence_);
  promised_.reset();  // the images may differ now
  // KV that it left in the cache itself, when it was preempted, is no hit.
  n_found_ = std::min(n_found_, result_.cache.n_prefix_tokens);
  result_.cache.n_prefix_tokens = n_found_;
  result_.cache.prefix_sources = prefix_load_.sources(n_found_);
  waiting_prompt_.reset();
  enter(computing());
  progress_.begin(*sequence_, images_, n_found_);
}

std::vector<Request> Generation::take_origins() {
  std::vector<Request> origins = images_.take_origins();
  if (origins.empty()) return origins;
  progress_.await_origins(origins, *sequence_);
  if (own_sequence_ != nullptr || prefix_load_.incomplete()) {
    release();
  } else {
    images_.stop_reuse();  // the caller's sequence keeps its KV
  }
  enter(RequestState::kQueued);
  return origins;
}

bool Generation::go_on_without_load() {
  switch (prefix_load_.take_want()) {
    case PrefixLoad::Want::kNone:
      break;
    case PrefixLoad::Want::kComes:
      return true;
    case PrefixLoad::Want::kMissed:
      preempt();
      return true;
  }
  const ImagePlacement::Want want = images_.take_want();
  if (want == ImagePlacement::Want::kMissed) place_rest();
  return want != ImagePlacement::Want::kNone;
}

void Generation::place_rest() {
  images_.start_rest();
  promised_.reset();
}

void Generation::find_prefix() {
  prefix_ = std::make_unique<PrefixReuse>();
  ReuseOptions options = request_.reuse;
  if (const int32_t most = prefix_load_.begins_at(); most < INT32_MAX) {
    options.chooser = nullptr;  // what is exact comes first
    options.prefix_most = most;
  }
  // Per-token logits need every token computed, so prefix reuse is disabled.
  result_.cache.prefix_reason = request_.callbacks.on_logits != nullptr
                                    ? "the logits of all tokens are wanted"
                                    : prefix_->begin(engine_, *sequence_, request_.prompt, options, images_.search());
  if (prefix_load_.comes()) {
    prefix_load_.begin(*sequence_, prefix_->n_allowed());
    if (sequence_->n_done() >= prefix_->n_allowed() && prefix_->n_allowed() > 0) result_.cache.prefix_reason.clear();
  }
  if (!prefix_load_.obstacle().empty()) result_.cache.prefix_reason = prefix_load_.obstacle();
  const bool cached = request_.reuse.prefix;
  if (cached || own_sequence_ == nullptr) sequence_->keep_places(/*regular=*/cached);
}

void Generation::keep_prefix(bool whole_pages) {
  if (!request_.reuse.prefix || request_.reuse.shadow || sequence_->looks_ahead()) return;
  promised_.emplace();
  const int32_t n_computed = std::max(1, sequence_->prompt_shape().n_tokens - result_.cache.n_prefix_tokens);
  const int32_t n = PrefixReuse::keep(engine_, *sequence_, result_.timings.prefill_ms / n_computed, whole_pages);
  if (own_sequence_ != nullptr) sequence_->cache().forget_places();  // the cache has them
  if (n > 0) sequence_->cache().forget_window_places(n);
}

// The prompt is computed.
void Generation::note_prefix() {
  if (!request_.reuse.prefix || request_.reuse.shadow || noted_prefix_) return;
  noted_prefix_ = true;
  const int32_t n_computed = sequence_->prompt_shape().n_tokens - result_.cache.n_prefix_tokens;
  const double ms = result_.timings.prefill_ms + result_.timings.vision_ms;
  EngineCaches& caches = engine_.caches();
  caches.prompt_computed(n_computed, ms);
  // A prompt of which little was computed says nothing of what all of it costs.
  double ms_per_token = ms / std::max(1, n_computed);
  if (n_computed < kPageSlots && caches.ms_per_token() > 0) ms_per_token = caches.ms_per_token();
  if (n_computed < kPageSlots && prefix_load_.ms_per_token() > 0) ms_per_token = prefix_load_.ms_per_token();
  result_.cache.saved_ms =
      result_.cache.n_prefix_tokens * (caches.ms_per_token() > 0 ? caches.ms_per_token() : prefix_load_.ms_per_token());
  const bool stays = !sequence_->policy().evicts() || request_.reuse.keep_exact;
  PrefixReuse::note_use(engine_, *sequence_, prefix_load_.prefix(), ms_per_token, stays);
}

// Asks the tiers for the prompt's beginning.
void Generation::find_stored_prefix(const Policy& policy) {
  PrefixSaver* const saver = kv_.prefix_saver();
  if (saver == nullptr || saver->when() == PrefixSaving::kOff || !takes_prefix() || request_.reuse.shadow) return;
  const bool shortened = !policy.vision_layers().empty();  // a policy chooses among the image tokens first
  if (shortened || (sequence_ != nullptr && sequence_->n_done() > 0)) return;
  if (request_.prompt.n_tokens() < kFewestStored) return;
  if (!prefix_obstacle(policy, request_.prompt, request_.reuse).empty()) return;
  const std::vector<TokenInfo> tokens = request_.prompt.token_infos();
  prefix_load_ = PrefixLoad(engine_, {tokens, images_.list(), request_.prompt.salt, codec()});
}

void Generation::make_room() {
  const auto n_given = static_cast<int32_t>(std::min<size_t>(request_.given.size(), kRoomTokens));
  sequence_->reserve(std::min(request_.options.max_tokens, kRoomTokens - n_given) + n_given);
}

void Generation::preempt() {
  if (!sequence_->recomputable()) {
    throw Error(ErrorCode::kOutOfPages,
                "KV cache is full: another request needs the pages of this conversation, whose earlier turns were "
                "compressed and cannot be computed again; raise --kv-memory");
  }
  images_.keep_decisions();
  release();
  ++result_.preemptions.n_times;
  enter(RequestState::kPreempted);
}

bool Generation::give_up_prefix() { return prefix_ != nullptr && prefix_->give_up(); }

void Generation::release() {
  images_.stop();
  sequence_->discard_lookahead();
  if (!prefix_load_.stop()) keep_prefix(/*whole_pages=*/true);
  promised_.reset();
  prefix_.reset();
  sequence_->rewind(sequence_->prompt_shape().n_tokens);
  sequence_->release();
  n_entered_ = 0;
  kept_logits_.clear();
}

void Generation::encode(Deadline until) {
  images_.encode(until, [this](const ComputeWork& done) { progress_.encoded(done); });
  progress_.look(*sequence_, images_);
}

StepItem Generation::next_item(int32_t max_rows) {
  const StepLayers part = sequence_->next_runs(max_rows, runs_);
  ImagePlacement& reuse = *images_.reuse();
  const bool preview = reuse.cut(runs_);
  enter(preview ? RequestState::kPreview : computing());
  const bool all_logits =
      request_.callbacks.on_logits != nullptr && sequence_->in_prompt() && !sequence_->looks_ahead();
  const StepItem item{.sequence = sequence_,
                      .runs = runs_,
                      .all_logits = all_logits && !preview,
                      .images = images_.embeddings(),
                      .hooks = reuse.active() ? &reuse : nullptr,
                      .preview = preview,
                      .layers = part.layers,
                      .hidden = part.hidden};
  progress_.begin_step(item, images_);
  return item;
}

void Generation::after_step(const StepItem& item, const Tensor& logits, double ms) {
  if (state_ == RequestState::kLookahead) {
    lookahead_ms_ += ms;
    progress_.end_step(*sequence_, images_);
    return;
  }
  if (before_answer()) {
    if (!has_tokens()) result_.timings.prefill_ms += ms;
    progress_.end_step(*sequence_, images_);
    if (state_ == RequestState::kPreview) return;
    if (request_.callbacks.on_prefill && !has_tokens()) {
      const int32_t n_prompt = sequence_->prompt_shape().n_tokens;
      request_.callbacks.on_prefill(std::min(sequence_->n_prefilled(), n_prompt), n_prompt);
    }
    if (images_.reuse()->halts()) {
      images_.reuse()->finish(result_.timings.prefill_ms);
      place_rest();
    }
    if (!sequence_->in_prompt()) {
      images_.reuse()->finish(result_.timings.prefill_ms);
      note_prefix();
      if (request_.reuse.keep_exact) keep_prefix(/*whole_pages=*/true);
    }
  }
  if (item.all_logits && logits.rows() > 0) hand_out(item.runs, logits);
}

// Logits of the tokens that have gone through all layers, piece by piece.
void Generation::hand_out(std::span<const TokenRun> runs, const Tensor& logits) const {
  int32_t row = 0;
  for (const TokenRun& run : runs) {
    for (int32_t t = run.begin, end = t; t < run.end; t = end + 1) {
      const auto computed = [&](int32_t token) { return sequence_->state(token) == TokenState::kComputed; };
      for (end = t; end < run.end && computed(end);) ++end;
      if (end > t) request_.callbacks.on_logits(t, logits.slice_rows(row, row + end - t));
      row += end - t;
    }
  }
}

bool Generation::look_ahead(const Tensor& logits) {
  if (state_ == RequestState::kPreview) {
    images_.reuse()->after_preview_step();
    return true;
  }
  Sequence& s = *sequence_;
  const bool begins = !s.looks_ahead();
  std::span<const float> values;
  if (logits.rows() > 0 && s.n_pending() == 0) {
    values = {logits.row<float>(logits.rows() - 1), static_cast<size_t>(logits.row_size())};
  }
  const auto likeliest = [&]() -> int32_t {
    if (values.empty() || s.next_position() + 1 >= engine_.max_positions()) return -1;
    const int32_t token = vlcache::likeliest(values);
    return stream_->is_end(token) ? -1 : token;
  };
  if (!s.look_ahead(likeliest)) return false;
  if (begins) kept_logits_.assign(values.begin(), values.end());
  return true;
}

bool Generation::act(const Tensor& logits, Clock::time_point until) {
  if (act_until(until)) return true;
  if (kept_logits_.empty() && sequence_->n_pending() == 0 && logits.rows() > 0) {
    const auto* const last = logits.row<float>(logits.rows() - 1);
    kept_logits_.assign(last, last + logits.row_size());
  }
  enter(RequestState::kActing);
  return false;
}

bool Generation::go_on_acting(Clock::time_point until) {
  if (!act_until(until)) return false;
  enter(computing());
  choose(Tensor());
  return true;
}

bool Generation::act_until(Clock::time_point until) {
  const auto begin = Clock::now();
  const Acted acted = sequence_->apply_policy(until);
  if (acted == Acted::kCompressed) engine_.pools().trim();
  const bool counts = result_.tokens.empty() || acted != Acted::kNot;  // a rule's time is not measured
  if (counts) policy_ms_ += ms_since(begin);
  if (acted == Acted::kUnfinished) return false;
  after_policy(acted == Acted::kCompressed);
  if (acted == Acted::kCompressed) make_room();  // compaction has shrunk the tables
  return true;
}

// The policy has acted, or none was to.
void Generation::after_policy(bool compressed) {
  const Sequence& s = *sequence_;
  if (!s.in_prompt() && before_answer()) {
    images_.reuse()->finish(result_.timings.prefill_ms);
    // The KV that is compressed later is cached only if it is to stay as it was (keep_exact).
    if (!s.acts_later()) keep_prefix(/*whole_pages=*/true);
  }
  if (s.acts_later()) {
    result_.kv.n_before_acting = -1;
    result_.kv.acts_after_tokens = s.policy().acts_after_tokens();
  }
  const bool after_tokens = compressed && result_.kv.n_before_acting < 0;  // no rule, which joins slots now and then
  if (after_tokens) {
    result_.kv.n_before_acting = s.n_done() - s.prompt_shape().n_tokens;
    answer_.policy_acted = !replays();
  } else if (!result_.tokens.empty()) {
    return;
  }
  if (compressed) result_.timings.compress_ms = select_ms_ + s.watch_ms() + lookahead_ms_ + policy_ms_;
  if (compressed || (!s.in_prompt() && result_.kv.prompt_bytes == 0)) {
    result_.kv.prompt_bytes = s.cache().bytes() + s.cache().table_bytes();
  }
}

void Generation::choose(const Tensor& logits) {
  const Sequence& s = *sequence_;
  if (!s.in_prompt() && s.policy().keeps_kv()) images_.prompt_done();
  if (s.n_pending() > 0 || (logits.rows() == 0 && kept_logits_.empty())) return;
  progress_.finish();
  if (request_.options.max_tokens == 0 && request_.given.empty()) {
    finish(FinishReason::kLength);
  } else if (!kept_logits_.empty()) {
    choose_token(Tensor(kept_logits_.data(), DType::kF32, {1, std::ssize(kept_logits_)}));
    kept_logits_.clear();
  } else {
    choose_token(logits.slice_rows(logits.rows() - 1, logits.rows()));
  }
}

void Generation::choose_token(const Tensor& logits) {
  const std::span<float> values(logits.as<float>(), static_cast<size_t>(logits.row_size()));
  if (replays()) return replay(values);
  const size_t n = result_.tokens.size();
  const bool given = n < request_.given.size();
  if (given && request_.callbacks.on_given) request_.callbacks.on_given(n, logits);
  SampledToken token = given ? SampledToken{.token = request_.given[n]} : stream_->draw(values);
  if (result_.tokens.empty()) {
    result_.timings.ttft_ms = ms_since(begin_);
    answer_.first = Clock::now();
  }
  if (std::exchange(answer_.policy_acted, false)) result_.timings.gap_ms = ms_since(answer_.last);
  answer_.last = Clock::now();
  result_.tokens.push_back({token.token, token.logprob, std::move(token.top)});
  if (request_.callbacks.on_token && !given) request_.callbacks.on_token(result_.tokens.back());
  take(token.token, given);
}

void Generation::take(int32_t token, bool given) {
  if (!given && stream_->is_end(token)) {
    emit(stream_->take_end(token));
    finish(FinishReason::kStop);
    return;
  }
  if (!given) emit(stream_->take(token));
  const Sequence& s = *sequence_;
  const int64_t capacity = engine_.slot_capacity(s.policy());
  const bool context_full = s.policy().pattern().window == 0 && s.next_position() + 1 >= engine_.max_positions();
  const int64_t most = static_cast<int64_t>(request_.given.size()) + request_.options.max_tokens;
  if (!given && stream_->complete()) {
    finish(FinishReason::kStop);
  } else if (std::ssize(result_.tokens) >= most || context_full || (capacity > 0 && s.n_tokens() >= capacity)) {
    finish(FinishReason::kLength);
  } else {
    enter_token(token);
  }
}

void Generation::enter_token(int32_t token) {
  sequence_->add_token(token, engine_.has_tokenizer() ? engine_.tokenizer().token_class(token) : TokenClass::kOther);
  ++n_entered_;
}

// The next tokens of the answer that the request had before it was preempted; `logits` are those that followed. One by
// one where the policy does something as the answer grows: what it does then depends on the steps.
void Generation::replay(std::span<const float> logits) {
  const Policy& policy = sequence_->policy();
  const bool one_by_one = policy.keeps_kv() && (policy.has_rule() || policy.wants_scores() || sequence_->acts_later());
  if (one_by_one && n_entered_ >= request_.given.size() && stream_->draws_likeliest() &&
      vlcache::likeliest(logits) != result_.tokens[n_entered_].id) {
    ++result_.preemptions.n_different;
  }
  do {
    enter_token(result_.tokens[n_entered_].id);
    ++result_.preemptions.n_replayed;
  } while (replays() && !one_by_one);
}

void Generation::finish(FinishReason reason) {
  emit(stream_->finish());
  if (!result_.tokens.empty()) result_.timings.decode_ms = ms_since(answer_.first);
  const size_t n_given = std::min(request_.given.size(), result_.tokens.size());
  result_.tokens.erase(result_.tokens.begin(), result_.tokens.begin() + static_cast<std::ptrdiff_t>(n_given));
  result_.finish_reason = reason;
  result_.stopped_by = stream_->stopped_by();
  waiting_prompt_.reset();
  if (sequence_ != nullptr) {
    images_.finish();
    sequence_->discard_lookahead();
    images_.stop_reuse();
    if (prefix_load_.stop()) sequence_->release();
    if (reason != FinishReason::kError && own_sequence_ == nullptr) end_answer();
    if (reason != FinishReason::kError) keep_prefix(/*whole_pages=*/own_sequence_ == nullptr);
    prefix_.reset();
    report();
  }
  if (own_sequence_ != nullptr) {
    sequence_ = nullptr;
    own_sequence_.reset();
    if (reason == FinishReason::kStop || reason == FinishReason::kLength) pass_on();
  }
  enter(RequestState::kFinished);
}

// The request is over, and its prompt is not needed here any more.
void Generation::pass_on() {
  if (!request_.reuse.compared || !request_.callbacks.on_answered) return;
  if (result_.tokens.empty() || !request_.given.empty() || request_.prompt.selection) return;
  AnsweredPrompt answered{.kv_codec = codec(), .reuse = request_.reuse};
  answered.reuse.prefix_most = result_.cache.n_prefix_tokens;
  Shadow& shadow = answered.reuse.shadow.emplace();
  for (size_t i = 0; i < result_.cache.images.size(); ++i) {
    const CacheReport::Image& image = result_.cache.images[i];
    if (image.similar) return;  // evidence is of the chooser alone
    if (image.reusable || image.loaded()) shadow.images.push_back(i);
  }
  if (shadow.images.empty()) return;
  for (const GeneratedToken& token : result_.tokens) answered.answer.push_back(token.id);
  answered.prompt = std::move(request_.prompt);
  answered.policy = request_.policy;
  if (answered.reuse.chooser == nullptr) answered.reuse.chooser = std::exchange(answered.reuse.measured, nullptr);
  request_.callbacks.on_answered(std::move(answered));
}

// The caller's sequence goes on: what its policy has left of the answer's turn is compressed now.
void Generation::end_answer() {
  const auto begin = Clock::now();
  try {
    if (sequence_->end_answer() != Acted::kCompressed) return;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kOutOfPages) throw;
    if (give_up_prefix()) return end_answer();
    return;  // no pages for copies: the next turn's policy acts on all of it
  }
  engine_.pools().trim();
  policy_ms_ += ms_since(begin);
  result_.timings.compress_ms = select_ms_ + sequence_->watch_ms() + lookahead_ms_ + policy_ms_;
}

void Generation::fail(const Error& error) {
  result_.error = error;
  finish(FinishReason::kError);
}

void Generation::emit(const std::string& text) {
  if (text.empty()) return;
  result_.text += text;
  if (request_.callbacks.on_text) request_.callbacks.on_text(text);
}

void Generation::report() {
  const KvCache& cache = sequence_->cache();
  result_.kv.bytes = cache.bytes();
  for (const KvCodec codec : cache.shape().codecs()) result_.kv.bytes_by_codec[codec] = cache.bytes(codec);
  result_.kv.coded_bytes_read = sequence_->coded_bytes_read();
  result_.kv.reads = sequence_->kv_reads();
  result_.kv.peak_bytes = sequence_->peak_kv_bytes();
  for (int32_t layer = 0; layer < cache.shape().n_layers(); ++layer) {
    std::vector<int32_t>& heads = result_.kv.slots.emplace_back();
    for (int32_t head = 0; head < cache.shape().layers[static_cast<size_t>(layer)].n_kv_heads; ++head) {
      heads.push_back(sequence_->n_visible(layer, head));
    }
  }
  if (request_.report_kept) {
    result_.kv.images = kept_image_tokens(engine_.model().config(), request_.prompt, sequence_->slots());
  }
}

}  // namespace vlcache
