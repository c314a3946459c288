#include "cli/terminal/markdown.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/utf8.h"

namespace vlcache {
namespace {

constexpr std::string_view kReset = "\x1b[0m", kBold = "\x1b[1m", kDim = "\x1b[2m", kCyan = "\x1b[36m";

// Columns of a character, by the blocks of East Asian and emoji characters.
size_t columns_of(char32_t c) {
  if ((c >= 0x300 && c <= 0x36F) || c == 0x200D || (c >= 0xFE00 && c <= 0xFE0F)) return 0;
  constexpr std::pair<char32_t, char32_t> kWide[] = {{0x1100, 0x115F},   {0x2E80, 0xA4CF},  {0xAC00, 0xD7A3},
                                                     {0xF900, 0xFAFF},   {0xFE30, 0xFE6F},  {0xFF00, 0xFF60},
                                                     {0x1F300, 0x1FAFF}, {0x20000, 0x3FFFF}};
  return std::ranges::any_of(kWide, [c](const auto& block) { return c >= block.first && c <= block.second; }) ? 2 : 1;
}

size_t n_columns(std::string_view text) {
  const std::string valid = to_valid_utf8(text);
  size_t n = 0;
  for (size_t i = 0; i < valid.size();) n += columns_of(next_code_point(valid, i));
  return n;
}

// "| a | **b** |" as {"a", "b"}.
std::vector<std::string> cells_of(std::string_view row) {
  std::vector<std::string> cells;
  std::string cell;
  const auto end = [&] {
    const size_t begin = cell.find_first_not_of(' ');
    cells.push_back(begin == std::string::npos ? "" : cell.substr(begin, cell.find_last_not_of(' ') + 1 - begin));
    cell.clear();
  };
  row.remove_prefix(row.find('|') + 1);
  for (size_t i = 0; i < row.size(); ++i) {
    if (row[i] == '\\' && i + 1 < row.size() && row[i + 1] == '|') {
      cell += row[++i];
    } else if (row[i] == '|') {
      end();
    } else if (row.substr(i, 2) == "**") {
      ++i;
    } else if (row[i] != '`') {
      cell += row[i];
    }
  }
  if (cell.find_first_not_of(" \r") != std::string::npos) end();
  return cells;
}

// "|---|:-:|"
bool is_separator(const std::vector<std::string>& cells) {
  return std::ranges::all_of(cells, [](const std::string& cell) {
    return !cell.empty() && cell.find_first_not_of("-: ") == std::string::npos;
  });
}

}  // namespace

bool takes_colour(int fd) {
  const char* no = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  return isatty(fd) != 0 && (no == nullptr || *no == '\0') && terminal != nullptr &&
         std::string_view(terminal) != "dumb";
}

size_t terminal_width(int fd, size_t otherwise) {
  winsize size{};
  return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : otherwise;
}

std::string TerminalMarkdown::add(std::string_view text) {
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::exchange(after_c2_, false)) {
      if (byte >= 0x80 && byte < 0xA0) continue;  // U+0080 to U+009F are control characters, too
      take('\xC2');
    }
    after_c2_ = byte == 0xC2;
    if (after_c2_ || (byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7F) continue;
    take(c);
  }
  return std::exchange(out_, "");
}

void TerminalMarkdown::take(char c) {
  if (!options_.renders) {
    out_ += c;
    return;
  }
  switch (place_) {
    case Place::kLineBegin:
      held_ += c;
      begin_line();
      break;
    case Place::kText:
      c == '\n' ? end_line() : take_text(c);
      break;
    case Place::kFenceLine:
    case Place::kCode:
      if (c == '\n') {
        out_ += kReset;
        place_ = Place::kLineBegin;
      }
      out_ += c;
      break;
    case Place::kTable:
      if (c == '\n') {
        table_.push_back(std::exchange(held_, ""));
        place_ = Place::kLineBegin;
      } else {
        held_ += c;
      }
      break;
  }
}

