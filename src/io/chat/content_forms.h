// Which form of `content` a chat template reads, and messages brought into it. Many published templates go through a
// list of parts and drop a string without a word, others the reverse; which, is found by rendering marked messages.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "io/chat/chat_template.h"

namespace vlcache {

class ContentForms {
 public:
  // Renders messages as the template does; ChatTemplateError means that it does not take them.
  using Render = std::function<std::string(const OrderedJson& messages)>;
  explicit ContentForms(Render render) : render_(std::move(render)) {}

  // The messages with every content that is a string or a list of parts in a form that the template shows. What it
  // shows as it is stays untouched, so do all other keys. A list becomes a string by joining its texts, nothing between
  // them. Throws Error(kInput) naming the role when the template shows no form of a system, user or assistant message,
  // or takes a string only where there is a picture.
  OrderedJson fit(const OrderedJson& messages);

 private:
  struct Reads {
    bool string = false;
    bool parts = false;      // the first text of a list at least
    bool all_parts = false;  // every text of it
    std::string problem;     // what the template said against the last form that it refused
  };

  Reads reads(const std::string& role);
  Reads probe(const std::string& role);
  bool shows(const std::string& role, OrderedJson content, std::string_view wanted, std::string& problem);
  OrderedJson fit_content(const OrderedJson& content, const std::string& role);

  Render render_;
  std::map<std::string, Reads> roles_;  // of the three plain roles
};

}  // namespace vlcache
