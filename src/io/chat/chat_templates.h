// ChatTemplates: the chat templates of a checkpoint, rendered with its tokenizer's special tokens.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "io/chat/template_input.h"
#include "io/chat/text_marks.h"
#include "io/chat/thought_forms.h"
#include "io/tokenizer/tokenizer.h"

namespace vlcache {

class Checkpoint;

// The name transformers would pick: "tool_use" if there are tools and the model has it, else "default", else the only
// one. Empty if the model has none of these.
std::string choose_chat_template(const std::map<std::string, std::string>& templates, bool with_tools);

// What a template writes around the conversation's own texts, given the request's variables.
struct ChatFrame {
  std::string before_message;  // up to the first message's text, without tools
  std::string before_answer;   // from the end of a user's message
};

// A prompt's text as a template wrote it.
struct RenderedChat {
  std::string text;
  bool in_thought = false;       // the template has begun a thought, which the answer goes on with
  std::optional<char32_t> mark;  // stands in `text` where the conversation's own texts must not be read as structure
  std::optional<ChatFrame> frame{};  // empty: no template wrote the text
};

class ChatTemplates {
 public:
  // Reads the sources; a template is compiled when it is first rendered, so an unused one cannot fail.
  static ChatTemplates load(const Checkpoint& checkpoint);
  ChatTemplates(ChatTemplates&&) noexcept;
  ~ChatTemplates();

  // Call once, before anything is rendered. From then on what looks like structure in a conversation's texts (added
  // tokens of the tokenizer, `image_marker`: empty for text models) stays text. The tokenizer must outlive this.
  void keep_texts(const Tokenizer& tokenizer, const std::string& image_marker);
  // The texts that the template writes for an image and for a video; empty: not known.
  void set_markers(std::string image, std::string video) { markers_ = {std::move(image), std::move(video)}; }

  // The prompt text up to where the assistant's answer begins. The turns are brought into an order that the template
  // takes (io/chat/turn_forms.h). Contents may be strings or lists of parts: they are passed in the form that the
  // template reads (io/chat/content_forms.h). Thoughts of earlier answers, in `reasoning_content` or in the text, are
  // passed where it expects them. Calls and results of tools in the messages
  // are passed in the form that the template reads (io/chat/tool_forms.h). Throws Error(kInput) if the checkpoint has
  // no template, or the template rejects the messages, does not show them, or leaves out an image or a video.
  // `tokenizer` must be the same every time. May be called by many threads.
  RenderedChat render(const nlohmann::ordered_json& messages, const Tokenizer& tokenizer,
                      const TemplateInput& more = {}) const;
  // Whether the template shows the available tools; and its source text.
  bool shows_tools(const Tokenizer& tokenizer) const;
  std::string source(bool with_tools) const;
  // The tags of the model's thoughts.
  ThoughtTags thought_tags(const Tokenizer& tokenizer) const;
  // What the probes found, as lines of a name and a value.
  std::vector<std::pair<std::string, std::string>> findings(const Tokenizer& tokenizer) const;
  // Of a user's message alone. Where no template defines it, a line's end comes before the answer.
  ChatFrame frame(const Tokenizer& tokenizer) const;

 private:
  struct Compiled;
  ChatTemplates();
  struct Markers {
    std::string image, video;
  };
  void check_shown(const nlohmann::ordered_json& messages, const Compiled& compiled, const std::string& text,
                   const char* type, const std::string& marker) const;
  std::unique_lock<std::mutex> use(bool with_tools, const Tokenizer& tokenizer, Compiled*& in_use) const;

  std::string where_;  // of the checkpoint, for errors
  std::map<std::string, std::string> sources_;
  std::unique_ptr<Compiled> compiled_, compiled_for_tools_;
  TextMarks marks_;  // of nothing unless keep_texts was called
  bool keeps_texts_ = false;
  Markers markers_;
};

}  // namespace vlcache
