// What a conversation of any endpoint becomes before it is computed: the form of its answers, and its prompt. The
// server and the lines of a batch share it.
#pragma once

#include "api/messages/chat_request.h"
#include "api/request_builder.h"

namespace vlcache {

// The form of the request's answers. Its notes and the syntax of its calls are set in `asked`, and the tags of its
// thoughts, if they are to be split off. Throws Error(kInput) that begins with a field.
AnswerForms::Form form_of(RequestBuilder& builder, ChatRequest& asked, const ThoughtTags& thoughts);

// The prompt; moves the messages out of `asked`, and sets whether the answer begins within a thought. Throws Error as
// prepare_chat does.
Prompt prompt_of(const Engine& engine, ChatRequest& asked, const AnswerForms::Form& form,
                 const PromptLimits& limits = {});

}  // namespace vlcache
