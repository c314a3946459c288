// ContentForms: finds which form of `content` a chat template reads, and converts messages to it. Many published
// templates iterate over a list of parts and silently drop a string, others the reverse; rendering marked messages
// shows which.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "io/chat/chat_template.h"

namespace vlcache {

class ContentForms {
 public:
  // Renders messages as the template does; ChatTemplateError means that it rejects them.
  using Render = std::function<std::string(const OrderedJson& messages)>;
  explicit ContentForms(Render render) : render_(std::move(render)) {}

  // The messages with every content that is a string or a list of parts in a form that the template shows. Content that
  // it already shows stays untouched, as do all other keys. A list becomes a string by joining its texts with nothing
  // between them. Throws Error(kInput) naming the role when the template shows no form of a system, user or assistant
  // message, or accepts only strings for a message with an image.
  OrderedJson fit(const OrderedJson& messages);
  // The forms of content that the template shows, by role.
  std::string description();

 private:
  struct Reads {
    bool string = false;
    bool parts = false;      // the first text of a list at least
    bool all_parts = false;  // every text of it
    std::string problem;     // the template's error for the last form that it rejected
  };

  Reads reads(const std::string& role);
  Reads probe(const std::string& role);
  bool shows(const std::string& role, OrderedJson content, std::string_view wanted, std::string& problem);
  OrderedJson fit_content(const OrderedJson& content, const std::string& role);

  Render render_;
  std::map<std::string, Reads> roles_;  // of the three plain roles
};

}  // namespace vlcache
