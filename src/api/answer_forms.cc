#include "api/answer_forms.h"

#include "api/call_grammar.h"
#include "api/generic_tools.h"
#include "base/error.h"
#include "base/exact_json.h"
#include "io/chat/chat_templates.h"
#include "io/tokenizer/tokenizer.h"

namespace vlcache {

AnswerForms::AnswerForms(const Engine& engine, bool generic)
    : engine_(engine), generic_(generic), grammars_(engine.tokenizer(), engine.model().config().text.vocab_size) {
  try {
    thought_tags_ = engine.chat_templates()->thought_tags(engine.tokenizer());
  } catch (const Error&) {  // a template that cannot be compiled is an error where it is used
  }
}

void AnswerForms::allow_thought(Form& form, std::optional<int> max_tokens) const {
  form.thoughts = thought_tags_;
  form.max_thought_tokens = max_tokens;
  for (const std::string& tag : {thought_tags_.open, thought_tags_.close}) {
    const int32_t id = tag.empty() ? -1 : engine_.tokenizer().token_id(tag);
    if (id >= 0 && engine_.tokenizer().is_special(id)) form.shown.push_back(id);
  }
}

AnswerForms::Form AnswerForms::form(const AnswerFormat& asked, const ToolUse& tools) {
  AnswerFormat format = asked;
  format.schema = with_plain_numbers(std::move(format.schema));
  Form form;
  if (tools.may_call()) add_calls(format, tools, form);
  if (form.grammar == nullptr && format.kind != AnswerFormat::Kind::kText) {
    form.grammar = format_grammar(grammars_, format);
  }
  return form;
}

void AnswerForms::add_calls(const AnswerFormat& format, const ToolUse& tools, Form& form) {
  const Tokenizer& tokenizer = engine_.tokenizer();
  form.template_has_tools = engine_.chat_templates()->shows_tools(tokenizer);
  if (form.template_has_tools) {
    form.syntax = call_syntax(engine_.chat_templates()->source(/*with_tools=*/true));
  } else if (generic_) {
    const int64_t max_tokens = engine_.max_positions() / 8;
    const auto n_tokens = [&](const std::string& text) -> int64_t {
      try {
        return std::ssize(tokenizer.encode(text, /*add_special_tokens=*/false, {.max_tokens = max_tokens}));
      } catch (const TextTooLong&) {
        return max_tokens + 1;
      }
    };
    GenericTools shown = generic_tools(tools.tools, max_tokens, n_tokens);
    form.system_text = std::move(shown.text);
    form.notes = std::move(shown.notes);
  } else if (!tools.must_call()) {
    form.notes.push_back(
        "tools: left out: the model was not trained to call functions (--generic-tools on shows them to it); "
        "tool_choice \"required\" or a named function makes its answer a call");
  }
  for (const std::string& mark : call_marks(form.syntax)) {
    const int32_t id = tokenizer.token_id(mark);
    if (id >= 0 && tokenizer.is_special(id)) form.shown.push_back(id);
  }
  const bool formatted = format.kind != AnswerFormat::Kind::kText;
  if (!tools.must_call() && (!formatted || (!generic_ && !form.template_has_tools))) return;
  ToolUse plain = tools;
  plain.tools = with_plain_numbers(std::move(plain.tools));
  const CallGrammar calls = tools.must_call() ? call_grammar(grammars_, form.syntax, plain)
                                              : call_or_format(grammars_, form.syntax, plain, format);
  form.grammar = calls.grammar;
  form.notes.insert(form.notes.end(), calls.notes.begin(), calls.notes.end());
  if (!calls.opening.empty()) form.opening = tokenizer.encode(calls.opening, /*add_special_tokens=*/false);
}

void AnswerForms::apply(const Form& form, Request& request) const {
  request.options.shown_tokens = form.shown;
  if (form.grammar != nullptr) request.constraint = grammars_.constrain(form.grammar, form.opening);
  const ThoughtTags& thoughts = request.prompt.in_thought ? thought_tags_ : form.thoughts;
  if (!thoughts.any() || (form.grammar == nullptr && !form.max_thought_tokens)) return;
  request.constraint = constrain_after_thought(
      std::move(request.constraint),
      {.tags = thoughts, .in_thought = request.prompt.in_thought, .max_tokens = form.max_thought_tokens},
      engine_.tokenizer());
}

}  // namespace vlcache
