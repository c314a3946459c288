// The chat templates of a checkpoint, rendered with its tokenizer's special tokens.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "io/tokenizer/tokenizer.h"

namespace vlcache {

class ChatTemplates {
 public:
  // Reads the sources; a template is compiled when it is rendered, so that one that is never used cannot fail.
  static ChatTemplates load(const std::filesystem::path& model_dir);

  // The prompt text that ends where the assistant's answer begins. Throws Error(kInput) if the checkpoint has no
  // template, or the template rejects the messages.
  std::string render(const nlohmann::ordered_json& messages, const Tokenizer& tokenizer) const;

 private:
  std::filesystem::path model_dir_;
  std::map<std::string, std::string> sources_;
};

}  // namespace vlcache
