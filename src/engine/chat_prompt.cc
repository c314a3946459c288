// Choosing and rendering a chat template.
#include "engine/chat_prompt.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/chat/chat_template.h"

namespace vlcache {

ChatTemplates ChatTemplates::load(const std::filesystem::path& model_dir) {
  ChatTemplates templates;
  templates.model_dir_ = model_dir;
  templates.sources_ = load_chat_templates(model_dir);
  return templates;
}

std::string ChatTemplates::render(const nlohmann::ordered_json& messages, const Tokenizer& tokenizer) const {
  const std::string name = choose_chat_template(sources_, /*with_tools=*/false);
  if (name.empty()) {
    throw Error(
        ErrorCode::kInput,
        model_dir_.string() + ": has no chat template; give the whole prompt with --raw, or add a chat_template.jinja");
  }
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();
  for (const char* token :
       {"bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "image_token"}) {
    const std::string text = tokenizer.special_token(token);
    if (!text.empty()) variables[token] = text;
  }
  ChatOptions options;
  options.variables = &variables;
  return ChatTemplate::parse(sources_.at(name), "chat template").render(messages, options);
}

}  // namespace vlcache
