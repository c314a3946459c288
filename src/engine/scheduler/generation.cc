#include "engine/scheduler/generation.h"

#include <algorithm>
#include <utility>

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

}  // namespace

double CacheReport::n_loaded() const {
  double n = n_prefix_tokens;
  for (const Image& image : images) {
    if (image.loaded()) n += image.n_tokens - image.n_recomputed;
  }
  return n;
}

void check_prompt_fits(const Engine& engine, const Policy& policy, int32_t n_positions, int32_t max_tokens) {
  const int32_t n_needed = n_positions + (max_tokens > 0 ? 1 : 0);
  if (policy.pattern().window == 0 && n_needed > engine.max_positions()) {
    throw Error(ErrorCode::kInput, "the prompt has " + std::to_string(n_positions) +
                                       " tokens; the model's context is " + std::to_string(engine.max_positions()) +
                                       (max_tokens > 0 ? " and must hold the answer too" : ""));
  }
  const int64_t capacity = engine.slot_capacity(policy);
  if (capacity > 0 && n_positions > capacity) {
    throw Error(ErrorCode::kInput, "the prompt has " + std::to_string(n_positions) + " tokens; the " + policy.name() +
                                       " KV cache holds " + std::to_string(capacity));
  }
}

Generation::Generation(Engine& engine, Request request)
    : engine_(engine),
      request_(std::move(request)),
      sequence_(request_.sequence),
      begin_(request_.asked_at.value_or(Clock::now())) {
  result_.timings.queue_ms = ms_since(begin_);
  const GenerateOptions& options = request_.options;
  if (options.max_tokens < 0) {
    throw Error(ErrorCode::kInput, "max_tokens: expected an integer >= 0, found " + std::to_string(options.max_tokens));
  }
  CHECK(sequence_ != nullptr || request_.policy != nullptr);
  const Policy& policy = sequence_ != nullptr ? sequence_->policy() : *request_.policy;
  if (request_.callbacks.on_logits != nullptr && policy.row_dropper() != nullptr) {
    throw Error(ErrorCode::kInput, "logits of every prompt token: KV policy " + policy.name() +
                                       " drops tokens on their way through the layers; choose another");
  }
  check_prompt_fits(engine, policy,
                    sequence_ != nullptr ? sequence_->next_position() : policy.n_seen(request_.prompt.shape()),
                    options.max_tokens);
  stream_ = std::make_unique<TokenStream>(engine, request_);
  result_.has_logprobs = options.sampling.n_logprobs >= 0;
  result_.timings.load_ms = engine.load_ms();
  const int32_t n_dropped = request_.prompt.selection ? request_.prompt.selection->n_dropped : 0;
  result_.n_prompt = request_.prompt.n_tokens() + n_dropped;
  result_.n_vision = request_.prompt.n_vision_tokens() + n_dropped;
  result_.kv.mode = policy.name();
  if (request_.prompt.images.empty() || !request_.reuse.encoder) return;
  if (sequence_ != nullptr) {
    request_.prompt.keys.assign(sequence_->image_keys().begin(), sequence_->image_keys().end());
  } else if (engine.kv().image_store() != nullptr || request_.reuse.chooser != nullptr) {
    request_.prompt.keys = image_keys(request_.prompt);
  }
  if (engine.kv().image_store() != nullptr) stored_.tiers = engine.kv().image_store()->search(request_.prompt.keys);
}

Generation::~Generation() = default;

bool Generation::needs_whole_prompt() const {
  const Policy& policy = sequence_ != nullptr ? sequence_->policy() : *request_.policy;
  return policy.computes_as_full() && policy.capacity() == 0 && request_.prompt.evict_every == 0;
}

bool Generation::awaits_search(Deadline until) {
  const bool kv = request_.reuse.chooser != nullptr;
  const int32_t n_done = sequence_ != nullptr ? sequence_->n_done() : 0;
  for (const ImageSpan& span : request_.prompt.spans) {
    const auto image = static_cast<size_t>(span.image);
    if (span.end <= n_done || image >= request_.prompt.keys.size()) continue;
    if (!engine_.kv().holds_image(request_.prompt.keys[image], kv) && !stored_.tiers.wait(image, until)) return true;
  }
  return false;
}

bool Generation::awaits_load(bool may_stall, Deadline until) {
  if (encodes()) return true;
  if (!coming_.empty()) {
    coming_.front().second.load->wait(0, until);
    return true;  // until take_embeddings() takes it
  }
  return (!may_stall || has_stalled_) && reuse_->loading(until);
}

