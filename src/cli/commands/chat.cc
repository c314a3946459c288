// `vlcache chat`: a conversation on the terminal whose KV is kept from turn to turn.
#include <unistd.h>

#include <cstdio>
#include <new>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "api/request_builder.h"
#include "base/error.h"
#include "cli/commands/session.h"
#include "cli/flags/command.h"
#include "cli/flags/generate_flags.h"
#include "cli/terminal/line_source.h"
#include "cli/terminal/progress.h"
#include "engine/reuse/shortened_prefix.h"
#include "engine/scheduler/generation.h"
#include "engine/scheduler/image_selection.h"
#include "engine/scheduler/scheduler.h"
#include "io/image/image.h"

namespace vlcache {
namespace {

struct ChatFlags {
  ModelFlags model;
  GenerateFlags generate;
  std::vector<std::string> images;
  std::string system;
  std::string session;
  std::string context_full;  // "": truncate with a session, else stop
};

constexpr const char* kHelp =
    "/image PATH   add a picture to the next message\n"
    "/stats        tokens, timings and KV of the last answer\n"
    "/undo         take the last question and answer back\n"
    "/reset        start over, without the pictures of the next message\n"
    "/quit         leave (or Ctrl-D)\n"
    "Ctrl-C ends an answer, or leaves the prompt.\n";

class Chat {
 public:
  Chat(Engine& engine, const ChatFlags& flags, PolicyPtr policy, RequestFields fields, RequestBuilder& builder)
      : engine_(engine), flags_(flags), policy_(std::move(policy)), builder_(builder), fields_(std::move(fields)) {
    builder_.check(fields_);
    if (!flags.session.empty()) open_session();
    for (const std::string& path : flags.images) add_image(path);
  }

  void reset() {
    turns_.clear();
    pending_.clear();
    sequence_.reset();
    salt_.reset();
    last_.reset();
    save_session();
  }

  // Only an image that the model accepts waits for the next message: another would fail that one and all later ones.
  void add_image(const std::string& path) {
    EncodedImage encoded = read_encoded_image(path);
    const Image image = decode_image(*encoded.bytes, path, encoded.limits);
    check_fits(prepare_chat(engine_, nlohmann::ordered_json::array({message("user", "", 1)}), std::vector{encoded}));
    pending_.push_back(std::move(encoded));
    std::fprintf(stderr, "%s: %lld x %lld, goes with the next message\n", path.c_str(),
                 static_cast<long long>(image.width), static_cast<long long>(image.height));
  }

  void undo() {
    if (turns_.empty()) {
      std::fputs("nothing to undo\n", stderr);
      return;
    }
    // The images of the question are attached to the next one.
    pending_.insert(pending_.begin(), std::make_move_iterator(turns_.back().images.begin()),
                    std::make_move_iterator(turns_.back().images.end()));
    std::fprintf(stderr, "took back: %s\n", turns_.back().question.c_str());
    turns_.pop_back();
    last_.reset();
    save_session();
  }

  void stats() const {
    if (!last_) {
      std::fputs("no answer yet\n", stderr);
      return;
    }
    std::fprintf(stderr,
                 "%s\n%d of %d prompt tokens came from the KV cache; %d tokens in the conversation, peak KV %.1f MiB\n",
                 summary(*last_).c_str(), last_->cache.n_prefix_tokens, last_->n_prompt, sequence_->n_tokens(),
                 static_cast<double>(last_->kv.peak_bytes) / 1048576.0);
    // Slots over all layers and heads; a token has one in each.
    int64_t n_heads = 0, n_kept = 0;
    for (const std::vector<int32_t>& layer : last_->kv.slots) {
      n_heads += std::ssize(layer);
      n_kept = std::accumulate(layer.begin(), layer.end(), n_kept);
    }
    const double kept = n_heads > 0 ? static_cast<double>(n_kept) / static_cast<double>(n_heads) : 0;
    const int32_t n_tokens = sequence_->n_tokens() + n_dropped_;
    if (kept > 0 && n_tokens - kept >= 0.5) {
      std::fprintf(stderr, "%s dropped %.0f of %d slots per layer and head\n", policy_->name().c_str(), n_tokens - kept,
                   n_tokens);
    }
  }

