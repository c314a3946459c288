// `vlcache chat`: a conversation on the terminal.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <new>
#include <optional>

#include "base/error.h"
#include "base/nearest.h"
#include "cli/commands/conversation.h"
#include "cli/flags/command_info.h"
#include "cli/flags/generate_flags.h"
#include "cli/flags/media_flags.h"
#include "cli/terminal/line_editor.h"
#include "cli/terminal/line_source.h"
#include "cli/terminal/markdown.h"
#include "io/video/video_file.h"

namespace vlcache {
namespace {

struct ChatFlags {
  ModelFlags model;
  GenerateFlags generate;
  MediaFlags media;
  std::string system;
  std::string session;
  std::string context_full;  // "": truncate with a session, else stop
  bool plain = false, no_history = false;
};

struct ChatCommand {
  const char* name;
  const char* argument;
  const char* help;
};

constexpr ChatCommand kCommands[] = {
    {"/image", "PATH ..", "add images or PDFs (report.pdf#3-7) to the next message; files can also be dropped"},
    {"/video", "PATH ..", "add a clip or a folder of frames likewise (clip.mp4,fps=1,max_frames=64)"},
    {"/system", "TEXT", "set the system message; without a text, show it; '': none"},
    {"/kv", "POLICY [BUDGET]", "set the KV policy from the next question on; without a policy, show it"},
    {"/codec", "CODEC", "set --kv-codec likewise; without a codec, show it"},
    {"/retry", "", "ask the last question again"},
    {"/undo", "", "remove the last question and answer"},
    {"/reset", "", "start over, without the images of the next message"},
    {"/stats", "", "tokens, timings and KV of the last answer"},
    {"/save", "FILE", "write the conversation with its images; the page of `serve` opens it, too"},
    {"/load", "FILE", "continue a conversation from a file written by /save or the page"},
    {"/help", "", "this list"},
    {"/quit", "", "leave (or Ctrl-D)"},
};
constexpr const char* kKeys =
    "Ctrl-C stops an answer or clears the line; twice in a row, it ends the conversation. Tab completes commands and "
    "paths, \u2191 brings back former messages.\n";

std::string commands_text() {
  std::string text;
  for (const ChatCommand& c : kCommands) {
    std::string line = std::string(c.name) + " " + c.argument;
    line.resize(std::max<size_t>(line.size() + 1, 22), ' ');
    text += line + c.help + "\n";
  }
  return text + kKeys;
}

bool is_command(std::string_view word) {
  return word == "/exit" || std::ranges::any_of(kCommands, [&](const ChatCommand& c) { return c.name == word; });
}

// For Tab.
Completion complete_message(std::string_view before_cursor) {
  std::vector<std::string> commands, policies;
  for (const ChatCommand& c : kCommands) commands.emplace_back(c.name);
  if (before_cursor.starts_with("/") && before_cursor.find_first_of(" /", 1) == std::string_view::npos) {
    Completion completion = complete_word(before_cursor, 0, commands);
    if (!completion.candidates.empty()) return completion;
  }
  constexpr std::string_view kPolicy = "/kv ";
  if (before_cursor.starts_with(kPolicy)) {
    policies.emplace_back("auto");
    for (const PolicyInfo& policy : policy_infos()) {
      const bool stands_alone = policy.kind == PolicyInfo::Kind::kPolicy || policy.kind == PolicyInfo::Kind::kScorer;
      if (stands_alone) policies.emplace_back(policy.name);
    }
    return complete_word(before_cursor.substr(kPolicy.size()), kPolicy.size(), policies);
  }
  constexpr std::string_view kCodec = "/codec ";
  if (before_cursor.starts_with(kCodec)) {
    std::vector<std::string> codecs{"auto"};
    for (int i = 0; i < kKvCodecs; ++i) codecs.emplace_back(kv_codec_name(static_cast<KvCodec>(i)));
    return complete_word(before_cursor.substr(kCodec.size()), kCodec.size(), codecs);
  }
  return complete_path(before_cursor);
}

// The only path of a command. Throws Error(kInput).
std::string only_path(const std::string& command, const std::string& argument) {
  const std::vector<std::string> paths = paths_of(argument);
  if (paths.size() == 1) return paths[0];
  throw Error(ErrorCode::kInput, command + ": expected a path (quoted if it has spaces), found " +
                                     (paths.empty() ? "none" : "'" + argument + "'"));
}

void add_images(Conversation& chat, const std::vector<std::string>& paths) {
  if (paths.empty()) throw Error(ErrorCode::kInput, "/image: expected a path");
  for (const std::string& path : paths) chat.add_image(path);
}

void add_videos(Conversation& chat, const std::vector<std::string>& paths) {
  if (paths.empty()) throw Error(ErrorCode::kInput, "/video: expected a path");
  for (const std::string& path : paths) chat.add_video(path);
}

// Dropped files may be either.
void add_files(Conversation& chat, const std::vector<std::string>& paths) {
  for (const std::string& path : paths) is_clip_file(path) ? chat.add_video(path) : chat.add_image(path);
}

void set_policy(Conversation& chat, const std::string& argument) {
  const std::vector<ShellWord> words = shell_words(argument);
  if (words.empty()) return chat.print_policy();
  if (words.size() > 2) {
    throw Error(ErrorCode::kInput, "/kv: expected POLICY [BUDGET], found '" + argument + "'");
  }
  chat.set_policy(words[0].text, words.size() == 2 ? words[1].text : "");
}

void set_codec(Conversation& chat, const std::string& argument) {
  const std::vector<ShellWord> words = shell_words(argument);
  if (words.empty()) return chat.print_codec();
  if (words.size() > 1) throw Error(ErrorCode::kInput, "/codec: expected CODEC, found '" + argument + "'");
  chat.set_codec(words[0].text);
}

void set_system(Conversation& chat, const std::string& argument) {
  if (!argument.empty()) chat.set_system(argument == "''" || argument == "\"\"" ? "" : argument);
  const std::string& text = chat.system();
  std::fprintf(stderr, "system message: %s\n", text.empty() ? "none" : text.c_str());
}

// Text that begins with the name of a file may have been meant to attach it.
void tell_of_name(const std::string& name) {
  std::error_code error;
  const bool exists = std::filesystem::is_regular_file(name, error);
  std::fprintf(stderr, "%s: %s\n", name.c_str(),
               exists ? "sent as text; /image or /video attaches a file" : "no such file; sent as text");
}

// For a message that begins with a slash and is no command.
void refuse_command(const std::string& word) {
  if (word.find('/', 1) != std::string::npos) {
    throw Error(ErrorCode::kInput, "a message cannot begin with " + word +
                                       ": /image attaches images and PDFs, /video clips and folders of frames");
  }
  std::vector<std::string> names;
  for (const ChatCommand& c : kCommands) names.emplace_back(c.name);
  throw Error(ErrorCode::kInput, "unknown command " + word + did_you_mean(word, names) + "; /help lists all");
}

// Returns false when the conversation is over.
bool handle(Conversation& chat, const std::string& message, bool typed) {
  const std::string word = message.substr(0, message.find_first_of(" \n"));
  const size_t begin = message.find_first_not_of(" \n", word.size());
  const std::string argument = begin == std::string::npos ? "" : message.substr(begin);
  if (typed && !is_command(word)) {
    const DroppedFiles dropped = dropped_files(message);
    if (!dropped.missing.empty()) throw Error(ErrorCode::kInput, "no such file: " + dropped.missing);
    if (!dropped.mere_name.empty()) tell_of_name(dropped.mere_name);
    if (!dropped.paths.empty()) {
      add_files(chat, dropped.paths);
      if (!dropped.text.empty()) chat.ask(dropped.text);
      return true;
    }
  }
  if (word == "/quit" || word == "/exit") return false;
  if (word == "/image") {
    add_images(chat, paths_of(argument));
  } else if (word == "/video") {
    add_videos(chat, paths_of(argument));
  } else if (word == "/stats") {
    chat.print_stats();
  } else if (word == "/reset") {
    chat.reset();
  } else if (word == "/undo") {
    chat.undo();
  } else if (word == "/retry") {
    chat.retry();
  } else if (word == "/system") {
    set_system(chat, argument);
  } else if (word == "/kv") {
    set_policy(chat, argument);
  } else if (word == "/codec") {
    set_codec(chat, argument);
  } else if (word == "/save") {
    chat.save_to(only_path(word, argument));
  } else if (word == "/load") {
    chat.load_from(only_path(word, argument));
  } else if (word == "/help") {
    std::fputs(wrapped_lines(commands_text(), terminal_width(STDERR_FILENO)).c_str(), stderr);
  } else if (word.starts_with("/")) {
    refuse_command(word);
  } else if (message.find_first_not_of(" \t\n") != std::string::npos || (!typed && !message.empty())) {
    chat.ask(message);
  }
  return true;
}

// Messages that are typed, or lines of a pipe.
class Messages {
 public:
  explicit Messages(const ChatFlags& flags) : lines_(STDIN_FILENO, interrupted) {
    if (!LineEditor::is_possible()) return;
    editor_.emplace(
        LineEditor::Options{.prompt = "> ",
                            .bold = !flags.plain && takes_colour(STDERR_FILENO),
                            .history = flags.no_history ? std::filesystem::path() : LineEditor::default_history(),
                            .complete = complete_message,
                            .stopped = interrupted});
  }

