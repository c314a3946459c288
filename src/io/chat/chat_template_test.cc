// Chat templates against what Python's jinja2 rendered (tools/fixtures/chat), and hostile templates.
#include "io/chat/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/sha.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "io/chat/chat_templates.h"

namespace vlcache {
namespace {

namespace fs = std::filesystem;

const fs::path kFixtures = fs::path(VLCACHE_SOURCE_DIR) / "tests/fixtures/chat";

std::tm fixture_time() {  // Thursday 2026-03-05 14:07:09
  std::tm tm{};
  tm.tm_year = 126;
  tm.tm_mon = 2;
  tm.tm_mday = 5;
  tm.tm_hour = 14;
  tm.tm_min = 7;
  tm.tm_sec = 9;
  tm.tm_wday = 4;
  tm.tm_yday = 63;
  return tm;
}

OrderedJson load_fixture(const char* name) {
  const fs::path path = kFixtures / name;
  return parse_ordered_json(read_text_file(path), path.string());
}

// The first 16 hex digits of the SHA-256.
std::string digest(const std::string& text) {
  unsigned char hash[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), hash);
  std::string out;
  for (int i = 0; i < 8; ++i) {
    out += "0123456789abcdef"[hash[i] >> 4];
    out += "0123456789abcdef"[hash[i] & 15];
  }
  return out;
}

std::string render_plain(const std::string& source, const OrderedJson& variables = OrderedJson::object()) {
  return ChatTemplate::parse(source, "test").render_variables(variables, fixture_time());
}

ErrorCode error_code_of(const std::string& source) {
  try {
    render_plain(source);
  } catch (const Error& e) {
    return e.code();
  }
  ADD_FAILURE() << "no error from " << source.substr(0, 80);
  return ErrorCode::kIo;
}

TEST(JinjaTest, RendersEveryConstructAsPythonDoes) {
  const OrderedJson fixture = load_fixture("constructs.json");
  ASSERT_GT(fixture.at("cases").size(), 600u);
  for (const OrderedJson& c : fixture.at("cases")) {
    const auto source = c.at("source").get<std::string>();
    SCOPED_TRACE(source.substr(0, 200));
    try {
      const std::string text = render_plain(source, fixture.at("variables"));
      ASSERT_TRUE(c.contains("text")) << "rendered: " << text;
      EXPECT_EQ(text, c["text"].get<std::string>());
    } catch (const ChatTemplateError& e) {
      EXPECT_FALSE(c.contains("text")) << e.what();
      EXPECT_EQ(e.raised(), c.value("raised", false));
      if (e.raised()) {
        EXPECT_EQ(e.message(), c["error"].get<std::string>());
      }
    }
  }
}

TEST(JinjaTest, ErrorsNameTheLine) {
  try {
    render_plain("a\nb\n{{ 1 +\n none }}");
    FAIL();
  } catch (const ChatTemplateError& e) {
    EXPECT_EQ(e.line(), 3);
    EXPECT_STREQ(e.what(), "test: line 3: unsupported operand type(s) for +: 'int' and 'NoneType'");
  }
  EXPECT_EQ(error_code_of("{% extends 'x' %}"), ErrorCode::kInput);
}

TEST(JinjaTest, NamesLeftOutSayThatJinjaHasThem) {
  const auto left_out = [](const std::string& use, const std::string& named) {
    try {
      render_plain("a\n{{ " + use + " }}");
      ADD_FAILURE() << "no error from " << use;
    } catch (const ChatTemplateError& e) {
      EXPECT_EQ(std::string(e.what()), "test: line 2: Jinja has " + named + ", this program does not");
      EXPECT_EQ(e.code(), ErrorCode::kUnsupported);
      EXPECT_FALSE(e.raised());
    }
  };
  for (const std::string& filter : std::vector<std::string>{"pprint", "random", "urlize", "wordwrap", "xmlattr"}) {
    left_out("'a'|" + filter, "the filter '" + filter + "'");
  }
  for (const std::string& method :
       std::vector<std::string>{"encode", "expandtabs", "format_map", "maketrans", "translate"}) {
    left_out("'a'." + method + "(1)", "the method str." + method + "()");
  }
  for (const std::string& function : std::vector<std::string>{"cycler", "lipsum"})
    left_out(function + "('a')", "the function '" + function + "'");
  // Only a name that is used is an error, and Jinja itself has no other filter.
  EXPECT_EQ(render_plain("{% if false %}{{ 'a'|xmlattr }}{{ cycler(1) }}{% endif %}{{ 'xmlattr' is filter }}"), "True");
  EXPECT_EQ(error_code_of("{{ 'a'|nowhere }}"), ErrorCode::kInput);
}

std::string repeat(const std::string& part, int n) {
  std::string out;
  for (int i = 0; i < n; ++i) out += part;
  return out;
}

TEST(JinjaTest, RejectsHostileNesting) {
  const int n = 200'000;
  for (const char* open : {"(", "[", "{1:", "-", "not ", "1 if 1 else "}) {
    error_code_of("{{ " + repeat(open, n) + "1");
  }
  error_code_of("{{ 1" + repeat("+1", n) + " }}");
  error_code_of("{{ x" + repeat(".a", n) + " }}");
  error_code_of("{{ x" + repeat("|e", n) + " }}");
  error_code_of(repeat("{% if 1 %}", n));
  error_code_of(repeat("{% for x in [1] %}", n) + repeat("{% endfor %}", n));
  // Many values side by side are not nesting.
  EXPECT_EQ(render_plain("{{ [" + repeat("1,", n) + "]|length }}"), std::to_string(n));
  EXPECT_EQ(render_plain("{% if 0 %}" + repeat("{% elif 0 %}", n) + "{% else %}x{% endif %}"), "x");
}

TEST(JinjaTest, BoundsWorkAndMemory) {
  const std::vector<std::string> sources = {
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{% for x in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}",
      "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
      "{% for a in range(100000) %}{{ 'x' * 100000 }}{% endfor %}",
      "{{ 'x' * 1000000000000 }}",
      "{{ [1] * 1000000000000 }}",
      "{{ '%1000000000d' % 1 }}",
      "{{ '{:1000000000}'.format(1) }}",
      "{{ 'a'|center(1000000000000) }}",
      "{{ 'a'.ljust(9223372036854775807) }}",
      "{{ 1|tojson(indent=1000000000) }}",
      "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(100) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}",
      "{% set ns = namespace(x='x') %}{% for i in range(100) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(100) %}{% set ns.x = ns.x|map('string') %}{% endfor %}{% for i "
      "in range(999) %}{% set "
      "ns.x = ns.x|map('string') %}{% endfor %}{{ ns.x|list }}",
      "{% set ns = namespace() %}{% set ns.a = [ns] %}{{ ns }}",
      "{{ (1, 2) ** 3 }}",
      "{{ 3 ** 1000000 }}",
      "{% for i in range(100000) %}{% for j in range(100) %}{% set x = namespace() %}{% endfor %}{% endfor %}",
      "{{ range(0, 9223372036854775807) }}",
      "{{ range(-9223372036854775807, 9223372036854775807, 1) }}",
      "{{ 'x'|batch(1000000000000, 'y')|list }}",
      "{{ strftime_now('%999999999d') }}",
  };
  for (const std::string& source : sources) {
    SCOPED_TRACE(source);
    error_code_of(source);
  }
}

TEST(JinjaTest, FreesSelfReferences) {  // the leak checker of the asan preset fails otherwise
  EXPECT_EQ(render_plain("{% set ns = namespace() %}{% set ns.a = ns %}{% set ns.b = [ns, ns.a] %}x"), "x");
  EXPECT_EQ(render_plain("{% macro m() %}{% endmacro %}{% set ns = namespace(m=m) %}{% set k = ns %}x"), "x");
  EXPECT_EQ(render_plain("{% for x in [1, 2] %}{% set q = loop.changed(loop) %}{{ x }}{% endfor %}"), "12");
  EXPECT_EQ(
      render_plain(
          "{% set ns = namespace(p=none) %}{% for i in range(9000) %}{% set ns.p = namespace(p=ns.p) %}{% endfor %}x"),
      "x");
}

TEST(ChatTemplateTest, PreparesMessagesAsTransformersDoes) {
  const auto t = ChatTemplate::parse(
      "{{ messages[0].thinking }}|{{ messages[0].reasoning_content }}|{{ messages[0].keys()|list }}|{{ tools }}", "t");
  const OrderedJson messages = OrderedJson::parse(R"([{"role": "assistant", "reasoning": "r"}])");
  EXPECT_EQ(t.render(messages, {}), "r|r|['thinking', 'role', 'reasoning', 'reasoning_content']|None");
  EXPECT_THROW(t.render(OrderedJson::object(), {}), Error);
  EXPECT_THROW(t.render(OrderedJson::parse("[1]"), {}), Error);
  const OrderedJson tools = OrderedJson::parse("[1]");
  ChatOptions options;
  options.tools = &tools;
  EXPECT_THROW(t.render(messages, options), Error);
}

TEST(ChatTemplateTest, ContinuesTheFinalMessage) {
  const OrderedJson messages =
      OrderedJson::parse(R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b "}])");
  ChatOptions options;
  options.add_generation_prompt = false;
  options.continue_final_message = true;
  const auto keep = ChatTemplate::parse("{% for m in messages %}<{{ m.content }}>{% endfor %}", "t");
  EXPECT_EQ(keep.render(messages, options), "<a><b ");
  const auto trims = ChatTemplate::parse("{% for m in messages %}<{{ m.content|trim }}>{% endfor %}", "t");
  EXPECT_EQ(trims.render(messages, options), "<a><b");
  const auto drops = ChatTemplate::parse("{{ messages[0].content }}", "t");
  EXPECT_THROW(drops.render(messages, options), Error);
  EXPECT_THROW(keep.render(OrderedJson::array(), options), Error);
}

// Third-party templates are not part of this project: with VLCACHE_TEMPLATES_DIR naming a folder of them, their output
// is compared with the hashes of what Python rendered (compare.py --write-hashes).
TEST(ChatTemplateTest, RendersKnownTemplatesAsPythonDoes) {
  const char* folder = std::getenv("VLCACHE_TEMPLATES_DIR");
  if (folder == nullptr) GTEST_SKIP() << "VLCACHE_TEMPLATES_DIR does not name a folder of chat templates";
  const OrderedJson fixture = load_fixture("conversations.json");
  int n_compared = 0;
  const OrderedJson known = load_fixture("template_hashes.json");
  for (const auto& [name, hashes] : known.items()) {
    const fs::path path = fs::path(folder) / name;
    if (!fs::exists(path)) continue;
    const std::string source = read_text_file(path);
    if (digest(source) != hashes.at("source").get<std::string>()) continue;  // another version of the template
    for (const OrderedJson& conversation : fixture.at("conversations")) {
      for (const bool prompt : {false, true}) {
        const std::string id = conversation.at("name").get<std::string>() + (prompt ? "/prompt" : "/plain");
        SCOPED_TRACE(name + " " + id);
        ChatOptions options;
        options.add_generation_prompt = prompt;
        options.variables = &fixture.at("variables");
        options.now = fixture_time();
        if (conversation.contains("tools")) options.tools = &conversation["tools"];
        std::string result;
        try {
          result = "text: " + ChatTemplate::parse(source, name).render(conversation.at("messages"), options);
        } catch (const ChatTemplateError& e) {
          result = e.raised() ? "raised: " + e.message() : "error";
        }
        EXPECT_EQ(digest(result), hashes.at(id).get<std::string>()) << result.substr(0, 300);
        ++n_compared;
      }
    }
  }
  EXPECT_GT(n_compared, 0) << folder << " holds none of the templates that were measured";
}

TEST(ChatTemplatesTest, PrefersToolUseWithTools) {
  EXPECT_EQ(choose_chat_template({{"default", ""}, {"tool_use", ""}}, true), "tool_use");
  EXPECT_EQ(choose_chat_template({{"default", ""}, {"tool_use", ""}}, false), "default");
  EXPECT_EQ(choose_chat_template({{"default", ""}}, true), "default");
  EXPECT_EQ(choose_chat_template({{"only", ""}}, false), "only");
  EXPECT_EQ(choose_chat_template({{"a", ""}, {"b", ""}}, false), "");
  EXPECT_EQ(choose_chat_template({}, false), "");
}

}  // namespace
}  // namespace vlcache
