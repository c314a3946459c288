#include "io/chat/chat_templates.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/json_text.h"
#include "base/ordered_json.h"
#include "io/chat/chat_template.h"
#include "io/chat/content_forms.h"
#include "io/chat/tool_forms.h"
#include "io/chat/turn_forms.h"
#include "io/checkpoint/checkpoint.h"

namespace vlcache {
namespace {

constexpr std::string_view kSystemText = "vlcacheprobesystem", kQuestion = "vlcacheprobequestion",
                           kQuestionEnd = "\n#############";

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

// The parts of a message of a type.
size_t count_parts(const OrderedJson& message, const char* type) {
  const auto content = message.find("content");
  if (content == message.end() || !content->is_array()) return 0;
  return static_cast<size_t>(
      std::ranges::count_if(*content, [&](const OrderedJson& part) { return text_in(part, "type") == type; }));
}

size_t count(std::string_view text, std::string_view piece) {
  size_t n = 0;
  for (size_t at = text.find(piece); at != text.npos; at = text.find(piece, at + piece.size())) ++n;
  return n;
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
  std::optional<TurnForms> turn_forms;
  ThoughtTags thought_tags;
  std::optional<bool> has_thought_field;     // the template shows reasoning_content
  std::optional<bool> shows_thoughts;        // it shows a thought that is a part of the text
  std::optional<OrderedJson> probing_tools;  // passed to probes that have no tools
  std::optional<std::array<OrderedJson, 2>> questions;

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
    turn_forms.emplace([this, some](const OrderedJson& probe) {
      return render(forms->fit(tool_forms->fit(probe)), {.tools = some(nullptr)});
    });
    thought_tags = find_thought_tags(source, [&](const char* tag) { return tokenizer.token_id(tag) >= 0; });
  }

  // The messages in the form that the template takes.
  OrderedJson fit(OrderedJson messages) {
    if (thought_tags.any()) probe_thoughts();
    split_off_thoughts(messages, thought_tags);
    return forms->fit(tool_forms->fit(turn_forms->fit(messages)));
  }

  void probe_thoughts() {
    if (has_thought_field) return;
    constexpr std::string_view kThought = "vlcacheprobethought";
    const auto shows = [&](const OrderedJson& answer) {
      OrderedJson messages = OrderedJson::array({{{"role", "user"}, {"content", "a"}}, answer});
      try {
        const TemplateInput input{.tools = probing_tools ? &*probing_tools : nullptr};
        return render(forms->fit(messages), input).find(kThought) != std::string::npos;
      } catch (const Error&) {
        return false;
      }
    };
    has_thought_field = shows({{"role", "assistant"}, {"content", "a"}, {"reasoning_content", kThought}});
    const std::string inside = thought_tags.open + std::string(kThought) + thought_tags.close + "a";
    shows_thoughts = !*has_thought_field && shows({{"role", "assistant"}, {"content", inside}});
  }

  // Whether a part of the type in a message of the role becomes `marker`.
  bool shows_part(const std::string& role, const char* type, const std::string& marker) const {
    const OrderedJson content = OrderedJson::array({{{"type", type}}, {{"type", "text"}, {"text", "a"}}});
    OrderedJson messages = OrderedJson::array();
    if (role != "user" && role != "system") messages.push_back({{"role", "user"}, {"content", "a"}});
    messages.push_back({{"role", role}, {"content", content}});
    if (role != "user") messages.push_back({{"role", "user"}, {"content", "a"}});
    try {
      return chat_template->render(messages, {.variables = &variables}).find(marker) != std::string::npos;
    } catch (const Error&) {
      return false;
    }
  }