// Decides what the line is that begins with held_, or waits for more of it.
void TerminalMarkdown::begin_line() {
  const size_t indent = std::min(held_.find_first_not_of(" \t"), held_.size());
  const std::string_view line = std::string_view(held_).substr(indent);
  const bool ended = line.ends_with('\n');
  const auto is_all = [&](char c, size_t n) {
    return line.substr(0, line.size() - n).find_first_not_of(c) == line.npos;
  };
  if (line.empty()) return;
  constexpr std::string_view kFence = "```";
  if (kFence.starts_with(line)) {
    if (line != kFence) return;
    end_table();
    in_fence_ = !in_fence_;
    out_ += std::string(kDim) + std::exchange(held_, "");
    place_ = Place::kFenceLine;
    return;
  }
  if (in_fence_) {
    out_ += options_.colour ? kCyan : "";
    place_ = Place::kCode;
    for (const char c : std::exchange(held_, "")) take(c);
    return;
  }
  if (line[0] == '|') {
    place_ = Place::kTable;
    return;
  }
  end_table();
  // Shows the first n bytes of the line as `mark`.
  const auto continue_after = [&](size_t n, std::string_view mark = "") {
    const std::string rest = held_.substr(indent + n);
    out_ += held_.substr(0, indent);
    out_ += mark;
    held_.clear();
    place_ = Place::kText;
    for (const char c : rest) take(c);
  };
  const size_t n_hashes = std::min(line.find_first_not_of('#'), line.size());
  if (n_hashes > 0 && n_hashes <= 6) {
    if (n_hashes == line.size()) return;
    heading_ = line[n_hashes] == ' ';
    if (heading_) style();
    return continue_after(heading_ ? n_hashes + 1 : 0);
  }
  if (line[0] == '-' && is_all('-', ended ? 1 : 0)) {
    if (!ended) return;
    if (line.size() < 4) return continue_after(0);
    std::string rule;
    for (size_t i = 0; i < std::min<size_t>(options_.width, 40); ++i) rule += "\u2500";
    return continue_after(line.size() - 1, rule);
  }
  if (line == "*" || line == "+") return;
  if (line.substr(0, 2) == "- " || line.substr(0, 2) == "* " || line.substr(0, 2) == "+ ") {
    return continue_after(2, "\u2022 ");
  }
  if (line[0] == '>') return continue_after(1, std::string(kDim) + "\u2502" + std::string(kReset));
  continue_after(0);
}

void TerminalMarkdown::take_text(char c) {
  if (std::exchange(escaped_, false)) {
    constexpr std::string_view kMarks = "*`_#|";
    if (kMarks.find(c) == std::string_view::npos) out_ += '\\';
    out_ += c;
    return;
  }
  if (c == '*' && !code_) {
    ++n_stars_;
    return;
  }
  settle_stars(c);
  escaped_ = c == '\\' && !code_;
  if (escaped_) return;
  if (c == '`') {
    code_ = !code_;
    style();
    if (!options_.colour) out_ += c;
    return;
  }
  out_ += c;
}

// Two stars begin bold text before a letter, and end it.
void TerminalMarkdown::settle_stars(char next) {
  const size_t n = std::exchange(n_stars_, 0);
  if (n >= 2 && (bold_ || (next != ' ' && next != '\n'))) {
    bold_ = !bold_;
    style();
    out_.append(n - 2, '*');
  } else {
    out_.append(n, '*');
  }
}

void TerminalMarkdown::style() {
  out_ += kReset;
  if (bold_ || heading_) out_ += kBold;
  if (code_ && options_.colour) out_ += kCyan;
}

void TerminalMarkdown::end_line() {
  settle_stars('\n');
  if (std::exchange(escaped_, false)) out_ += '\\';
  if (heading_ || bold_ || code_) out_ += kReset;
  heading_ = bold_ = code_ = false;
  out_ += '\n';
  place_ = Place::kLineBegin;
}

// Prints the rows that were held back, in columns.
void TerminalMarkdown::end_table() {
  const std::vector<std::string> lines = std::exchange(table_, {});
  std::vector<std::vector<std::string>> rows;
  std::vector<size_t> widths;
  for (const std::string& line : lines) {
    rows.push_back(cells_of(line));
    widths.resize(std::max(widths.size(), rows.back().size()));
  }
  const bool has_header = rows.size() > 1 && is_separator(rows[1]);
  if (has_header) rows.erase(rows.begin() + 1);
  size_t width = 0;
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], n_columns(row[i]));
  }
  for (const size_t w : widths) width += w + 3;
  if (!has_header || width > options_.width + 3) {
    for (const std::string& line : lines) out_ += line + '\n';
    return;
  }
  for (size_t r = 0; r < rows.size(); ++r) {
    std::string line, rule;
    for (size_t i = 0; i < widths.size(); ++i) {
      const std::string cell = i < rows[r].size() ? rows[r][i] : "";
      const bool last = i + 1 == widths.size();
      line += cell + (last ? "" : std::string(widths[i] - n_columns(cell), ' ') + " \u2502 ");
      for (size_t k = 0; k < widths[i]; ++k) rule += "\u2500";
      rule += last ? "" : "\u2500\u253C\u2500";
    }
    out_ += r == 0 ? std::string(kBold) + line + std::string(kReset) + '\n' + rule + '\n' : line + '\n';
  }
}

std::string TerminalMarkdown::finish() {
  if (std::exchange(after_c2_, false)) take('\xC2');
  if (!options_.renders) return std::exchange(out_, "");
  const bool in_table = place_ == Place::kTable;
  if (in_table) table_.push_back(std::exchange(held_, ""));
  end_table();
  if (in_table && out_.ends_with('\n')) out_.pop_back();
  if (place_ == Place::kFenceLine || place_ == Place::kCode) out_ += kReset;
  if (place_ == Place::kLineBegin) out_ += std::exchange(held_, "");
  settle_stars('\n');
  if (std::exchange(escaped_, false)) out_ += '\\';
  if (heading_ || bold_ || code_) out_ += kReset;
  heading_ = bold_ = code_ = in_fence_ = false;
  place_ = Place::kLineBegin;
  return std::exchange(out_, "");
}

}  // namespace vlcache
