// Text-only, multi-turn and system messages against the vision families' own templates: what jinja2 renders for the
// form that each is known to read (tools/fixtures/chat/families.py).
#include "io/chat/content_forms.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/json.h"

namespace vlcache {
namespace {

using testing::HasSubstr;

class Rendered {
 public:
  explicit Rendered(const std::string& source) : template_(ChatTemplate::parse(source, "t")), forms_(renderer()) {}
  std::string operator()(const OrderedJson& messages) { return render(fit(messages)); }
  OrderedJson fit(const OrderedJson& messages) { return forms_.fit(messages); }
  int n_renders() const { return n_renders_; }

 private:
  ContentForms::Render renderer() {
    return [this](const OrderedJson& messages) { return render(messages); };
  }
  std::string render(const OrderedJson& messages) {
    ++n_renders_;
    return template_.render(messages, {});
  }

  ChatTemplate template_;
  ContentForms forms_;
  int n_renders_ = 0;
};

TEST(ContentForms, EveryFamilyRendersAllContent) {
  const auto path = std::filesystem::path(VLCACHE_SOURCE_DIR) / "tests/fixtures/chat/families.json";
  const OrderedJson families = parse_ordered_json(read_text_file(path), path.string());
  ASSERT_GE(families.size(), 11u);
  for (const OrderedJson& family : families) {
    Rendered rendered(family.at("template"));
    for (const OrderedJson& c : family.at("cases")) {
      SCOPED_TRACE(family.at("name").get<std::string>() + ": " + c.at("name").get<std::string>());
      try {
        const std::string text = rendered(c.at("messages"));
        ASSERT_TRUE(c.contains("text")) << "rendered: " << text;
        EXPECT_EQ(text, c["text"].get<std::string>());
      } catch (const Error& e) {
        ASSERT_TRUE(c.contains("error")) << e.what();
        EXPECT_THAT(e.what(), HasSubstr(c["error"].get<std::string>()));
      }
    }
  }
}

TEST(ContentForms, ProbesATemplateOnce) {
  Rendered rendered("{% for m in messages %}{{ m.content[0].text }}{% endfor %}");
  const OrderedJson messages = OrderedJson::parse(R"([{"role": "system", "content": "a"},
    {"role": "user", "content": "b"}, {"role": "assistant", "content": "c"}, {"role": "user", "content": "d"}])");
  EXPECT_EQ(rendered(messages), "abcd");
  const int probing = rendered.n_renders() - 1;
  EXPECT_EQ(rendered(messages), "abcd");
  EXPECT_EQ(rendered.n_renders(), probing + 2);
}

TEST(ContentForms, KeepsOtherFieldsUnchanged) {
  Rendered rendered("{% for m in messages if m.role == 'user' %}{{ m.content[0].text }}{% endfor %}");
  const OrderedJson messages = OrderedJson::parse(R"([{"role": "user", "name": "n", "content": "b", "extra": [1]},
    {"role": "tool", "content": "unknown roles are the template's affair"}, {"role": "assistant", "tool_calls": []},
    {"role": "assistant", "content": null}, {"role": "assistant", "content": ""}, {"content": "no role"}, 7])");
  OrderedJson expected = messages;
  expected[0]["content"] = OrderedJson::parse(R"([{"type": "text", "text": "b"}])");
  EXPECT_EQ(rendered.fit(messages).dump(), expected.dump());
  EXPECT_EQ(rendered.fit("no list").dump(), "\"no list\"");
}

TEST(ContentForms, ErrorsNameTheRoleAndQuoteTheTemplate) {
  Rendered no_system(
      "{% if messages[0].role == 'system' %}{{ raise_exception('no system here') }}{% endif %}"
      "{% for m in messages %}{{ m.content }}{% endfor %}");
  try {
    no_system(OrderedJson::parse(R"([{"role": "system", "content": "x"}])"));
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), testing::AllOf(HasSubstr("'system'"), HasSubstr("no system here")));
  }
  Rendered text_only("{% for m in messages %}{{ m.content + '' }}{% endfor %}");
  try {
    text_only(OrderedJson::parse(R"([{"role": "user", "content": [{"type": "image"}]}])"));
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), testing::AllOf(HasSubstr("'user'"), HasSubstr("image")));
  }
}

}  // namespace
}  // namespace vlcache
