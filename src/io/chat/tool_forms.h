// What a chat template does with tools, and messages about tools in a form that it reads: found, as with content, by
// rendering marked ones.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "io/chat/chat_template.h"

namespace vlcache {

class ToolForms {
 public:
  // Renders messages with tools (null: none) as the template does; Error means that it does not take them.
  using Render = std::function<std::string(const OrderedJson& messages, const OrderedJson* tools)>;
  explicit ToolForms(Render render) : render_(std::move(render)) {}

  // Whether it shows what tools there are.
  bool shows_tools();
  // Messages in OpenAI's shape ("tool_calls" of assistants, whose arguments may be objects or text, and role "tool")
  // as the template takes them. Where it has no tool role, calls become the assistant's text and results a user's turn,
  // together with what the user says next. Pictures of results go into a user's turn behind them either way. Where it
  // takes one call a message (Llama 3.1), each call of several is a message with its results behind it. Ids of calls
  // are replaced where it takes none but such as Mistral's, of nine letters and digits. Messages without tools are left
  // as they are.
  OrderedJson fit(const OrderedJson& messages);

 private:
  enum class Calls {
    kAsObjects,
    kAsText,
    kNotAtAll
  };  // how it takes calls' arguments, where it shows calls and results
  Calls calls();
  bool shows_calls(bool as_text, int n_calls, const char* id);

  Render render_;
  std::optional<bool> shows_tools_;
  std::optional<Calls> calls_;
  bool takes_several_ = true, takes_any_id_ = true;  // known with calls_
};

}  // namespace vlcache
