// Regex by PCRE2: options that make it behave like Oniguruma, limits, and the search loop.
#include "io/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>

#include "base/error.h"
#include "base/utf8.h"
#include "io/tokenizer/unicode.h"

namespace vlcache {
namespace {

constexpr size_t kJitStackStart = size_t{64} << 10;
constexpr size_t kJitStackMax = size_t{256} << 20;  // reserved address space; pages are used only when touched
// Steps a search may need: Oniguruma's limit (10 million), more for longer texts.
constexpr uint32_t kMinMatchLimit = 10'000'000;

template <auto kFree>
struct Freer {
  template <typename T>
  void operator()(T* p) const {
    kFree(p);
  }
};
using MatchData = std::unique_ptr<pcre2_match_data, Freer<pcre2_match_data_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Freer<pcre2_match_context_free>>;
using CompileContext = std::unique_ptr<pcre2_compile_context, Freer<pcre2_compile_context_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, Freer<pcre2_jit_stack_free>>;

std::string describe(int error) {
  char buffer[160] = "";
  pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(buffer), sizeof buffer);
  return buffer;
}

// `text` with characters unknown to PCRE2 replaced by similar ones of the same length; empty if it has none.
std::string with_stand_ins(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    if (static_cast<unsigned char>(text[i]) < 0xE0) {  // nothing new below U+0800; trailing bytes pass here too
      ++i;
      continue;
    }
    const size_t start = i;
    const char32_t stand_in = stand_in_character(next_code_point(text, i));
    if (stand_in == 0) continue;
    if (out.empty()) out = text;
    std::string bytes;
    append_utf8(bytes, stand_in);
    out.replace(start, i - start, bytes);
  }
  return out;
}

// One search through a text: match data and, when a pattern needs it, a larger stack for the compiled code.
class Search {
 public:
  Search(const pcre2_code* code, std::string_view text, const std::string& where)
      : code_(code), text_(text), where_(where), data_(pcre2_match_data_create(1, nullptr)) {
    if (data_ == nullptr) throw Error(ErrorCode::kMemory, "no memory for a regular expression search");
  }

  // The first match at or after `from`; false if none is left.
  bool next(size_t from, size_t& start, size_t& end) {
    int rc = match(from);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT && stack_ == nullptr) {
      use_large_stack();
      rc = match(from);
    }
    if (rc == PCRE2_ERROR_NOMATCH) return false;
    if (rc < 0) {
      throw Error(ErrorCode::kInput, where_ + ": the regular expression gave up on a text of " +
                                         std::to_string(text_.size()) + " bytes at byte " + std::to_string(from) +
                                         ": " + describe(rc));
    }
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(data_.get());
    end = bounds[1];
    start = std::min<size_t>(bounds[0], end);  // \K in a lookahead can put the start after the end
    return true;
  }

 private:
  int match(size_t from) {
    // The text was checked once; checking it again in every call would make cutting quadratic.
    return pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text_.data()), text_.size(), from, PCRE2_NO_UTF_CHECK,
                       data_.get(), long_context());
  }

  // A context only where the defaults do not suffice: for long texts and after the small stack overflowed.
  pcre2_match_context* long_context() {
    if (context_ == nullptr && text_.size() * 16 > kMinMatchLimit) make_context();
    return context_.get();
  }

  void make_context() {
    context_.reset(pcre2_match_context_create(nullptr));
    if (context_ == nullptr) throw Error(ErrorCode::kMemory, "no memory for a regular expression search");
    pcre2_set_match_limit(context_.get(),
                          static_cast<uint32_t>(std::clamp<size_t>(text_.size() * 16, kMinMatchLimit, UINT32_MAX)));
  }

  void use_large_stack() {
    stack_.reset(pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr));
    if (stack_ == nullptr) throw Error(ErrorCode::kMemory, "no memory for a regular expression's stack");
    if (context_ == nullptr) make_context();
    pcre2_jit_stack_assign(context_.get(), nullptr, stack_.get());
  }

  const pcre2_code* code_;
  std::string_view text_;
  const std::string& where_;
  MatchData data_;
  MatchContext context_;
  JitStack stack_;
};

}  // namespace

struct Regex::Compiled {
  std::unique_ptr<pcre2_code, Freer<pcre2_code_free>> code;
  std::string where;
};

Regex::Regex(std::string_view oniguruma_pattern, std::string_view where) : compiled_(std::make_unique<Compiled>()) {
  const std::string pattern = translate_oniguruma(oniguruma_pattern, where);
  CompileContext context(pcre2_compile_context_create(nullptr));
  if (context == nullptr) throw Error(ErrorCode::kMemory, "no memory for a regular expression");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_bsr(context.get(), PCRE2_BSR_UNICODE);
  int error = 0;
  PCRE2_SIZE offset = 0;
  const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  compiled_->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), options, &error,
                                      &offset, context.get()));
  compiled_->where = where;
  if (compiled_->code == nullptr) {
    throw Error(ErrorCode::kUnsupported, std::string(where) + ": regular expression \"" +
                                             std::string(oniguruma_pattern.substr(0, 200)) +
                                             "\" cannot be used: " + describe(error));
  }
  pcre2_jit_compile(compiled_->code.get(), PCRE2_JIT_COMPLETE);  // without it the interpreter does the same, slower
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

void Regex::cut(std::string_view text, std::vector<TextMatch>& out, FunctionRef<void(size_t)> check) const {
  out.clear();
  if (text.empty()) return;
  const std::string shadow = with_stand_ins(text);
  Search search(compiled_->code.get(), shadow.empty() ? text : std::string_view(shadow), compiled_->where);
  size_t covered = 0;  // text before this is in `out`
  size_t from = 0;
  bool after_match = false;
  for (size_t start = 0, end = 0; from <= text.size() && search.next(from, start, end);) {
    if (start == end && after_match && end == from) {
      if (from == text.size()) break;
      next_code_point(text, from);
      after_match = false;
      continue;
    }
    // A lookbehind with \K can reach back into text that was already matched.
    start = std::max(start, covered);
    if (start > covered) out.push_back({covered, start, false});
    out.push_back({start, end, true});
    covered = end;
    from = end;
    after_match = true;
    check(out.size());
  }
  if (covered != text.size()) out.push_back({covered, text.size(), false});
}

}  // namespace vlcache