WaitingPrompt& Generation::waiting_prompt() {
  if (waiting_prompt_ == nullptr) {
    Prompt& prompt = request_.prompt;
    prompt.keys = image_keys(prompt);
    ReuseOptions options = request_.reuse;
    options.prefix = takes_prefix();
    const Policy& policy = sequence_ != nullptr ? sequence_->policy() : *request_.policy;
    waiting_prompt_ = std::make_unique<WaitingPrompt>(engine_, prompt, policy, options, stored_.tiers,
                                                      sequence_ != nullptr ? sequence_->n_done() : 0);
  }
  return *waiting_prompt_;
}

std::span<const Element> Generation::promised() {
  if (sequence_ == nullptr || reuse_ == nullptr) return {};
  if (!promised_) promised_ = PrefixReuse::promise(engine_, *sequence_, request_.prompt, request_.reuse);
  return *promised_;
}

// Per-token logits need every token computed, so prefix reuse is disabled.
bool Generation::takes_prefix() const { return request_.reuse.prefix && request_.callbacks.on_logits == nullptr; }

void Generation::start() {
  stored_.tiers.start();
  if (sequence_ == nullptr) {
    select_image_tokens(engine_, *request_.policy, request_.prompt);
    own_sequence_ = engine_.new_sequence(request_.prompt, request_.policy);
    sequence_ = own_sequence_.get();
  }
  find_prefix();
  sequence_->start_prompt();
  make_room();
  note_origins();
  // KV that it left in the cache itself, when it was preempted, is no hit.
  n_found_ = std::min(n_found_, result_.cache.n_prefix_tokens);
  result_.cache.n_prefix_tokens = n_found_;
  take_images();
  place_images();
  waiting_prompt_.reset();
}

void Generation::find_prefix() {
  prefix_ = std::make_unique<PrefixReuse>();
  // Per-token logits need every token computed, so prefix reuse is disabled.
  result_.cache.prefix_reason =
      request_.callbacks.on_logits != nullptr
          ? "the logits of all tokens are wanted"
          : prefix_->begin(engine_, *sequence_, request_.prompt, request_.reuse, stored_.tiers);
}

void Generation::keep_prefix(bool whole_pages) {
  if (!request_.reuse.prefix || sequence_->looks_ahead()) return;
  promised_.emplace();
  const int32_t n_computed = std::max(1, sequence_->prompt_shape().n_tokens - result_.cache.n_prefix_tokens);
  PrefixReuse::keep(engine_, *sequence_, result_.timings.prefill_ms / n_computed, whole_pages);
}

void Generation::make_room() { sequence_->reserve(std::min(request_.options.max_tokens, kRoomTokens)); }

void Generation::preempt() {
  note_computed_images();
  release();
}

void Generation::release() {
  reuse_.reset();
  sequence_->discard_lookahead();
  keep_prefix(/*whole_pages=*/true);
  coming_.clear();
  forget_encoding();
  stored_.tiers.stop();
  std::erase_if(stored_.loads, [](const auto& l) { return l.second.load->state() != ImageLoad::State::kMissed; });
  promised_.reset();
  prefix_.reset();
  sequence_->release();
  prompt_logits_.clear();
}

StepItem Generation::next_item(int32_t max_rows) {
  const StepLayers part = sequence_->next_runs(max_rows, runs_);
  const bool preview = reuse_->cut(runs_);
  const bool all_logits =
      request_.callbacks.on_logits != nullptr && sequence_->in_prompt() && !sequence_->looks_ahead();
  return {.sequence = sequence_,
          .runs = runs_,
          .all_logits = all_logits && !preview,
          .images = images_,
          .hooks = reuse_->active() ? reuse_.get() : nullptr,
          .preview = preview,
          .layers = part.layers,
          .hidden = part.hidden};
}

