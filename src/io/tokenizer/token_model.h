// TokenModel: the "model" of tokenizer.json, which maps words to token ids.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "io/tokenizer/encode_limits.h"

namespace vlcache {

// Working memory of one encode call.
class ModelScratch {
 public:
  virtual ~ModelScratch() = default;
  EncodeBudget* budget = nullptr;  // null: none
  void tick() const {
    if (budget != nullptr) budget->tick();
  }
};

class TokenModel {
 public:
  virtual ~TokenModel() = default;
  virtual std::unique_ptr<ModelScratch> make_scratch() const = 0;
  // Appends the ids of `word` (not empty). Const, thread-safe with a scratch per thread.
  virtual void encode(std::string_view word, ModelScratch& scratch, std::vector<int32_t>& ids) const = 0;
  virtual int32_t token_id(std::string_view token) const = 0;   // -1 if no token has this text
  virtual const std::string* token_text(int32_t id) const = 0;  // null for an unknown id
  virtual int64_t size() const = 0;                             // tokens in the vocabulary
  virtual std::string unk_token() const = 0;                    // empty if the model has none
  // Whether no word is dropped: each becomes a token at least. `spelled`: words are spelled in letters for bytes.
  virtual bool keeps_words(bool spelled) const = 0;
};

// Throws Error(kUnsupported) naming a type that is not known, Error(kInput) for anything inconsistent.
std::unique_ptr<TokenModel> parse_token_model(const Json* json, const std::string& where);

std::unique_ptr<TokenModel> parse_bpe(const JsonObject& object);

}  // namespace vlcache
