#include "cli/terminal/shell_words.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <span>

#include "io/document/page_selection.h"

namespace vlcache {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kBlanks = " \t\n", kFileUrl = "file://";
// Characters that a shell, and so a terminal, writes with a backslash.
constexpr std::string_view kEscaped = " \t\n\\'\"()[]{}<>&;|*?$`!#";

// Whether there is such a file, pages of it that are selected (report.pdf#3-7) left aside.
bool is_regular(const std::string& path) {
  std::error_code error;
  const PathAndPages file = split_pages(path);
  return fs::is_regular_file(file.path, error) && file.pages.find_first_not_of("0123456789,-") == std::string::npos;
}

// Whether a text that stands alone is meant as a path.
bool has_form_of_path(std::string_view word) {
  return word.starts_with("/") || word.starts_with("~/") || word.starts_with("./") || word.starts_with("../") ||
         word.starts_with(kFileUrl);
}

bool has_extension(const std::string& path, std::span<const std::string_view> extensions) {
  std::string extension = fs::path(split_pages(path).path).extension();
  for (char& c : extension) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return std::ranges::find(extensions, extension) != extensions.end();
}

bool is_image_name(const std::string& path) {
  constexpr std::array<std::string_view, 9> kImages{".png", ".jpg", ".jpeg", ".webp", ".bmp",
                                                    ".gif", ".tif", ".tiff", ".pdf"};
  return has_extension(path, kImages);
}

bool is_clip_name(const std::string& path) {
  constexpr std::array<std::string_view, 6> kClips{".mp4", ".m4v", ".mov", ".webm", ".mkv", ".avi"};
  return has_extension(path, kClips);
}

// Whether a word that is no file is a mistaken path: by its extension, or by a folder from the root on.
bool is_missing_file(const std::string& word, const std::string& path) {
  std::error_code error;
  const bool is_path =
      is_image_name(path) || is_clip_name(path) || (path.starts_with('/') && word.find('/', 1) != word.npos);
  return has_form_of_path(word) && is_path && !fs::exists(split_pages(path).path, error);
}

std::string percent_decoded_path(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    const char* digits = text.data() + i + 1;
    if (text[i] == '%' && i + 2 < text.size() && std::from_chars(digits, digits + 2, value, 16).ptr == digits + 2) {
      out += static_cast<char>(value);
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin));
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (kEscaped.find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

// Reads one word from text[i] on, and moves i past it.
ShellWord read_word(std::string_view text, size_t& i) {
  ShellWord word{.text = "", .begin = i};
  char quote = 0;
  for (; i < text.size() && (quote != 0 || kBlanks.find(text[i]) == std::string_view::npos); ++i) {
    const char c = text[i];
    const bool has_next = i + 1 < text.size();
    if (quote == '\'' ? c == '\'' : c == quote && quote != 0) {
      quote = 0;
    } else if (quote == 0 && (c == '\'' || c == '"')) {
      quote = c;
    } else if (c == '\\' && has_next &&
               (quote == 0 || (quote == '"' && (text[i + 1] == '"' || text[i + 1] == '\\' || text[i + 1] == '$' ||
                                                text[i + 1] == '`')))) {
      word.text += text[++i];
    } else {
      word.text += c;
    }
  }
  word.end = i;
  return word;
}

}  // namespace

std::vector<ShellWord> shell_words(std::string_view line) {
  std::vector<ShellWord> words;
  for (size_t i = 0; (i = line.find_first_not_of(kBlanks, i)) != std::string_view::npos;) {
    words.push_back(read_word(line, i));
  }
  return words;
}

std::string expand_path(std::string_view path) {
  if (path.starts_with(kFileUrl)) {
    const size_t root = path.find('/', kFileUrl.size());  // after the host's name, which is usually empty
    return root == std::string_view::npos ? std::string(path) : percent_decoded_path(path.substr(root));
  }
  const char* home = std::getenv("HOME");
  if (home != nullptr && (path == "~" || path.starts_with("~/"))) return home + std::string(path.substr(1));
  return std::string(path);
}

std::vector<std::string> paths_of(std::string_view argument) {
  const std::string whole = expand_path(trimmed(argument));
  if (is_regular(whole)) return {whole};
  std::vector<std::string> paths;
  for (const ShellWord& word : shell_words(argument)) paths.push_back(expand_path(word.text));
  return paths;
}

DroppedFiles dropped_files(std::string_view message) {
  const std::string whole = trimmed(message);
  if (has_form_of_path(whole) && is_regular(expand_path(whole))) return {.paths = {expand_path(whole)}, .text = ""};
  DroppedFiles dropped;
  size_t text_begin = message.size();
  bool has_images_only = true;
  for (const ShellWord& word : shell_words(message)) {
    const std::string path = expand_path(word.text);
    if (is_missing_file(word.text, path)) return {.missing = path};
    if (!has_form_of_path(word.text) || !is_regular(path)) {
      const bool is_first = dropped.paths.empty() && !has_form_of_path(word.text);
      if (is_first && (is_image_name(path) || is_clip_name(path))) dropped.mere_name = word.text;
      text_begin = word.begin;
      break;
    }
    has_images_only = has_images_only && is_image_name(path);
    dropped.paths.push_back(path);
  }
  dropped.text = trimmed(message.substr(text_begin));
  if (!dropped.text.empty() && !has_images_only) return {};
  return dropped;
}

Completion complete_path(std::string_view before_cursor) {
  const std::vector<ShellWord> words = shell_words(before_cursor);
  if (words.empty() || words.back().end != before_cursor.size()) return {};
  const ShellWord& word = words.back();
  const size_t slash = word.text.rfind('/');
  const std::string folder = slash == std::string::npos ? "" : word.text.substr(0, slash + 1);
  const std::string name = word.text.substr(folder.size());
  const char first = before_cursor[word.begin];
  const char quote = first == '\'' || first == '"' ? first : '\0';
  Completion completion{.begin = word.begin, .candidates = {}};
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder.empty() ? "." : expand_path(folder), error)) {
    const std::string found = entry.path().filename();
    if (!found.starts_with(name) || (name.empty() && found.starts_with('.'))) continue;
    const bool is_folder = entry.is_directory(error);
    const std::string path = folder + found;
    std::string text = quote != '\0' ? quote + path : escaped(path);
    if (is_folder) text += '/';
    if (!is_folder && quote != '\0') text += quote;
    completion.candidates.push_back(std::move(text));
  }
  std::ranges::sort(completion.candidates);
  return completion;
}

Completion complete_word(std::string_view word, size_t begin, const std::vector<std::string>& known) {
  Completion completion{.begin = begin, .candidates = {}};
  std::ranges::copy_if(known, std::back_inserter(completion.candidates),
                       [&](const std::string& candidate) { return candidate.starts_with(word); });
  std::ranges::sort(completion.candidates);
  return completion;
}

std::string common_beginning(const std::vector<std::string>& candidates) {
  if (candidates.empty()) return "";
  std::string common = candidates[0];
  for (const std::string& candidate : candidates) {
    size_t n = 0;
    while (n < std::min(common.size(), candidate.size()) && common[n] == candidate[n]) ++n;
    while (n > 0 && n < common.size() && (static_cast<unsigned char>(common[n]) & 0xC0U) == 0x80U) --n;  // UTF-8
    common.resize(n);
  }
  return common;
}

}  // namespace vlcache