void Generation::after_step(const StepItem& item, const Tensor& logits, double ms) {
  if (sequence_->looks_ahead()) {
    lookahead_ms_ += ms;
    return;
  }
  if (result_.tokens.empty()) {
    result_.timings.prefill_ms += ms;
    if (item.preview) return;
    if (request_.callbacks.on_prefill) {
      const int32_t n_prompt = sequence_->prompt_shape().n_tokens;
      request_.callbacks.on_prefill(std::min(sequence_->n_prefilled(), n_prompt), n_prompt);
    }
    if (reuse_->halts()) {
      reuse_->finish(result_.timings.prefill_ms);
      place_rest();
    }
    if (!sequence_->in_prompt()) {
      reuse_->finish(result_.timings.prefill_ms);
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
  if (reuse_->in_preview()) {
    reuse_->after_preview_step();
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
    const auto token = static_cast<int32_t>(std::ranges::max_element(values) - values.begin());
    return stream_->is_end(token) ? -1 : token;
  };
  if (!s.look_ahead(likeliest)) return false;
  if (begins) prompt_logits_.assign(values.begin(), values.end());
  return true;
}

void Generation::after_policy(bool compressed, double ms) {
  const Sequence& s = *sequence_;
  if (!result_.tokens.empty()) return;
  if (!s.in_prompt()) {
    reuse_->finish(result_.timings.prefill_ms);
    keep_prefix(/*whole_pages=*/true);
  }
  policy_ms_ += ms;
  if (compressed) result_.timings.compress_ms = select_ms_ + s.watch_ms() + lookahead_ms_ + policy_ms_;
  if (compressed || (!s.in_prompt() && result_.kv.prompt_bytes == 0)) {
    result_.kv.prompt_bytes = s.cache().bytes() + s.cache().table_bytes();
  }
}

void Generation::choose(const Tensor& logits) {
  const Sequence& s = *sequence_;
  if (!s.in_prompt() && s.policy().keeps_kv()) {
    for (VisionOutput& output : images_) output = VisionOutput();
    shared_images_.clear();
    stored_.loads.clear();
  }
  if (s.n_pending() > 0 || logits.rows() == 0) return;
  if (request_.options.max_tokens == 0) {
    finish("length");
  } else if (!prompt_logits_.empty()) {
    choose_token(Tensor(prompt_logits_.data(), DType::kF32, {1, std::ssize(prompt_logits_)}));
    prompt_logits_.clear();
  } else {
    choose_token(logits.slice_rows(logits.rows() - 1, logits.rows()));
  }
}

void Generation::choose_token(const Tensor& logits) {
  const std::span<float> values(logits.as<float>(), static_cast<size_t>(logits.row_size()));
  SampledToken token = stream_->draw(values);
  if (result_.tokens.empty()) {
    result_.timings.ttft_ms = ms_since(begin_);
    first_token_ = Clock::now();
  }
  result_.tokens.push_back({token.token, token.logprob, std::move(token.top)});
  if (request_.callbacks.on_token) request_.callbacks.on_token(result_.tokens.back());
  take(token.token);
}

void Generation::take(int32_t token) {
  if (stream_->is_end(token)) {
    finish("stop");
    return;
  }
  emit(stream_->take(token));
  const Sequence& s = *sequence_;
  const int64_t capacity = engine_.slot_capacity(s.policy());
  const bool context_full = s.policy().pattern().window == 0 && s.next_position() + 1 >= engine_.max_positions();
  if (stream_->complete()) {
    finish("stop");
  } else if (static_cast<int32_t>(result_.tokens.size()) >= request_.options.max_tokens || context_full ||
             (capacity > 0 && s.n_tokens() >= capacity)) {
    finish("length");
  } else {
    sequence_->add_token(token, engine_.has_tokenizer() ? engine_.tokenizer().token_class(token) : TokenClass::kOther);
  }
}

void Generation::finish(std::string_view reason) {
  emit(stream_->finish());
  if (!result_.tokens.empty()) result_.timings.decode_ms = ms_since(first_token_);
  result_.finish_reason = reason;
  result_.stopped_by = stream_->stopped_by();
  waiting_prompt_.reset();
  if (sequence_ != nullptr) {
    charge_origins();
    charge_computed_images();
    engine_.kv().count(result_.cache);
    sequence_->discard_lookahead();
    reuse_.reset();
    if (reason != "error") keep_prefix(/*whole_pages=*/own_sequence_ == nullptr);
    prefix_.reset();
    report();
  }
  if (own_sequence_ != nullptr) {
    sequence_ = nullptr;
    own_sequence_.reset();
  }
}

void Generation::fail(const Error& error) {
  result_.error = error;
  finish("error");
}

void Generation::emit(const std::string& text) {
  if (text.empty()) return;
  result_.text += text;
  if (request_.callbacks.on_text) request_.callbacks.on_text(text);
}

void Generation::report() {
  const KvCache& cache = sequence_->cache();
  result_.kv.bytes = cache.bytes();
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
