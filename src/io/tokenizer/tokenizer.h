// Tokenizer: maps text to token ids and back, from a tokenizer.json of Hugging Face, equal to its own library's ids and
// text.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/contracts/kv.h"
#include "io/tokenizer/encode_limits.h"

namespace vlcache {

class Checkpoint;
class StreamDecoder;

// Immutable after loading; any number of threads may use one.
class Tokenizer {
 public:
  // The checkpoint's tokenizer with its named special tokens. Throws Error(kNotFound) if the checkpoint has none,
  // Error(kUnsupported) naming an unknown part, Error(kInput) naming the fault and its place.
  static Tokenizer load(const Checkpoint& checkpoint);
  // The text of a tokenizer.json alone; `where` names it in errors.
  static Tokenizer from_json(std::string_view text, std::string_view where);

  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  // Ids equal to the Python package's; special tokens where the post-processor puts them. Invalid UTF-8 counts
  // as U+FFFD, as with Python's errors="replace". Time is linear in the text (n log n in its longest word). Throws
  // Error(kInput) above 1 GiB, or when a regular expression reaches its step limit; TextTooLong or Error(kCancelled) as
  // soon as a limit is passed.
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens = true,
                              const EncodeLimits& limits = {}) const;

  // The text without its marks (each the character `mark`): no added token is found where it would contain a mark, nor
  // one of a single character after a mark. Equal to encode() for a text without marks. See io/chat/text_marks.h.
  std::vector<int32_t> encode_marked(std::string_view text, char32_t mark, bool add_special_tokens,
                                     const EncodeLimits& limits = {}) const;
  // The texts of added tokens that are structure: special ones, and others in brackets such as "<think>". White space
  // and letters that a vocabulary lacks are not.
  std::vector<std::string> structure() const;
  // Whether added tokens are searched in a text that the normalizer has changed.
  bool searches_normalized() const;
  // Whether encode_marked would find structure in the text.
  bool reads_structure(std::string_view marked, char32_t mark) const;

  // Unknown ids are left out, as in the Python package.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens) const;

  std::string token_text(int32_t id) const;  // the raw vocabulary entry ("Ġthe"), empty for an unknown id
  // The bytes the token adds to a text that has begun, which may be a part of a character. Empty for special tokens and
  // unknown ids.
  std::string token_bytes(int32_t id) const;
  int32_t token_id(std::string_view token) const;  // -1 if no token has this text
  bool is_special(int32_t id) const;               // left out by skip_special_tokens
  bool has_token(int32_t id) const;
  // Special: as is_special. Punctuation: only white space and at least one character of Unicode category P or of the
  // ASCII symbols $+<=>^`|~. Everything else, parts of characters and unknown ids are kOther. Costs one decoded token.
  TokenClass token_class(int32_t id) const;
  int64_t vocab_size() const;  // distinct tokens, added ones included

  // Named special tokens, empty and -1 if the checkpoint names none. `name` may be any "..._token" of
  // tokenizer_config.json or special_tokens_map.json: "bos_token", "eos_token", "pad_token", "image_token".
  std::string special_token(std::string_view name) const;
  int32_t special_token_id(std::string_view name) const;
  int32_t bos_id() const { return special_token_id("bos_token"); }
  int32_t eos_id() const { return special_token_id("eos_token"); }

 private:
  friend class StreamDecoder;
  struct Parts;
  explicit Tokenizer(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

// Decodes tokens as they arrive. The pieces are whole characters, and together with finish() equal to decode() of all
// ids.
class StreamDecoder {
 public:
  // The tokenizer must outlive it. Without `spaces_between`, an added token that follows another one has no spaces
  // before it, which decoders of words (WordPiece, none) put there; as vLLM's spaces_between_special_tokens.
  StreamDecoder(const Tokenizer& tokenizer, bool skip_special_tokens, bool spaces_between = true);
  ~StreamDecoder();
  StreamDecoder(StreamDecoder&&) noexcept;

  // The text that is certain now, often empty. `shown`: the token is not skipped even if it is special.
  std::string push(int32_t id, bool shown = false);
  std::string finish();  // the rest; call once, at the end

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace vlcache
