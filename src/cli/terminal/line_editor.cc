// libedit edits; the bytes are read here, so that waiting can be stopped and pastes are taken whole.
#include "cli/terminal/line_editor.h"

#include <fcntl.h>
#include <histedit.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <cwchar>

#include "base/os/signals.h"
#include "base/os/user_folder.h"
#include "cli/terminal/line_layout.h"
#include "cli/terminal/markdown.h"
#include "cli/terminal/paste.h"

namespace vlcache {
namespace {

constexpr int kMaxHistory = 1000;  // messages
constexpr int kWaitMs = 100;       // longest delay of a signal that arrives just before poll
constexpr char kLiteral = '\1';    // surrounds characters of no width in a prompt

volatile std::sig_atomic_t g_resized = 0;
void on_resize(int) { g_resized = 1; }

// Whether the terminal wraps lines again when its width changes. Most do; xterm, the console and screen do not.
bool reflows() {
  const auto is_set = [](const char* name) { return std::getenv(name) != nullptr; };
  const std::string_view terminal = is_set("TERM") ? std::getenv("TERM") : "";
  return !is_set("XTERM_VERSION") && terminal != "linux" && (!terminal.starts_with("screen") || is_set("TMUX"));
}

size_t n_characters(std::string_view utf8) {
  return static_cast<size_t>(
      std::ranges::count_if(utf8, [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

// Candidates in columns, as wide as the terminal.
void list_candidates(std::FILE* out, const std::vector<std::string>& candidates) {
  constexpr size_t kMost = 200;
  const size_t width = terminal_width(fileno(out));
  size_t longest = 0;
  for (const std::string& c : candidates) longest = std::max(longest, n_characters(c));
  const size_t n_columns = std::max<size_t>(1, width / (longest + 2));
  std::fputs("\n", out);
  for (size_t i = 0; i < std::min(candidates.size(), kMost); ++i) {
    const bool last = (i + 1) % n_columns == 0 || i + 1 == candidates.size();
    const std::string space = last ? "\n" : std::string(longest + 2 - n_characters(candidates[i]), ' ');
    std::fprintf(out, "%s%s", candidates[i].c_str(), space.c_str());
  }
  if (candidates.size() > kMost) std::fprintf(out, "\n... %zu more\n", candidates.size() - kMost);
}

}  // namespace

struct LineEditor::State {
  Options options;
  std::string prompt;
  EditLine* edit = nullptr;
  History* history = nullptr;
  std::FILE* out = nullptr;
  std::string unread;          // bytes that have arrived
  bool ctrl_c = false;         // the line was ended by it
  bool cleared_text = false;   // and was not empty
  bool asked_to_end = false;   // Ctrl-C at an empty line, just before
  size_t width = 80;           // the terminal's, when the line was drawn
  bool drawn_whole = false;    // by libedit, at once: not as it was typed
  struct sigaction before {};  // of SIGWINCH

  static State& of(EditLine* edit) {
    void* state = nullptr;
    el_get(edit, EL_CLIENTDATA, &state);
    return *static_cast<State*>(state);
  }

  // Appends the bytes that have arrived to `unread`. Returns false at the end of the input, or when waiting was
  // stopped.
  bool read_more(int wait_ms) {
    while (!options.stopped || !options.stopped()) {
      pollfd poll{STDIN_FILENO, POLLIN, 0};
      const int ready = ::poll(&poll, 1, wait_ms);
      if (g_resized != 0) {
        g_resized = 0;
        redraw();
      }
      if (ready == 0 && wait_ms == 0) return true;
      if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
      char bytes[4096];
      const ssize_t n = ready < 0 ? -1 : ::read(STDIN_FILENO, bytes, sizeof bytes);
      if (n > 0) unread.append(bytes, static_cast<size_t>(n));
      if (n > 0) return true;
      if (n == 0 || (errno != EINTR && errno != EAGAIN)) return false;
    }
    return false;
  }

  // Draws the line again after a change of the terminal's size. libedit draws from the cursor on, whose place it has
  // lost: the cursor is moved to the line's beginning first.
  void redraw() {
    const LineInfoW* line = el_wline(edit);
    const size_t now = terminal_width(fileno(out));
    const std::wstring shown = std::wstring(options.prompt.begin(), options.prompt.end()) +
                               std::wstring(line->buffer, static_cast<size_t>(line->cursor - line->buffer));
    const size_t row = !reflows()    ? cursor_row(shown, std::max<size_t>(2, width))
                       : drawn_whole ? rewrapped_cursor_row(shown, std::max<size_t>(2, width), std::max<size_t>(2, now))
                                     : cursor_row(shown, std::max<size_t>(2, now));
    if (row > 0) std::fprintf(out, "\x1b[%zuA", row);
    std::fputs("\r\x1b[J", out);
    std::fflush(out);
    width = now;
    drawn_whole = true;
    el_resize(edit);
    el_set(edit, EL_REFRESH);
  }

  bool read_byte(char& c) {
    while (unread.empty()) {
      if (!read_more(kWaitMs)) return false;
    }
    c = unread[0];
    unread.erase(0, 1);
    return true;
  }

  static int read_character(EditLine* edit, wchar_t* out) {
    State& self = of(edit);
    std::mbstate_t partial{};
    for (char c = 0; self.read_byte(c);) {
      const size_t n = std::mbrtowc(out, &c, 1, &partial);
      if (n == static_cast<size_t>(-2)) continue;  // incomplete
      if (n == static_cast<size_t>(-1)) {          // not UTF-8
        partial = {};
        continue;
      }
      return 1;
    }
    return 0;
  }

  static unsigned char on_paste(EditLine* edit, int) {
    State& self = of(edit);
    Pasted pasted;
    for (char c = 0; self.read_byte(c);) {
      if (!pasted.add(c)) continue;
      self.read_more(0);
      pasted.take_rest(self.unread);
      break;
    }
    const std::string text = pasted.text();
    if (!text.empty() && el_insertstr(edit, text.c_str()) != 0) return CC_ERROR;
    self.asked_to_end = false;
    return CC_REFRESH;
  }

  static unsigned char on_tab(EditLine* edit, int) {
    State& self = of(edit);
    if (!self.options.complete) return CC_ERROR;
    const LineInfo* line = el_line(edit);
    const std::string before(line->buffer, line->cursor);
    const Completion completion = self.options.complete(before);
    if (completion.candidates.empty()) return CC_ERROR;
    std::string common = common_beginning(completion.candidates);
    const std::string typed = before.substr(completion.begin);
    if (completion.candidates.size() == 1 && !common.ends_with('/')) common += ' ';
    if (common == typed) {
      list_candidates(self.out, completion.candidates);
      return CC_REDISPLAY;
    }
    el_deletestr(edit, static_cast<int>(n_characters(typed)));
    return el_insertstr(edit, common.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
  }

  static unsigned char on_ctrl_c(EditLine* edit, int) {
    State& self = of(edit);
    const LineInfo* line = el_line(edit);
    self.ctrl_c = true;
    self.cleared_text = line->lastchar != line->buffer;
    return CC_EOF;
  }

  static unsigned char on_ctrl_z(EditLine* edit, int) {
    State& self = of(edit);
    self.set_paste(false);
    el_set(edit, EL_PREP_TERM, 0);
    kill(0, SIGTSTP);
    el_set(edit, EL_PREP_TERM, 1);
    self.set_paste(true);
    return CC_REDISPLAY;
  }

  static char* prompt_of(EditLine* edit) { return of(edit).prompt.data(); }

  void set_paste(bool on) const {
    std::fputs(on ? "\x1b[?2004h" : "\x1b[?2004l", out);
    std::fflush(out);
  }

  void bind_keys() const {
    const auto add = [&](const char* name, unsigned char (*function)(EditLine*, int), const char* keys) {
      el_set(edit, EL_ADDFN, name, name, function);
      el_set(edit, EL_BIND, keys, name, nullptr);
    };
    constexpr const char* kKeys[][2] = {
        {"\\e[3~", "ed-delete-next-char"}, {"\\e[H", "ed-move-to-beg"},   {"\\e[F", "ed-move-to-end"},
        {"\\e[1~", "ed-move-to-beg"},      {"\\e[4~", "ed-move-to-end"},  {"\\eOH", "ed-move-to-beg"},
        {"\\eOF", "ed-move-to-end"},       {"\\e[1;5D", "ed-prev-word"},  {"\\e[1;5C", "em-next-word"},
        {"\\e[A", "ed-prev-history"},      {"\\e[B", "ed-next-history"},  {"\\e[C", "ed-next-char"},
        {"\\e[D", "ed-prev-char"},         {"^W", "ed-delete-prev-word"}, {"^R", "em-inc-search-prev"},
    };
    for (const auto& [keys, function] : kKeys) el_set(edit, EL_BIND, keys, function, nullptr);
    el_source(edit, nullptr);  // the user's own: ~/.editrc
    add("vlcache-paste", on_paste, "\\e[200~");
    add("vlcache-complete", on_tab, "^I");
    add("vlcache-clear", on_ctrl_c, "^C");
    add("vlcache-suspend", on_ctrl_z, "^Z");
  }

  void load_history() const {
    HistEvent event{};
    ::history(history, &event, H_SETSIZE, kMaxHistory);
    ::history(history, &event, H_SETUNIQUE, 1);
    el_set(edit, EL_HIST, ::history, history);
    if (options.history.empty()) return;
    const int n = ::history(history, &event, H_LOAD, options.history.c_str());
    if (n > 2 * kMaxHistory) {
      ::history(history, &event, H_SAVE, options.history.c_str());
      ::chmod(options.history.c_str(), 0600);
    }
  }

  // Failure to write it is not worth a word: the conversation continues without.
  void remember(const std::string& message) const {
    HistEvent event{};
    ::history(history, &event, H_ENTER, message.c_str());
    if (options.history.empty()) return;
    std::error_code error;
    const std::filesystem::path folder = options.history.parent_path();
    std::filesystem::create_directories(folder.parent_path(), error);
    ::mkdir(folder.c_str(), 0700);
    const int fd = ::open(options.history.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    std::FILE* file = fd < 0 ? nullptr : ::fdopen(fd, "a");
    if (file == nullptr) return;
    std::fseek(file, 0, SEEK_END);                            // the first line of a new file is libedit's mark
    ::history(history, &event, H_NSAVE_FP, size_t{0}, file);  // the newest: it counts earlier ones
    std::fclose(file);
  }
};

bool LineEditor::is_possible() {
  const char* terminal = std::getenv("TERM");
  return isatty(STDIN_FILENO) != 0 && isatty(STDERR_FILENO) != 0 && terminal != nullptr && *terminal != '\0' &&
         std::strcmp(terminal, "dumb") != 0;
}

std::filesystem::path LineEditor::default_history() {
  const std::filesystem::path state = user_folder("XDG_STATE_HOME", ".local/state");
  return state.empty() ? state : state / "vlcache" / "history";
}

LineEditor::LineEditor(Options options) : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.options = std::move(options);
  const std::string mark(1, kLiteral);
  s.prompt = s.options.bold ? mark + "\x1b[1m" + mark + s.options.prompt + mark + "\x1b[0m" + mark : s.options.prompt;
  std::setlocale(LC_CTYPE, "");
  if (MB_CUR_MAX == 1) std::setlocale(LC_CTYPE, "C.UTF-8");  // containers set no locale
  s.out = ::fdopen(::dup(STDERR_FILENO), "w");
  s.edit = el_init("vlcache", stdin, s.out, s.out);
  s.history = history_init();
  el_set(s.edit, EL_CLIENTDATA, &s);
  el_set(s.edit, EL_PROMPT_ESC, State::prompt_of, kLiteral);
  el_set(s.edit, EL_EDITOR, "emacs");
  el_set(s.edit, EL_SIGNAL, 0);
  el_set(s.edit, EL_GETCFN, State::read_character);
  // A paste may contain ^C and line breaks of any kind: they arrive as bytes.
  el_set(s.edit, EL_SETTY, "-d", "-isig", "-icrnl", "-inlcr", nullptr);
  s.bind_keys();
  s.load_history();
}

LineEditor::~LineEditor() {
  history_end(state_->history);
  el_end(state_->edit);
  std::fclose(state_->out);
}

LineEditor::Result LineEditor::next(std::string& message) {
  State& s = *state_;
  s.before = handle_signal(SIGWINCH, on_resize, /*restarts=*/false);  // poll() ends, and the line is drawn again
  Result result = Result::kEnd;
  for (bool first = true;; first = false) {
    el_set(s.edit, EL_PREP_TERM, 1);  // libedit does so after the prompt: a Ctrl-C typed between would be a signal
    if (first) s.set_paste(true);
    s.ctrl_c = false;
    s.width = terminal_width(fileno(s.out));
    s.drawn_whole = false;
    int n = 0;
    const char* line = el_gets(s.edit, &n);
    if (line != nullptr && n > 0) {
      s.asked_to_end = false;
      message.assign(line, static_cast<size_t>(n));
      while (message.ends_with('\n')) message.pop_back();
      if (message.find_first_not_of(" \t\n") != std::string::npos) s.remember(message);
      result = Result::kMessage;
      break;
    }
    if (!s.ctrl_c) {
      result = s.options.stopped && s.options.stopped() ? Result::kStopped : Result::kEnd;
      break;
    }
    if (!s.cleared_text && s.asked_to_end) {
      std::fputs("\n", s.out);
      result = Result::kStopped;
      break;
    }
    s.asked_to_end = !s.cleared_text;
    std::fputs(s.cleared_text ? "^C\n" : "\nCtrl-C again, or Ctrl-D, ends the conversation\n", s.out);
    std::fflush(s.out);
  }
  s.set_paste(false);
  sigaction(SIGWINCH, &s.before, nullptr);
  return result;
}

}  // namespace vlcache
