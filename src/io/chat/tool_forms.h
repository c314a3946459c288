// ToolForms: finds how a chat template renders tools, and converts messages about tools to a form that it reads. As
// with content, it renders marked messages to find out.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "io/chat/chat_template.h"

namespace vlcache {

class ToolForms {
 public:
  // Renders messages with tools (null: none) as the template does; Error means that it rejects them.
  using Render = std::function<std::string(const OrderedJson& messages, const OrderedJson* tools)>;
  explicit ToolForms(Render render) : render_(std::move(render)) {}

  // Whether the template shows the available tools.
  bool shows_tools();
  // Converts messages in OpenAI's shape ("tool_calls" of assistants, whose arguments may be objects or text, and role
  // "tool") to the template's form. Calls without arguments get {}, calls and results without ids get some. If it has
  // no tool role, calls become the assistant's text and results a user's turn, together with the user's next message.
  // Images of results are put into a user's turn after them either way. If the template accepts one call a message
  // (Llama 3.1), each of several calls becomes a message followed by its results. Ids of calls are replaced if the
  // template accepts only ids such as Mistral's, of nine letters and digits. Messages without tools are not changed.
  OrderedJson fit(const OrderedJson& messages);
  // What the template takes, in words.
  std::string description();

 private:
  enum class Calls {
    kAsObjects,
    kAsText,
    kNotAtAll
  };  // the form of calls' arguments, if the template shows calls and results
  Calls calls();
  bool shows_calls(bool as_text, int n_calls, const char* id);

  Render render_;
  std::optional<bool> shows_tools_;
  std::optional<Calls> calls_;
  bool takes_several_ = true, takes_any_id_ = true, takes_any_text_ = true;  // known with calls_
};

}  // namespace vlcache
