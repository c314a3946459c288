// TurnForms: finds which orders of turns a chat template takes, and brings conversations into one of them. Templates
// differ in where a system message may stand and in whether roles must alternate; rendering marked messages shows what
// each takes. No text is dropped.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "io/chat/chat_template.h"

namespace vlcache {

class TurnForms {
 public:
  // Renders messages as the template does; Error means that it rejects them.
  using Render = std::function<std::string(const OrderedJson& messages)>;
  explicit TurnForms(Render render) : render_(std::move(render)) {}

  // Which conversations the template shows, each text once and in its place.
  struct Takes {
    bool system = false;             // a system message at the beginning
    bool systems = false;            // several there
    bool system_alone = false;       // one without a user's turn
    bool late_system = false;        // one between turns, and one at the end
    bool users = false;              // two turns of the user in a row
    bool assistants = false;         // likewise
    bool assistant_first = false;    // before the first turn of the user
    bool user_after_result = false;  // after the result of a tool, without an assistant's turn between them
  };
  const Takes& takes();

  // The messages ([{role, content, ...}]) as the template takes them:
  // - System messages at the beginning are joined, or put before the first text of the user.
  // - A later one stays where it is if the template takes that; else it begins the user's next turn, or ends the last
  //   one if none follows. What was rendered before it stays the same, and with it the cached prefix.
  // - Turns of one role in a row are joined with a blank line.
  // - Where a turn of the other role must come between, an empty one is put there.
  OrderedJson fit(const OrderedJson& messages);

 private:
  bool shows(const OrderedJson& messages, std::initializer_list<std::string_view> texts);
  OrderedJson place_systems(const OrderedJson& messages);
  OrderedJson join_neighbours(OrderedJson messages);

  Render render_;
  std::optional<Takes> takes_;
};

}  // namespace vlcache