  void ask(const std::string& question) {
    turns_.push_back({question, std::move(pending_), ""});
    pending_.clear();
    std::optional<Prompt> next;
    try {
      next = prompt();
      if (truncates() && full(*next)) next = truncate();
      check_fits(*next);
    } catch (...) {  // refused before any computation: the conversation is unchanged
      Turn refused = std::move(turns_.back());
      turns_.pop_back();
      keep_if_usable(std::move(refused.images));
      throw;
    }
    try {
      turns_.back().answer = answer(std::move(*next));
    } catch (...) {
      turns_.pop_back();  // with its images, for which there was no room
      last_.reset();
      throw;
    }
    save_session();
  }

 private:
  struct Turn {
    std::string question;
    std::vector<EncodedImage> images;  // the engine caches what it has decoded
    std::string answer;
  };

  void open_session() {
    session_ = std::make_unique<Session>(sessions_folder(flags_.model.cache), flags_.session);
    SessionState state = session_->load();
    if (state.turns.empty()) return;
    if (state.system != flags_.system) {
      throw Error(ErrorCode::kInput, "--session " + flags_.session + ": it was begun with --system '" + state.system +
                                         "', found '" + flags_.system + "'");
    }
    for (SessionTurn& turn : state.turns) {
      Turn& ours = turns_.emplace_back(Turn{std::move(turn.question), {}, std::move(turn.answer)});
      for (auto& bytes : turn.images) {
        ours.images.push_back({.bytes = std::move(bytes),
                               .where = "--session " + flags_.session,
                               .limits = {},
                               .options = {},
                               .owner = ""});
      }
    }
    stored_ = std::move(state.kv);
    salt_ = stored_.salt;
    const int32_t n = PrefixReuse::restore(engine_, stored_);
    std::fprintf(stderr, "session %s: %zu question%s, KV of %d of %zu tokens was kept\n", flags_.session.c_str(),
                 turns_.size(), turns_.size() == 1 ? "" : "s", n, stored_.ids.size());
  }

  // Saves the current conversation. A full disk does not end it.
  void save_session() {
    if (session_ == nullptr) return;
    SessionState state{.system = flags_.system, .turns = {}, .kv = {}};
    for (const Turn& turn : turns_) {
      SessionTurn& kept = state.turns.emplace_back(SessionTurn{turn.question, turn.answer, {}});
      for (const EncodedImage& image : turn.images) kept.images.push_back(image.bytes);
    }
    try {
      if (sequence_ && !turns_.empty()) state.kv = PrefixReuse::store(engine_, *sequence_, stored_);
      session_->save(state);
      if (!state.kv.ids.empty()) stored_ = std::move(state.kv);
    } catch (const Error& e) {
      std::fprintf(stderr, "%s\n", e.what());
    }
  }

  static nlohmann::ordered_json message(std::string_view role, const std::string& text, size_t n_images) {
    if (n_images == 0) return {{"role", role}, {"content", text}};
    nlohmann::ordered_json content = nlohmann::ordered_json::array();
    for (size_t i = 0; i < n_images; ++i) content.push_back({{"type", "image"}});
    content.push_back({{"type", "text"}, {"text", text}});
    return {{"role", role}, {"content", std::move(content)}};
  }

  Prompt prompt() const {
    nlohmann::ordered_json messages = nlohmann::ordered_json::array();
    std::vector<EncodedImage> images;
    if (!flags_.system.empty()) messages.push_back(message("system", flags_.system, 0));
    for (const Turn& turn : turns_) {
      messages.push_back(message("user", turn.question, turn.images.size()));
      images.insert(images.end(), turn.images.begin(), turn.images.end());
      if (&turn != &turns_.back()) messages.push_back(message("assistant", turn.answer, 0));
    }
    Prompt prompt = prepare_chat(engine_, messages, std::move(images));
    prompt.salt = salt_;
    return prompt;
  }