  // Questions that begin with kQuestion and end with kQuestionEnd, after a system message or not.
  void make_questions() {
    if (questions) return;
    questions.emplace();
    const OrderedJson user = {{"role", "user"}, {"content", std::string(kQuestion) + std::string(kQuestionEnd)}};
    const OrderedJson system = {{"role", "system"}, {"content", kSystemText}};
    for (const bool with_system : {false, true}) {
      OrderedJson messages = with_system ? OrderedJson::array({system, user}) : OrderedJson::array({user});
      try {
        (*questions)[with_system] = fit(messages);
      } catch (const Error&) {
        (*questions)[with_system] = std::move(messages);
      }
    }
  }

  // After make_questions(). A template that rejects a single question has none but a line's end before the answer.
  ChatFrame frame(bool with_system, const OrderedJson* variables_of_request) const {
    ChatFrame frame{.before_message = "", .before_answer = "\n"};
    try {
      const TemplateInput input{.tools = probing_tools ? &*probing_tools : nullptr, .variables = variables_of_request};
      const std::string chat = render((*questions)[with_system], input);
      const size_t message = chat.find(with_system ? kSystemText : kQuestion), end = chat.rfind(kQuestionEnd);
      if (message != chat.npos) frame.before_message = chat.substr(0, message);
      if (end != chat.npos) frame.before_answer = chat.substr(end + kQuestionEnd.size());
    } catch (const Error&) {
    }
    return frame;
  }

