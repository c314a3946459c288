// Templates of four kinds, and messages about tools in the form that each reads.
#include "io/chat/tool_forms.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace vlcache {
namespace {

// As in Qwen2.5 and Llama 3.1: arguments are an object that tojson prints.
constexpr const char* kObjects =
    "{% if tools %}Tools:{% for t in tools %}{{ t | tojson }}{% endfor %}{{ '\\n' }}{% endif %}"
    "{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }} {{ c.function.arguments | tojson }}</tool_call>"
    "{% endfor %}{{ '\\n' }}{% endfor %}";
// Arguments that are concatenated with texts.
constexpr const char* kTexts =
    "{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ '[' + c.function.name + c.function.arguments + ']' }}{% endfor %}{{ '\\n' "
    "}}{% endfor "
    "%}";
// Without tools: roles must alternate.
constexpr const char* kNone =
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles') }}{% "
    "endif %}"
    "{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{{ '<image>' if p.type == 'image' else p.text }}{% endfor %}{% endif %}{{ '\\n' }}{% endfor %}";

struct Chat {
  ChatTemplate chat_template;
  ToolForms forms;

  explicit Chat(const char* source)
      : chat_template(ChatTemplate::parse(source, "template")),
        forms([this](const OrderedJson& messages, const OrderedJson* tools) { return render(messages, tools); }) {}
  std::string render(const OrderedJson& messages, const OrderedJson* tools = nullptr) const {
    ChatOptions options;
    options.tools = tools;
    return chat_template.render(messages, options);
  }
  std::string show(const OrderedJson& messages) { return render(forms.fit(messages)); }
};

// As Mistral's.
constexpr const char* kShortIds =
    "{% for m in messages %}{{ m.role }}:{{ m.content }}{{ m.tool_call_id }}"
    "{% if m.role == 'tool' and m.tool_call_id | length != 9 %}{{ raise_exception('nine letters') }}{% endif %}"
    "{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}{{ raise_exception('nine letters') }}{% endif %}"
    "[{{ c.id }}{{ c.function.name }}]{% endfor %}{{ '\\n' }}{% endfor %}";

// As Llama 3.1's.
constexpr const char* kOneCall =
    "{% for m in messages %}{% if m.tool_calls %}{% if m.tool_calls | length != 1 %}{{ raise_exception('one') }}{% "
    "endif %}{{ m.role }}:{{ m.content }}[{{ m.tool_calls[0].function.name }}]{% else %}{{ m.role }}:{{ m.content }}{% "
    "endif %}{{ '\\n' }}{% endfor %}";

OrderedJson user(OrderedJson content) { return {{"role", "user"}, {"content", std::move(content)}}; }
OrderedJson call(OrderedJson arguments) {
  OrderedJson message{{"role", "assistant"}, {"content", ""}};
  message["tool_calls"] = OrderedJson::array(
      {{{"id", "abcdefghi"}, {"type", "function"}, {"function", {{"name", "look"}, {"arguments", arguments}}}}});
  return message;
}
OrderedJson result(OrderedJson content) {
  return {{"role", "tool"}, {"content", std::move(content)}, {"tool_call_id", "abcdefghi"}};
}
OrderedJson text(const char* t) { return {{"type", "text"}, {"text", t}}; }
const OrderedJson kImage = {{"type", "image"}};

TEST(ToolForms, WhetherATemplateShowsTools) {
  EXPECT_TRUE(Chat(kObjects).forms.shows_tools());
  EXPECT_FALSE(Chat(kTexts).forms.shows_tools());
  EXPECT_FALSE(Chat(kNone).forms.shows_tools());
}

TEST(ToolForms, ArgumentsFollowTheTemplate) {
  const OrderedJson as_text = {user("Q"), call("{\"x\": 1}"), result("R")},
                    as_object = {user("Q"), call({{"x", 1}}), result("R")};
  for (const OrderedJson& messages : {as_text, as_object}) {
    EXPECT_EQ(Chat(kObjects).show(messages), "user:Q\nassistant:<tool_call>look {\"x\": 1}</tool_call>\ntool:R\n");
  }
  EXPECT_EQ(Chat(kTexts).show(as_text), "user:Q\nassistant:[look{\"x\": 1}]\ntool:R\n");
  EXPECT_EQ(Chat(kTexts).show(as_object), "user:Q\nassistant:[look{\"x\":1}]\ntool:R\n");
  // Invalid JSON from the model is shown as it is.
  EXPECT_EQ(Chat(kTexts).show({user("Q"), call("{x"), result("R")}), "user:Q\nassistant:[look{x]\ntool:R\n");
}

TEST(ToolForms, WithoutAToolRoleResultsAreUserTurns) {
  Chat chat(kNone);
  EXPECT_EQ(chat.show({user("Q"), call("{\"x\": 1}"), result("R"), result("S"), user("And?")}),
            "user:Q\nassistant:{\"name\": \"look\", \"arguments\": {\"x\": 1}}\nuser:R\nS\nAnd?\n");
  EXPECT_EQ(chat.show({user("Q"), call("{}"), result({text("R"), kImage}), user({kImage, text("And?")})}),
            "user:Q\nassistant:{\"name\": \"look\", \"arguments\": {}}\nuser:R<image>\n<image>And?\n");
}

TEST(ToolForms, ImagesOfResultsAreUserTurns) {
  Chat chat(kObjects);
  const OrderedJson fitted = chat.forms.fit(
      {user("Q"), call("{}"), result({text("R"), kImage}), result({kImage, text("S")}), user({kImage, text("And?")})});
  ASSERT_EQ(fitted.size(), 5u);
  EXPECT_EQ(fitted[2]["content"], "R");
  EXPECT_EQ(fitted[3]["content"], "S");
  EXPECT_EQ(fitted[4]["content"], OrderedJson({kImage, kImage, kImage, text("And?")}));
  const OrderedJson image = OrderedJson::array({kImage});  // {kImage} is one only for some compilers
  EXPECT_EQ(chat.forms.fit({user("Q"), call("{}"), result(image)})[3], user(image));
}

TEST(ToolForms, IdsFollowTheTemplate) {
  const auto with_id = [](OrderedJson message, const char* id) {
    (message.contains("tool_calls") ? message["tool_calls"][0]["id"] : message["tool_call_id"]) = id;
    return message;
  };
  const OrderedJson messages = {
      user("Q"),   with_id(call("{}"), "toolu_01"),  with_id(result("R"), "toolu_01"), call("{}"),
      result("S"), with_id(call("{}"), "call-1234"), with_id(result("T"), "call-1234")};
  EXPECT_EQ(Chat(kShortIds).show(messages),
            "user:Q\nassistant:[000000000look]\ntool:R000000000\nassistant:[abcdefghilook]\ntool:Sabcdefghi\n"
            "assistant:[000000001look]\ntool:T000000001\n");
  EXPECT_EQ(Chat(kObjects).forms.fit(messages)[1]["tool_calls"][0]["id"], "toolu_01");
}

TEST(ToolForms, OneCallPerMessage) {
  OrderedJson two = call("{}");
  two["content"] = "I look twice.";
  two["tool_calls"].push_back({{"id", "second"}, {"type", "function"}, {"function", {{"name", "look"}}}});
  OrderedJson of_second = result("S"), of_no_call = result("T");
  of_second["tool_call_id"] = "second";
  of_no_call["tool_call_id"] = "other";
  const OrderedJson messages = {user("Q"), two, of_second, of_no_call, result("R"), user("And?")};
  EXPECT_EQ(Chat(kOneCall).show(messages),
            "user:Q\nassistant:I look twice.[look]\ntool:R\nassistant:[look]\ntool:S\ntool:T\nuser:And?\n");
  EXPECT_EQ(Chat(kObjects).forms.fit(messages)[1]["tool_calls"].size(), 2u);
}

TEST(ToolForms, OtherMessagesAreUnchanged) {
  const OrderedJson messages = {user("Q"),
                                {{"role", "assistant"}, {"content", "A"}, {"tool_calls", OrderedJson::array()}}};
  EXPECT_EQ(Chat(kNone).forms.fit(messages), messages);
}

}  // namespace
}  // namespace vlcache