  bool truncates() const {
    return flags_.context_full.empty() ? !flags_.session.empty() : flags_.context_full == "truncate";
  }

  bool full(const Prompt& prompt) const {
    return policy_->pattern().window == 0 && policy_->n_seen(prompt.shape()) >= engine_.max_positions();
  }

  // Takes the oldest turns out of the conversation until half of the context is free; the KV of the others stays. If
  // the last question alone is too long, the conversation stays as it is.
  Prompt truncate() {
    std::vector<Turn> all = turns_;
    Prompt shorter = prompt();
    while (turns_.size() > 1 && shorter.n_tokens() > engine_.max_positions() / 2) {
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
    std::fprintf(
        stderr,
        "the context of %d tokens is full: the model does not see the oldest %zu of %zu questions any more. The "
        "KV of the others is kept (%d tokens; it was computed with what is gone), %d tokens are computed "
        "(--context-full)\n",
        engine_.max_positions(), all.size() - turns_.size(), all.size(), n_kept, shorter.n_tokens() - n_kept);
    return shorter;
  }

  // Moves the KV of the conversation to its place in a prompt with fewer turns. Returns the number of its tokens.
  int32_t keep_kv(Prompt& shorter) {
    if (sequence_ == nullptr) return shorten_prefix(engine_, stored_, PrefixReuse::cached(engine_, stored_), shorter);
    const PrefixTokens tokens = PrefixReuse::tokens_of(*sequence_);
    const auto n = static_cast<int32_t>(tokens.ids.size());
    return shorten_prefix(engine_, tokens, {.n = n, .kv = sequence_->cache().fork(), .pin = {}}, shorter);
  }

  void check_fits(const Prompt& prompt) const {
    check_prompt_fits(engine_, *policy_, policy_->n_seen(prompt.shape()), *fields_.max_tokens);
  }

  // The images of a refused question wait for the next one, unless any question with them would be refused.
  void keep_if_usable(std::vector<EncodedImage> images) {
    if (images.empty()) return;
    turns_.push_back({"", std::move(images), ""});
    try {
      check_fits(prompt());
      pending_ = std::move(turns_.back().images);
    } catch (const Error&) {
      std::fputs("its pictures do not fit into this conversation and are dropped\n", stderr);
    }
    turns_.pop_back();
  }

  std::string answer(Prompt next) {
    Request request = builder_.request(std::move(next), fields_);
    select_image_tokens(engine_, *policy_, request.prompt, sequence_.get());
    n_dropped_ = request.prompt.selection ? request.prompt.selection->n_dropped : 0;
    if (sequence_) {
      sequence_->continue_with(request.prompt);
    } else {
      warn_of_small_budget(flags_.model, request.prompt.n_tokens());
      sequence_ = engine_.new_sequence(request.prompt, policy_);
    }
    ProgressBar bar("reading");
    request.sequence = sequence_.get();
    request.callbacks.cancelled = interrupted;
    request.callbacks.on_prefill = [&](int32_t done, int32_t total) { bar.update(done, total); };
    request.callbacks.on_text = [&](std::string_view text) {
      bar.clear();
      std::fwrite(text.data(), 1, text.size(), stdout);
      std::fflush(stdout);
    };
    last_ = generate(engine_, std::move(request));
    std::fputs("\n", stdout);
    std::fflush(stdout);
    if (*fields_.explain)
      std::fprintf(stderr, "%s\n", explanation(*last_, engine_.kv().totals(), builder_.reuse()).c_str());
    return last_->text;
  }

  Engine& engine_;
  const ChatFlags& flags_;
  PolicyPtr policy_;
  RequestBuilder& builder_;
  RequestFields fields_;
  std::vector<Turn> turns_;
  std::vector<EncodedImage> pending_;
  std::unique_ptr<Sequence> sequence_;
  std::unique_ptr<Session> session_;
  PrefixTokens stored_;               // by the session
  std::optional<Sha256Digest> salt_;  // of a conversation that was truncated: its KV is no other prompt's
  std::optional<GenerateResult> last_;
  int32_t n_dropped_ = 0;  // tokens that the model did not see
};

// Returns false when the conversation is over.
bool handle(Chat& chat, const std::string& line) {
  const std::string word = line.substr(0, line.find(' '));
  const size_t argument = line.find_first_not_of(' ', word.size());
  if (word == "/quit" || word == "/exit") return false;
  if (word == "/image") {
    if (argument == std::string::npos) throw Error(ErrorCode::kInput, "/image: expected a path");
    chat.add_image(line.substr(argument));
  } else if (word == "/stats") {
    chat.stats();
  } else if (word == "/reset") {
    chat.reset();
  } else if (word == "/undo") {
    chat.undo();
  } else if (word == "/help" || word.starts_with("/")) {
    if (word != "/help") std::fprintf(stderr, "unknown command %s\n", word.c_str());
    std::fputs(kHelp, stderr);
  } else if (!line.empty()) {
    chat.ask(line);
  }
  return true;
}

void run(const ChatFlags& flags) {
  if (!flags.session.empty() && flags.model.cache.disk.empty()) {
    throw Error(ErrorCode::kInput, "--session: expected --cache-disk DIR, where it is kept, found none");
  }
  const Checkpoint checkpoint(flags.model.model_dir);
  const PolicyPtr policy = chosen_policy(flags.model, checkpoint);
  const RequestFields given = given_fields(flags.generate, flags.model);
  ReuseChoice reuse = reuse_choice(flags.generate, given, flags.model, checkpoint);
  TierWarnings warnings;
  const std::unique_ptr<Engine> engine = load_engine(flags.model, checkpoint, {&policy, 1}, &warnings);
  reuse.open_counts(*engine, disk_folder(flags.model.cache), /*compares=*/false);
  RequestBuilder builder(*engine, reuse, &checkpoint);
  Chat chat(*engine, flags, policy, default_fields(given, engine->model().config().generation, Front::kRun), builder);
  std::fputs("type a message; /help lists commands\n", stderr);
  LineSource lines(STDIN_FILENO, interrupted);
  std::string line;
  // Reset before each line: a Ctrl-C that ended an answer has been handled.
  while (watch_interrupts(), std::fputs("> ", stderr), lines.next(line, /*wait=*/true)) {
    try {
      if (!handle(chat, line)) break;
      if (flags.session.empty()) engine->kv().queue_prefixes();  // a session has stored its own
      warnings.tell();
    } catch (const Error& e) {
      std::fprintf(stderr, "%s\n", e.what());  // the conversation continues
    } catch (const std::bad_alloc&) {
      std::fputs("out of memory\n", stderr);
    }
  }
  std::fputs("\n", stderr);
  if (interrupted()) throw Interrupted();
  if (flags.session.empty()) engine->kv().save_prefixes(Clock::now() + kSaveTime);
}

}  // namespace

void add_chat_command(const Command& app) {
  auto flags = std::make_shared<ChatFlags>();
  const Command command = app.add_command("chat", "talk about pictures, turn by turn");
  add_model_flags(command, flags->model);
  add_generate_flags(command, flags->generate, Front::kRun);
  command.add("-i,--image", flags->images, "a picture for the first message (one per use)")
      .value_name("FILE")
      .one_per_use();
  command.add("--system", flags->system, "system message").value_name("TEXT");
  command
      .add("--session", flags->session,
           "keep the conversation, its pictures and its KV under --cache-disk by this name, and go on with it")
      .value_name("NAME");
  command
      .add("--context-full", flags->context_full,
           "when the conversation has outgrown the model's context: truncate (the oldest questions and answers go, the "
           "KV of the others stays; the default with --session) or stop (the question is refused; the default without)")
      .one_of({"truncate", "stop"});
  command.footer(kHelp);
  command.run([flags] { run(*flags); });
}

}  // namespace vlcache
