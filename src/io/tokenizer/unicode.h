// Classifies characters and normalizes text as Hugging Face tokenizers does. Its libraries carry several Unicode
// versions (normalization and accents 9, punctuation 8, regular expressions 16); each function follows its own.
#pragma once

#include <string>
#include <string_view>

namespace vlcache {

bool is_white_space(char32_t c);     // Rust's char::is_whitespace, White_Space
bool is_word_character(char32_t c);  // \w of Rust's regex crate
bool is_numeric(char32_t c);         // Rust's char::is_numeric, category N
bool is_punctuation(char32_t c);     // ASCII punctuation or category P of Unicode 8
bool is_combining_mark(char32_t c);  // category M of Unicode 9

// Rust's char::to_lowercase, without context; may be more than one character (U+0130).
void append_lowercase(std::string& out, char32_t c);

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// `text` must be valid UTF-8. Characters assigned after Unicode 9 neither decompose, compose nor reorder.
std::string normalize_text(NormalForm form, std::string_view text);

// For a character that PCRE2's Unicode 14 lacks but the reference's 16 has: an older one of the same category and UTF-8
// length, which a pattern treats alike. 0 if c needs none. Never replaces a character below U+0800.
char32_t stand_in_character(char32_t c);

}  // namespace vlcache
