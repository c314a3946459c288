// ChatTemplate: the chat template of a checkpoint: renders messages to prompt text, as transformers does.
#pragma once

#include <cstdint>
#include <ctime>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace vlcache {

// Keeps the order of keys, which a template can see (tojson, items).
using OrderedJson = nlohmann::ordered_json;

// A template that cannot be compiled, or failed while rendering: "<where>: line <n>: <message>".
class ChatTemplateError : public Error {
 public:
  ChatTemplateError(ErrorCode code, const std::string& what, int line, std::string message, bool raised)
      : Error(code, what), line_(line), message_(std::move(message)), raised_(raised) {}
  int line() const { return line_; }
  const std::string& message() const { return message_; }  // without the place
  bool raised() const { return raised_; }                  // by the template itself, with raise_exception

 private:
  int line_;
  std::string message_;
  bool raised_;
};

struct ChatOptions {
  bool add_generation_prompt = true;
  bool continue_final_message = false;     // end the text after the last message's content, open for more
  const OrderedJson* tools = nullptr;      // JSON array of schemas
  const OrderedJson* documents = nullptr;  // JSON array of {title, text}
  // Further variables: special tokens (bos_token, eos_token, ...) and a request's chat_template_kwargs. An object.
  const OrderedJson* variables = nullptr;
  std::optional<std::tm> now;  // what strftime_now formats; local time when not given
};

// A compiled template. Rendering does not change it: one may be used by many threads.
class ChatTemplate {
 public:
  // `where` names the source in errors. Throws ChatTemplateError(kInput), or kUnsupported for a statement not
  // implemented.
  static ChatTemplate parse(std::string source, std::string where);
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // messages: JSON array of objects. Throws ChatTemplateError: kInput where Python would raise too, kUnsupported for a
  // filter or method not implemented (named), kMemory when a limit on steps, depth or size is reached.
  std::string render(const OrderedJson& messages, const ChatOptions& options) const;
  // Renders the template with these variables alone (an object), without the preparation that render() does.
  std::string render_variables(const OrderedJson& variables, const std::optional<std::tm>& now) const;

  const std::string& source() const;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace vlcache