  std::string render(const OrderedJson& messages, const TemplateInput& more) const {
    ChatOptions options;
    OrderedJson all;
    options.variables = &variables;
    if (more.variables != nullptr) {
      all = variables;
      update_members(all, *more.variables);
      options.variables = &all;
    }
    options.tools = more.tools;
    options.continue_final_message = more.continue_final;
    options.add_generation_prompt = more.open_answer && !more.continue_final;
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

void ChatTemplates::keep_texts(const Tokenizer& tokenizer, const std::string& image_marker) {
  keeps_texts_ = true;
  std::vector<std::string> pieces = tokenizer.structure();
  pieces.push_back(image_marker);
  for (const auto& tags : kThoughtTags) {
    pieces.emplace_back(tags.open);
    pieces.emplace_back(tags.close);
  }
  const auto reads = [&tokenizer](std::string_view marked, char32_t mark) {
    return tokenizer.reads_structure(marked, mark);
  };
  marks_ = TextMarks(std::move(pieces), tokenizer.searches_normalized() ? reads : TextMarks::Reads());
}

// Every image, or every video, of the messages must be in the text.
void ChatTemplates::check_shown(const OrderedJson& messages, const Compiled& compiled, const std::string& text,
                                const char* type, const std::string& marker) const {
  if (marker.empty()) return;
  std::map<std::string, size_t> by_role;
  size_t n_given = 0;
  for (const OrderedJson& message : messages) {
    const size_t n = count_parts(message, type);
    if (n > 0) by_role[text_in(message, "role")] += n;
    n_given += n;
  }
  const size_t n_shown = n_given == 0 ? 0 : count(text, marker);
  if (n_shown >= n_given) return;
  std::string roles;
  for (const auto& [role, n] : by_role) {
    if (!compiled.shows_part(role, type, marker)) roles += (roles.empty() ? "" : " or ") + role;
  }
  throw Error(ErrorCode::kInput, "messages: the chat template shows " + std::to_string(n_shown) + " of " +
                                     std::to_string(n_given) + " " + type +
                                     "s: it leaves out those in messages of role " + (roles.empty() ? "user" : roles) +
                                     "; put them into a user's message");
}

RenderedChat ChatTemplates::render(const nlohmann::ordered_json& messages, const Tokenizer& tokenizer,
                                   const TemplateInput& more) const {
  Compiled* compiled = nullptr;
  OrderedJson fitted;
  {
    const auto lock = use(more.tools != nullptr, tokenizer, compiled);
    fitted = compiled->fit(messages);
    compiled->make_questions();
  }
  const ThoughtTags& tags = compiled->thought_tags;
  std::optional<char32_t> mark;
  OrderedJson tools, variables;
  TemplateInput input = more;
  if (keeps_texts_) {
    const OrderedJson source = compiled->chat_template->source();
    mark = marks_.choose({&fitted, more.tools, more.variables, &source});
    bool any = marks_.apply(fitted, *mark);
    if (more.tools != nullptr) any |= marks_.apply(tools = *more.tools, *mark);
    if (more.variables != nullptr) any |= marks_.apply(variables = *more.variables, *mark);
    if (more.tools != nullptr) input.tools = &tools;
    if (more.variables != nullptr) input.variables = &variables;
    if (!any) mark.reset();
  }
  if (compiled->shows_thoughts.value_or(false)) put_back_thoughts(fitted, tags);
  std::string text = compiled->render(fitted, input);
  if (mark) text = with_plain_marks(std::move(text), *mark);
  check_shown(fitted, *compiled, text, "image", markers_.image);
  check_shown(fitted, *compiled, text, "video", markers_.video);
  const std::string_view end = std::string_view(text).substr(0, text.find_last_not_of(" \t\r\n") + 1);
  const bool in_thought = tags.any() && end.ends_with(tags.open);
  const bool with_system = !messages.empty() && text_in(messages[0], "role") == "system";
  return {std::move(text), in_thought, mark, compiled->frame(with_system, more.variables)};
}

ThoughtTags ChatTemplates::thought_tags(const Tokenizer& tokenizer) const {
  if (sources_.empty()) return {};
  Compiled* compiled = nullptr;
  const auto lock = use(/*with_tools=*/false, tokenizer, compiled);
  return compiled->thought_tags;
}

std::vector<std::pair<std::string, std::string>> ChatTemplates::findings(const Tokenizer& tokenizer) const {
  if (sources_.empty()) return {{"chat template", "none: prompts are given with --raw or /v1/completions"}};
  Compiled* compiled = nullptr;
  const auto lock = use(/*with_tools=*/false, tokenizer, compiled);
  const TurnForms::Takes& takes = compiled->turn_forms->takes();
  const char* system = !takes.system       ? "not taken: put before the user's first text"
                       : takes.late_system ? "taken anywhere"
                       : takes.systems     ? "taken at the beginning; a later one is put into the user's next turn"
                                           : "one at the beginning: several are joined, a later one is put into the "
                                             "user's next turn";
  std::string turns = takes.users && takes.assistants ? "several of one role in a row" : "user and assistant alternate";
  if (!takes.assistant_first) turns += "; the first is the user's";
  if (!takes.user_after_result) turns += "; an assistant's follows the results of tools";
  std::vector<std::pair<std::string, std::string>> lines{{"chat template", "turns: " + turns}};
  lines.emplace_back("", std::string("system messages: ") + system);
  lines.emplace_back("", "contents: " + compiled->forms->description());
  lines.emplace_back("", "tools: " + compiled->tool_forms->description());
  if (compiled->thought_tags.any()) {
    compiled->probe_thoughts();
    lines.emplace_back("", "thoughts: " + compiled->thought_tags.open + " ... " + compiled->thought_tags.close +
                               "; those of earlier answers are " +
                               (*compiled->has_thought_field ? "passed as reasoning_content"
                                : *compiled->shows_thoughts  ? "a part of the text"
                                                             : "left out"));
  }
  return lines;
}

bool ChatTemplates::shows_tools(const Tokenizer& tokenizer) const {
  if (sources_.empty()) return false;
  Compiled* compiled = nullptr;
  const auto lock = use(/*with_tools=*/true, tokenizer, compiled);
  return compiled->tool_forms->shows_tools();
}

ChatFrame ChatTemplates::frame(const Tokenizer& tokenizer) const {
  try {
    Compiled* compiled = nullptr;
    const auto lock = use(/*with_tools=*/false, tokenizer, compiled);
    compiled->make_questions();
    return compiled->frame(/*with_system=*/false, nullptr);
  } catch (const Error&) {  // no template, or one that cannot be read
    return {.before_message = "", .before_answer = "\n"};
  }
}

}  // namespace vlcache