  bool typed() const { return editor_.has_value(); }
  bool next(std::string& message) {
    if (!editor_) {
      std::fputs("> ", stderr);
      return lines_.next(message, /*wait=*/true);
    }
    const LineEditor::Result result = editor_->next(message);
    if (result == LineEditor::Result::kStopped) throw Interrupted();
    return result == LineEditor::Result::kMessage;
  }

 private:
  LineSource lines_;
  std::optional<LineEditor> editor_;
};

void run(const ChatFlags& flags) {
  if (!flags.session.empty() && flags.model.cache.disk.empty()) {
    throw Error(ErrorCode::kInput, "--session: expected --cache-disk DIR, where it is kept, found none");
  }
  const Checkpoint checkpoint = checkpoint_of(flags.model);
  const PolicyPtr policy = chosen_policy(flags.model, checkpoint);
  const RequestFields given = given_fields(flags.generate, flags.model);
  ReuseChoice reuse = reuse_choice(flags.generate, given, flags.model, checkpoint);
  TierWarnings warnings;
  const std::unique_ptr<Engine> engine = load_engine(flags.model, checkpoint, {&policy, 1}, &warnings);
  reuse.open_counts(*engine, disk_folder(flags.model.cache), /*compares=*/false);
  std::fputs(special_tokens_text(*engine, given).c_str(), stderr);
  RequestBuilder builder(*engine, reuse, &checkpoint);
  Conversation chat(
      *engine,
      {.model = flags.model,
       .system = flags.system,
       .session = flags.session,
       .truncates = flags.context_full.empty() ? !flags.session.empty() : flags.context_full == "truncate",
       .printing = {.plain = flags.plain}},
      policy, defaults_for(*engine, given, Front::kRun), builder, checkpoint);
  for (const std::string& path : flags.media.images) chat.add_image(path);
  for (const std::string& argument : flags.media.videos) chat.add_video(argument);
  std::fputs("type a message; /help lists commands\n", stderr);
  Messages messages(flags);
  std::string message;
  // Reset before each message: a Ctrl-C that ended an answer has been handled.
  while (watch_interrupts(), messages.next(message)) {
    try {
      if (!handle(chat, message, messages.typed())) break;
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
  const Command command = app.add_command("chat", "Chat about images in the terminal");
  add_model_flags(command, flags->model);
  add_generate_flags(command, flags->generate, Front::kRun);
  add_media_flags(command, flags->media, "It belongs to the first message");
  command.add("--system", flags->system, "System message (default: none)").value_name("TEXT").group("Basic");
  command
      .add("--session", flags->session,
           "Name under which the conversation, its images and their KV are stored in --cache-disk, and from which it "
           "resumes (default: nothing is stored)")
      .value_name("NAME");
  command
      .add("--context-full", flags->context_full,
           "Action when the conversation exceeds the model's context: truncate (remove the oldest turns and keep the "
           "KV of the others; default with --session) or stop (refuse the question; default without)")
      .one_of({"truncate", "stop"});
  command.add("--plain", flags->plain,
              "Print answers as the model wrote them, without colours and formatting, on a terminal as well");
  command.add(
      "--no-history", flags->no_history,
      "Do not store messages for \u2191 in later conversations (default: stored in $XDG_STATE_HOME/vlcache/history)");
  command.footer(commands_text());
  command.run([flags] { run(*flags); });
}

}  // namespace vlcache
