// Conversations in the order that each kind of template takes.
#include "io/chat/turn_forms.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace vlcache {
namespace {

// As ChatML: any order.
constexpr const char* kAny = "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}";
// As Mistral's and Gemma's first: no system message, user and assistant alternate.
constexpr const char* kAlternate =
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}"
    "{% endif %}{{ m.role }}:{{ m.content }}\n{% endfor %}";
// As many: one system message at the beginning, others rejected or left out.
constexpr const char* kOneSystem =
    "{% if messages[0].role == 'system' %}{{ 'system:' + messages[0].content + '\n' }}{% set rest = messages[1:] %}"
    "{% else %}{% set rest = messages %}{% endif %}{% if not rest %}{{ raise_exception('no user') }}{% endif %}"
    "{% for m in rest %}{% if m.role != 'system' %}{{ m.role }}:{{ m.content }}\n{% endif %}{% endfor %}";
// All system messages on top, whatever their place.
constexpr const char* kHoisting =
    "{% for m in messages if m.role == 'system' %}system:{{ m.content }}\n{% endfor %}"
    "{% for m in messages if m.role != 'system' %}{{ m.role }}:{{ m.content }}\n{% endfor %}";
// The turns after a tool's result are the assistant's.
constexpr const char* kAfterResult =
    "{% for m in messages %}{% if m.role == 'user' and loop.index0 > 0 and messages[loop.index0 - 1].role == 'tool' %}"
    "{{ raise_exception('after tool') }}{% endif %}{{ m.role }}:{{ m.content }}\n{% endfor %}";

OrderedJson messages_of(std::initializer_list<std::pair<const char*, const char*>> turns) {
  OrderedJson out = OrderedJson::array();
  for (const auto& [role, text] : turns) out.push_back({{"role", role}, {"content", text}});
  return out;
}

std::string fitted(const char* source, const OrderedJson& messages) {
  const ChatTemplate chat_template = ChatTemplate::parse(source, "template");
  TurnForms forms([&](const OrderedJson& m) { return chat_template.render(m, {}); });
  return chat_template.render(forms.fit(messages), {});
}

TEST(TurnForms, EveryTextInItsPlace) {
  const struct {
    const char* what;
    const char* source;
    OrderedJson messages;
    const char* text;
  } cases[] = {
      {"all as they are", kAny,
       messages_of({{"system", "s"}, {"system", "t"}, {"user", "a"}, {"user", "b"}, {"system", "u"}}),
       "system:s\nsystem:t\nuser:a\nuser:b\nsystem:u\n"},
      {"no system", kAlternate, messages_of({{"system", "s"}, {"system", "t"}, {"user", "a"}}), "user:s\n\nt\n\na\n"},
      {"a late one", kAlternate, messages_of({{"user", "a"}, {"assistant", "b"}, {"system", "t"}, {"user", "c"}}),
       "user:a\nassistant:b\nuser:t\n\nc\n"},
      {"at the end", kAlternate, messages_of({{"user", "a"}, {"assistant", "b"}, {"user", "c"}, {"system", "t"}}),
       "user:a\nassistant:b\nuser:c\n\nt\n"},
      {"before an answer", kAlternate, messages_of({{"user", "a"}, {"system", "t"}, {"assistant", "b"}, {"user", "c"}}),
       "user:a\nassistant:b\nuser:t\n\nc\n"},
      {"neighbours", kAlternate,
       messages_of({{"user", "a"}, {"user", "b"}, {"assistant", "c"}, {"assistant", "d"}, {"user", "e"}}),
       "user:a\n\nb\nassistant:c\n\nd\nuser:e\n"},
      {"an assistant first", kAlternate, messages_of({{"assistant", "a"}, {"user", "b"}}),
       "user:\nassistant:a\nuser:b\n"},
      {"system alone", kAlternate, messages_of({{"system", "s"}}), "user:s\n"},
      {"two systems", kOneSystem, messages_of({{"system", "s"}, {"system", "t"}, {"user", "a"}}),
       "system:s\n\nt\nuser:a\n"},
      {"a late one after the first", kOneSystem,
       messages_of({{"system", "s"}, {"user", "a"}, {"assistant", "b"}, {"system", "t"}, {"user", "c"}}),
       "system:s\nuser:a\nassistant:b\nuser:t\n\nc\n"},
      {"alone", kOneSystem, messages_of({{"system", "s"}}), "user:s\n"},
      {"a late one stays late", kHoisting,
       messages_of({{"user", "a"}, {"assistant", "b"}, {"system", "t"}, {"user", "c"}}),
       "user:a\nassistant:b\nuser:t\n\nc\n"},
      {"after a result", kAfterResult, messages_of({{"user", "a"}, {"assistant", "b"}, {"tool", "r"}, {"user", "c"}}),
       "user:a\nassistant:b\ntool:r\nassistant:\nuser:c\n"},
  };
  for (const auto& c : cases) EXPECT_EQ(fitted(c.source, c.messages), c.text) << c.what;
}

TEST(TurnForms, JoinsPartsAndCalls) {
  const ChatTemplate chat_template = ChatTemplate::parse(kAlternate, "template");
  TurnForms forms([&](const OrderedJson& m) { return chat_template.render(m, {}); });
  const OrderedJson messages = OrderedJson::parse(R"([
      {"role": "system", "content": "s"},
      {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "a"}]},
      {"role": "assistant", "content": "", "tool_calls": [1]},
      {"role": "assistant", "content": "b", "tool_calls": [2]}])");
  EXPECT_EQ(
      forms.fit(messages).dump(),
      R"([{"role":"user","content":[{"type":"text","text":"s"},{"type":"text","text":"\n\n"},{"type":"image"},{"type":"text","text":"a"}]},)"
      R"({"role":"assistant","content":"b","tool_calls":[1,2]}])");
}

}  // namespace
}  // namespace vlcache
