#include "api/messages/conversation.h"

#include <utility>

namespace vlcache {

AnswerForms::Form form_of(RequestBuilder& builder, ChatRequest& asked, const ThoughtTags& thoughts) {
  AnswerForms::Form form = builder.form(asked.format, asked.tools);
  asked.call_syntax = form.syntax;
  if (asked.split_thoughts) asked.thoughts = thoughts;
  if (!asked.continue_final) builder.allow_thought(form, asked.max_thought_tokens);
  asked.notes = form.notes;
  return form;
}

Prompt prompt_of(const Engine& engine, ChatRequest& asked, const AnswerForms::Form& form, const PromptLimits& limits) {
  if (!form.system_text.empty()) add_system_text(asked.messages, form.system_text);
  const TemplateInput input{.tools = form.template_has_tools ? &asked.tools.tools : nullptr,
                            .variables = asked.variables(),
                            .continue_final = asked.continue_final,
                            .open_answer = asked.open_answer};
  Prompt prompt = prepare_chat(engine, std::move(asked.messages), input, limits);
  asked.messages.clear();
  asked.in_thought = prompt.in_thought;
  if (asked.continue_final && !asked.in_thought) asked.thoughts = {};
  return prompt;
}

}  // namespace vlcache
