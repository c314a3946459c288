#include "io/chat/chat_templates.h"

#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "io/chat/chat_template.h"
#include "io/chat/content_forms.h"
#include "io/chat/tool_forms.h"
#include "io/checkpoint/checkpoint.h"

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

// For templates that are used with tools alone, which may fail without any.
OrderedJson some_tools() {
  const OrderedJson parameters = {{"type", "object"}, {"properties", OrderedJson::object()}};
  const OrderedJson function = {{"name", "f"}, {"description", "f"}, {"parameters", parameters}};
  return OrderedJson::array({{{"type", "function"}, {"function", function}}});
}

}  // namespace

std::string choose_chat_template(const std::map<std::string, std::string>& templates, bool with_tools) {
  if (with_tools && templates.count("tool_use") != 0) return "tool_use";
  if (templates.count("default") != 0) return "default";
  return templates.size() == 1 ? templates.begin()->first : "";
}

// A template in use, once compiled. A checkpoint's own template for tools is a separate one.
struct ChatTemplates::Compiled {
  std::mutex mutex;  // guards the compilation of `chat_template` and the probes of `forms` and `tool_forms`
  OrderedJson variables;
  std::optional<ChatTemplate> chat_template;
  std::optional<ContentForms> forms;
  std::optional<ToolForms> tool_forms;
  std::optional<OrderedJson> probing_tools;  // passed to probes that have no tools

  void make(const std::string& source, const Tokenizer& tokenizer) {
    if (chat_template) return;
    variables = special_tokens(tokenizer);
    chat_template = ChatTemplate::parse(source, "chat template");
    const auto some = [this](const OrderedJson* tools) {
      return tools == nullptr && probing_tools ? &*probing_tools : tools;
    };
    forms.emplace([this, some](const OrderedJson& probe) { return render(probe, {.tools = some(nullptr)}); });
    tool_forms.emplace([this, some](const OrderedJson& probe, const OrderedJson* tools) {
      return render(forms->fit(probe), {.tools = some(tools)});
    });
  }

  std::string render(const OrderedJson& messages, const TemplateInput& more) const {
    ChatOptions options;
    OrderedJson all;
    options.variables = &variables;
    if (more.variables != nullptr) {
      all = variables;
      all.update(*more.variables);
      options.variables = &all;
    }
    options.tools = more.tools;
    return chat_template->render(messages, options);
  }
};

ChatTemplates::ChatTemplates()
    : compiled_(std::make_unique<Compiled>()), compiled_for_tools_(std::make_unique<Compiled>()) {
  compiled_for_tools_->probing_tools = some_tools();
}
ChatTemplates::ChatTemplates(ChatTemplates&&) noexcept = default;
ChatTemplates::~ChatTemplates() = default;

ChatTemplates ChatTemplates::load(const Checkpoint& checkpoint) {
  ChatTemplates templates;
  templates.where_ = checkpoint.where();
  templates.sources_ = checkpoint.chat_templates();
  return templates;
}

std::string ChatTemplates::source(bool with_tools) const {
  const auto found = sources_.find(choose_chat_template(sources_, with_tools));
  return found == sources_.end() ? "" : found->second;
}

// The template in use with its mutex locked.
std::unique_lock<std::mutex> ChatTemplates::use(bool with_tools, const Tokenizer& tokenizer, Compiled*& in_use) const {
  const std::string name = choose_chat_template(sources_, with_tools);
  if (name.empty()) {
    throw Error(ErrorCode::kInput,
                where_ + ": has no chat template; give the whole prompt with --raw, or add a chat_template.jinja");
  }
  in_use = (name == choose_chat_template(sources_, false) ? compiled_ : compiled_for_tools_).get();
  std::unique_lock lock(in_use->mutex);
  in_use->make(sources_.at(name), tokenizer);
  return lock;
}

std::string ChatTemplates::render(const nlohmann::ordered_json& messages, const Tokenizer& tokenizer,
                                  const TemplateInput& more) const {
  Compiled* compiled = nullptr;
  OrderedJson fitted;
  {
    const auto lock = use(more.tools != nullptr, tokenizer, compiled);
    fitted = compiled->forms->fit(compiled->tool_forms->fit(messages));
  }
  return compiled->render(fitted, more);
}

bool ChatTemplates::shows_tools(const Tokenizer& tokenizer) const {
  if (sources_.empty()) return false;
  Compiled* compiled = nullptr;
  const auto lock = use(/*with_tools=*/true, tokenizer, compiled);
  return compiled->tool_forms->shows_tools();
}

std::string ChatTemplates::between_message_and_answer(const Tokenizer& tokenizer) const {
  constexpr std::string_view kMark = "\n#############";
  try {
    const OrderedJson message = {{"role", "user"}, {"content", "text" + std::string(kMark)}};
    const std::string chat = render(OrderedJson::array({message}), tokenizer);
    if (const size_t at = chat.rfind(kMark); at != chat.npos) return chat.substr(at + kMark.size());
  } catch (const Error&) {  // no template, or one that rejects a single question
  }
  return "\n";
}

}  // namespace vlcache
