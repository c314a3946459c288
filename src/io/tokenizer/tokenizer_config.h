// What transformers adds to a tokenizer.json from the files beside it: named special tokens, and tokens found
// only there.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "io/tokenizer/added_tokens.h"

namespace vlcache {

struct TokenizerConfig {
  // In the order in which transformers 5 adds them: by id, then the named ones, then the rest. Only `listed` replace
  // the flags of tokens that the tokenizer has already.
  std::vector<AddedToken> listed;
  std::vector<AddedToken> named_or_extra;
  std::map<std::string, std::string> names;  // "bos_token" -> "<s>"
};

// Reads tokenizer_config.json, special_tokens_map.json and added_tokens.json, objects with their keys in the order of
// the files and empty for a file that does not exist, the way transformers 5.23 does (TokenizersBackend):
// added_tokens_decoder makes the other two files obsolete, and add_bos_token and add_eos_token are ignored, because the
// post-processor of tokenizer.json decides it. One difference: a bos, eos, unk or pad token that only
// special_tokens_map.json names is used. `where`: the name of tokenizer_config.json in errors.
TokenizerConfig parse_tokenizer_config(const nlohmann::ordered_json& config,
                                       const nlohmann::ordered_json& special_tokens_map,
                                       const nlohmann::ordered_json& added_tokens, const std::string& where);

}  // namespace vlcache
