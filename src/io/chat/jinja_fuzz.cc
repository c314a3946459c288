// Fuzzes the template compiler and the interpreter: the input is the template.
#include <cstdint>
#include <string_view>

#include "base/fuzz_target.h"
#include "io/chat/jinja/ast.h"
#include "io/chat/jinja/interpreter.h"
#include "io/chat/jinja/text.h"

namespace {

using vlcache::jinja::Value;
using vlcache::jinja::Variables;

// Small limits: the fuzzer looks for crashes, not for slow templates.
constexpr vlcache::jinja::Limits kLimits{.max_steps = 100'000,
                                         .max_output_bytes = 1 << 20,
                                         .max_allocated_bytes = 8 << 20,
                                         .max_depth = 200,
                                         .max_closures = 1000};

Variables variables() {
  const Value words = Value::list({Value::string("b"), Value::string("A \xC3\xA9"), Value::string("<c>", true)});
  const Value dict = vlcache::jinja::make_dict({{Value::string("a"), Value::integer(1)}, {Value::string("b"), words}});
  return {{"n", Value::integer(7)},
          {"f", Value::real(2.5)},
          {"s", Value::string("Hello World")},
          {"l", words},
          {"d", dict}};
}

}  // namespace

FUZZ_TARGET(jinja) {
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  if (size > 1 << 16 || !vlcache::is_valid_utf8(source)) return 0;
  try {
    const auto tree = vlcache::jinja::parse_template(source);
    std::tm now{};
    now.tm_mday = 1;
    vlcache::jinja::Interpreter interpreter(kLimits, now, variables());
    interpreter.render(tree);
  } catch (const vlcache::jinja::RenderError&) {
  }
  return 0;
}
