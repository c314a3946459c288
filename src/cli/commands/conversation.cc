#include "cli/commands/conversation.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iterator>
#include <numeric>

#include "api/messages/message.h"
#include "base/error.h"
#include "base/format.h"
#include "base/json.h"
#include "cli/flags/request.h"
#include "cli/terminal/markdown.h"
#include "cli/terminal/progress.h"
#include "engine/prompt/prompt_media.h"
#include "engine/request.h"
#include "engine/reuse/shortened_prefix.h"
#include "engine/scheduler/image_selection.h"
#include "engine/scheduler/scheduler.h"
#include "io/image/image.h"
#include "io/video/video_file.h"

namespace vlcache {
namespace {

Message message_of(const ChatTurn& turn) {
  Message message{.role = "user", .plain = turn.images.empty() && turn.videos.empty()};
  for (const EncodedImage& image : turn.images) message.parts.emplace_back(ImagePart{image});
  for (const ChatVideo& video : turn.videos) message.parts.emplace_back(VideoPart{video.input});
  message.parts.emplace_back(TextPart{turn.question});
  return message;
}

// Of its question with its images and videos alone.
Prompt prompt_of(const Engine& engine, const ChatTurn& turn) { return prepare_chat(engine, {message_of(turn)}); }

}  // namespace

Conversation::Conversation(Engine& engine, Options options, PolicyPtr policy, RequestFields fields,
                           RequestBuilder& builder, const Checkpoint& checkpoint)
    : engine_(engine),
      options_(std::move(options)),
      policy_(std::move(policy)),
      builder_(builder),
      checkpoint_(checkpoint),
      fields_(std::move(fields)) {
  builder_.check(fields_);
  if (!options_.session.empty()) open_session();
}

void Conversation::reset() {
  turns_.clear();
  pending_ = {};
  sequence_.reset();
  salt_.reset();
  last_.reset();
  save_session();
}

void Conversation::add_image(const std::string& path) {
  ChatTurn turn;
  turn.images = read_images(engine_, path, fields_.pdf_text.value_or(false), image_options(fields_));
  std::string sizes;
  for (const EncodedImage& encoded : turn.images) {
    const Image image = decode_image(*encoded.bytes, encoded.where, encoded.limits);
    if (sizes.empty()) sizes = std::to_string(image.width) + " x " + std::to_string(image.height);
  }
  check_fits(prompt_of(engine_, turn));
  const size_t n = turn.images.size();
  std::ranges::move(turn.images, std::back_inserter(pending_.images));
  const std::string pages = n > 1 ? std::to_string(n) + " pages, the first " : "";
  std::fprintf(stderr, "%s: %s%s, go%s with the next message\n", path.c_str(), pages.c_str(), sizes.c_str(),
               n > 1 ? "" : "es");
}

void Conversation::add_video(const std::string& argument) {
  if (session_ != nullptr) {
    throw Error(ErrorCode::kInput,
                argument + ": a --session keeps no videos; begin a chat without one to ask about it");
  }
  const VideoPath path{.video = parse_video_argument(argument), .frames = {}};
  ProbedVideo probed = probed_video(engine_, path, image_options(fields_));
  ChatTurn turn;
  turn.videos.push_back({.request = {.video = load_video(path.video.path), .choice = path.video.choice},
                         .input = std::move(probed.input)});
  const Prompt prompt = prompt_of(engine_, turn);
  check_fits(prompt);
  pending_.videos.push_back(std::move(turn.videos[0]));
  const VideoInfo& info = probed.info;
  std::fprintf(stderr, "%s: %.1f s, %lld frames of %lld x %lld; %d tokens go with the next message\n", argument.c_str(),
               info.seconds, static_cast<long long>(info.n_frames), static_cast<long long>(info.width),
               static_cast<long long>(info.height), prompt.n_vision_tokens());
}

void Conversation::undo() {
  if (turns_.empty()) {
    std::fputs("nothing to undo\n", stderr);
    return;
  }
  std::fprintf(stderr, "took back: %s\n", turns_.back().question.c_str());
  take_back();
  save_session();
}

void Conversation::print_stats() const {
  if (!last_) {
    std::fputs("no answer yet\n", stderr);
    return;
  }
  const double n_loaded = last_->cache.n_loaded(), n_of_images = n_loaded - last_->cache.n_prefix_tokens;
  const std::string images = n_of_images > 0 ? format(" (%.0f of them with images)", n_of_images) : "";
  std::fprintf(
      stderr,
      "%s\n%.0f of %d prompt tokens came from the KV cache%s; %d tokens in the conversation, peak KV %.1f MiB\n",
      summary(*last_).c_str(), n_loaded, last_->n_prompt, images.c_str(), sequence_->n_tokens(),
      static_cast<double>(last_->kv.peak_bytes) / 1048576.0);
  // Slots over all layers and heads; a token has one in each, as far as the layer's window reaches.
  const int32_t n_tokens = sequence_->n_tokens() + n_dropped_;
  const std::vector<std::vector<int32_t>>& slots = last_->kv.slots;
  int64_t n_heads = 0, n_kept = 0, n_all = 0;
  for (size_t layer = 0; layer < slots.size(); ++layer) {
    n_heads += std::ssize(slots[layer]);
    n_kept = std::accumulate(slots[layer].begin(), slots[layer].end(), n_kept);
    n_all += std::ssize(slots[layer]) * sequence_->cache().shape().most_visible(static_cast<int32_t>(layer), n_tokens);
  }
  const double dropped = n_heads > 0 ? static_cast<double>(n_all - n_kept) / static_cast<double>(n_heads) : 0;
  if (n_kept > 0 && dropped >= 0.5) {
    std::fprintf(stderr, "%s dropped %.0f of %d slots per layer and head\n", policy_->name().c_str(), dropped,
                 n_tokens);
  }
}

bool Conversation::ask(const std::string& question) {
  turns_.push_back({.question = question,
                    .images = std::move(pending_.images),
                    .documents = {},
                    .videos = std::move(pending_.videos),
                    .answer = "",
                    .kv = fields_.kv.value_or(""),
                    .budget = fields_.kv_budget ? fields_.kv_budget->text : ""});
  pending_ = {};
  std::optional<Prompt> next;
  try {
    next = prompt();
    if (options_.truncates && full(*next)) next = truncate();
    check_fits(*next);
  } catch (...) {  // refused before any computation: the conversation is unchanged
    ChatTurn refused = std::move(turns_.back());
    turns_.pop_back();
    keep_if_usable(std::move(refused));
    throw;
  }
  try {
    turns_.back().answer = answer(std::move(*next));
  } catch (...) {
    turns_.pop_back();  // with its images, for which there was no room
    last_.reset();
    throw;
  }
  if (interrupted() && turns_.back().answer.empty()) {
    std::fputs("stopped before the answer began: the question is taken back\n", stderr);
    take_back();
    return false;
  }
  save_session();
  return true;
}

void Conversation::retry() {
  if (turns_.empty()) {
    std::fputs("no question yet\n", stderr);
    return;
  }
  const ChatTurn last = turns_.back();
  const ChatTurn waiting = pending_;
  take_back();
  if (fields_.seed) ++fields_.seed->value;
  bool answered = false;
  try {
    answered = ask(last.question);
  } catch (...) {
    turns_.push_back(last);
    pending_ = waiting;
    throw;
  }
  if (answered) return;
  turns_.push_back(last);
  pending_ = waiting;
}

// Removes the last turn; its images wait for the next question.
void Conversation::take_back() {
  ChatTurn taken = std::move(turns_.back());
  turns_.pop_back();
  std::ranges::move(pending_.images, std::back_inserter(taken.images));
  std::ranges::move(pending_.videos, std::back_inserter(taken.videos));
  pending_ = std::move(taken);
  last_.reset();
}

void Conversation::print_policy() const {
  const std::string& budget = options_.model.kv_budget;
  std::fprintf(stderr, "KV policy: %s%s%s\n", policy_->name().c_str(), budget.empty() ? "" : ", budget ",
               budget.c_str());
}

void Conversation::set_policy(const std::string& given, const std::string& budget) {
  const std::string kv = policy_text(given);
  ModelFlags model = options_.model;
  model.kv = kv;
  model.kv_budget = budget;
  PolicyPtr policy = chosen_policy(model, checkpoint_);
  check_suits(engine_.model().config(), *policy);
  RequestFields fields = fields_;
  fields.kv = kv;
  fields.kv_budget = std::nullopt;
  if (!budget.empty()) fields.kv_budget = BudgetText{budget};
  builder_.check(fields);
  options_.model = std::move(model);
  fields_ = std::move(fields);
  policy_ = std::move(policy);
  forget_kv();
  print_policy();
}

void Conversation::forget_kv() {
  sequence_.reset();
  last_.reset();
}

void Conversation::print_codec() const {
  std::fprintf(stderr, "KV codec: %s\n", std::string(kv_codec_name(codec())).c_str());
}

void Conversation::set_codec(const std::string& name) {
  RequestFields fields = fields_;
  fields.kv_codec = name;
  builder_.check(fields);
  fields_ = std::move(fields);
  forget_kv();
  print_codec();
}

void Conversation::set_system(const std::string& text) {
  options_.system = text;
  save_session();
}

void Conversation::save_to(const std::string& path) const {
  if (turns_.empty()) throw Error(ErrorCode::kInput, "/save: expected a conversation, found no question yet");
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  std::string name = turns_[0].question;
  name.resize(std::min(name.size(), name.find('\n')));
  write_file(path, conversation_text({.name = name, .system = options_.system, .turns = turns_},
                                     std::chrono::duration_cast<std::chrono::milliseconds>(now).count()));
  std::fprintf(stderr, "%s: %zu question%s with the answers\n", path.c_str(), turns_.size(),
               turns_.size() == 1 ? "" : "s");
}

void Conversation::load_from(const std::string& path) {
  ConversationFile file = parse_conversation(read_text_file(path), path);
  const auto has_videos = [](const ChatTurn& turn) { return !turn.videos.empty(); };
  if (session_ != nullptr && std::ranges::any_of(file.turns, has_videos)) {
    throw Error(ErrorCode::kInput, path + ": it has videos, which a --session does not keep");
  }
  size_t n_images = 0, n_videos = 0;
  for (ChatTurn& turn : file.turns) {  // images that the model does not accept are refused now, not when it is asked
    std::vector<EncodedImage> pages;
    for (DocumentRequest& document : turn.documents) {
      document.text = fields_.pdf_text.value_or(false);
      document.numbered = true;
      document.cancelled = interrupted;
      std::ranges::move(engine_.media().read_document(document), std::back_inserter(pages));
    }
    turn.documents.clear();
    turn.images.insert(turn.images.begin(), std::make_move_iterator(pages.begin()),
                       std::make_move_iterator(pages.end()));
    for (ChatVideo& video : turn.videos) {
      engine_.media().check_takes_videos();
      video.request.cancelled = interrupted;
      video.input = input_video(video.request).input;
    }
    if (turn.images.empty() && turn.videos.empty()) continue;
    prompt_of(engine_, turn);
    n_images += turn.images.size();
    n_videos += turn.videos.size();
  }
  turns_ = std::move(file.turns);
  if (!file.system.empty()) options_.system = file.system;
  pending_ = {};
  sequence_.reset();
  salt_.reset();
  last_.reset();
  save_session();
  const std::string videos =
      n_videos == 0 ? "" : ", " + std::to_string(n_videos) + (n_videos == 1 ? " video" : " videos");
  std::fprintf(stderr, "%s: %zu question%s with the answers, %zu image%s%s\n", path.c_str(), turns_.size(),
               turns_.size() == 1 ? "" : "s", n_images, n_images == 1 ? "" : "s", videos.c_str());
}

void Conversation::open_session() {
  session_ = std::make_unique<Session>(sessions_folder(options_.model.cache), options_.session);
  SessionState state = session_->load();
  if (state.turns.empty()) return;
  if (options_.system.empty()) options_.system = state.system;
  if (state.system != options_.system) {
    throw Error(ErrorCode::kInput, "--session " + options_.session + ": it was begun with --system '" + state.system +
                                       "', found '" + options_.system + "'");
  }
  for (SessionTurn& turn : state.turns) {
    ChatTurn& ours = turns_.emplace_back(ChatTurn{.question = std::move(turn.question),
                                                  .images = {},
                                                  .documents = {},
                                                  .answer = std::move(turn.answer),
                                                  .kv = "",
                                                  .budget = ""});
    for (size_t i = 0; i < turn.images.size(); ++i) {
      ours.images.push_back({.bytes = std::move(turn.images[i]),
                             .where = "--session " + options_.session,
                             .limits = {},
                             .options = {},
                             .owner = "",
                             .text = i < turn.texts.size() ? std::move(turn.texts[i]) : ""});
    }
  }
  stored_ = std::move(state.kv);
  salt_ = stored_.salt;
  const int32_t n = PrefixReuse::restore(engine_, stored_, codec());
  std::fprintf(stderr, "session %s: %zu question%s, KV of %d of %zu tokens was kept\n", options_.session.c_str(),
               turns_.size(), turns_.size() == 1 ? "" : "s", n, stored_.ids.size());
}

// Saves the current conversation. A full disk does not end it.
void Conversation::save_session() {
  if (session_ == nullptr) return;
  SessionState state{.system = options_.system, .turns = {}, .kv = {}};
  for (const ChatTurn& turn : turns_) {
    SessionTurn& kept = state.turns.emplace_back(SessionTurn{turn.question, turn.answer, {}, {}});
    for (const EncodedImage& image : turn.images) {
      kept.images.push_back(image.bytes);
      kept.texts.push_back(image.text);
    }
  }
  try {
    if (sequence_ && !turns_.empty()) state.kv = PrefixReuse::store(engine_, *sequence_, stored_);
    session_->save(state);
    if (!state.kv.ids.empty()) stored_ = std::move(state.kv);
  } catch (const Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
  }
}

Prompt Conversation::prompt() const {
  std::vector<Message> messages;
  if (!options_.system.empty()) messages.push_back(text_message("system", options_.system));
  for (const ChatTurn& turn : turns_) {
    messages.push_back(message_of(turn));
    for (Part& part : messages.back().parts) {  // also of images of a session and of media of a file
      if (auto* image = std::get_if<ImagePart>(&part)) image->image.options = image_options(fields_);
      if (auto* video = std::get_if<VideoPart>(&part)) video->video.options = image_options(fields_);
    }
    if (&turn != &turns_.back()) messages.push_back(text_message("assistant", turn.answer));
  }
  Prompt prompt = prepare_chat(engine_, std::move(messages));
  prompt.salt = salt_;
  return prompt;
}

bool Conversation::full(const Prompt& prompt) const {
  return policy_->pattern().window == 0 && extent_seen(prompt, *policy_).n_positions >= engine_.max_positions();
}

// Removes the oldest turns from the conversation until half of the context is free; the KV of the others stays. If
// the last question alone is too long, the conversation stays as it is.
Prompt Conversation::truncate() {
  std::vector<ChatTurn> all = turns_;
  Prompt shorter = prompt();
  while (turns_.size() > 1 && shorter.n_positions() > engine_.max_positions() / 2) {
    turns_.erase(turns_.begin());
    shorter = prompt();
  }
  if (full(shorter)) {
    turns_ = std::move(all);
    return prompt();
  }
  const int32_t n_kept = keep_kv(shorter);
  salt_ = shorter.salt;
  sequence_.reset();
  std::fprintf(stderr,
               "the context of %d tokens is full: the model does not see the oldest %zu of %zu questions any more. The "
               "KV of the others is kept (%d tokens; it was computed with what is gone), %d tokens are computed "
               "(--context-full)\n",
               engine_.max_positions(), all.size() - turns_.size(), all.size(), n_kept, shorter.n_tokens() - n_kept);
  return shorter;
}

// Moves the KV of the conversation to its place in a prompt with fewer turns. Returns the number of its tokens.
int32_t Conversation::keep_kv(Prompt& shorter) {
  if (sequence_ == nullptr)
    return shorten_prefix(engine_, stored_, PrefixReuse::cached(engine_, stored_, codec()), shorter);
  const PrefixTokens tokens = PrefixReuse::tokens_of(*sequence_);
  const auto n = static_cast<int32_t>(tokens.ids.size());
  return shorten_prefix(engine_, tokens, {.n = n, .kv = sequence_->cache().fork(), .pin = {}}, shorter);
}

void Conversation::check_fits(const Prompt& prompt) const {
  check_prompt_fits(engine_, *policy_, extent_seen(prompt, *policy_), *fields_.max_tokens);
}

// The images and videos of a refused question wait for the next one, unless any question with them would be refused.
void Conversation::keep_if_usable(ChatTurn refused) {
  if (refused.images.empty() && refused.videos.empty()) return;
  refused.question = refused.answer = refused.kv = refused.budget = "";
  turns_.push_back(std::move(refused));
  try {
    check_fits(prompt());
    pending_ = std::move(turns_.back());
  } catch (const Error&) {
    std::fputs("its images do not fit into this conversation and are dropped\n", stderr);
  }
  turns_.pop_back();
}

std::string Conversation::answer(Prompt next) {
  Request request = builder_.request(std::move(next), fields_);
  select_image_tokens(engine_, *policy_, request.prompt, sequence_.get());
  n_dropped_ = request.prompt.selection ? request.prompt.selection->n_dropped : 0;
  if (sequence_) {
    sequence_->continue_with(request.prompt);
  } else {
    warn_of_small_budget(options_.model, request.prompt.n_tokens());
    sequence_ = engine_.new_sequence(request.prompt, policy_, request.kv_codec);
  }
  ProgressBar bar("reading");
  request.sequence = sequence_.get();
  request.callbacks.cancelled = interrupted;
  request.callbacks.on_progress = [&](const PromptProgress& p) { bar.show(p.share, p.seconds_left); };
  AnswerPrinter printer(options_.printing);
  request.callbacks.on_text = [&](std::string_view text) {
    bar.clear();
    printer.add(text);
  };
  last_ = generate(engine_, std::move(request));
  bar.clear();
  printer.finish();
  if (*fields_.explain) explainer_.print(*last_, engine_.kv().totals());
  return last_->text;
}

}  // namespace vlcache
