// Choosing, compiling and rendering a chat template.
#include "engine/chat_prompt.h"

#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "io/chat/chat_template.h"
#include "io/chat/content_forms.h"

namespace vlcache {
namespace {

OrderedJson special_tokens(const Tokenizer& tokenizer) {
  OrderedJson variables = OrderedJson::object();
  for (const char* token :
       {"bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "image_token"}) {
    const std::string text = tokenizer.special_token(token);
    if (!text.empty()) variables[token] = text;
  }
  return variables;
}

}  // namespace

// The template in use, once it is.
struct ChatTemplates::Compiled {
  std::mutex mutex;  // of making `chat_template` and of what `forms` has found out
  OrderedJson variables;
  std::optional<ChatTemplate> chat_template;
  std::optional<ContentForms> forms;

  std::string render(const OrderedJson& messages) const {
    ChatOptions options;
    options.variables = &variables;
    return chat_template->render(messages, options);
  }
};

ChatTemplates::ChatTemplates() : compiled_(std::make_unique<Compiled>()) {}
ChatTemplates::ChatTemplates(ChatTemplates&&) noexcept = default;
ChatTemplates::~ChatTemplates() = default;

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
  OrderedJson fitted;
  {
    const std::lock_guard lock(compiled_->mutex);
    if (!compiled_->chat_template) {
      compiled_->variables = special_tokens(tokenizer);
      compiled_->chat_template = ChatTemplate::parse(sources_.at(name), "chat template");
      compiled_->forms.emplace([c = compiled_.get()](const OrderedJson& probe) { return c->render(probe); });
    }
    fitted = compiled_->forms->fit(messages);
  }
  return compiled_->render(fitted);
}

std::string ChatTemplates::between_message_and_answer(const Tokenizer& tokenizer) const {
  constexpr std::string_view kMark = "\n#############";
  try {
    const OrderedJson message = {{"role", "user"}, {"content", "text" + std::string(kMark)}};
    const std::string chat = render(OrderedJson::array({message}), tokenizer);
    if (const size_t at = chat.rfind(kMark); at != chat.npos) return chat.substr(at + kMark.size());
  } catch (const Error&) {  // there is none, or none that takes a bare question
  }
  return "\n";
}

}  // namespace vlcache
