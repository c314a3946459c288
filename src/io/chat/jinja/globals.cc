// The functions every chat template may call: jinja2's globals and those transformers adds.
#include <array>
#include <chrono>

#include "io/chat/jinja/number.h"
#include "io/chat/jinja/runtime.h"

namespace vlcache::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;  // jinja2.sandbox.MAX_RANGE

Value do_range(Runtime&, Args& args) {
  if (args.positional.empty() || args.positional.size() > 3 || !args.named.empty())
    fail("range expected 1 to 3 arguments");
  std::array<int64_t, 3> v{0, 0, 1};
  for (size_t i = 0; i < args.positional.size(); ++i) {
    v[i] = Bound("range", Args{{args.positional[i]}, {}}, {"value"}).integer(0, 0);
  }
  if (args.positional.size() == 1) std::swap(v[0], v[1]);
  const auto [start, stop, step] = v;
  if (step == 0) fail("range() arg 3 must not be zero");
  auto range = std::make_shared<Range>();
  range->start = start;
  range->stop = stop;
  range->step = step;
  range->size = 0;
  if (step > 0 ? start < stop : start > stop) {
    const auto span = step > 0 ? static_cast<uint64_t>(stop) - static_cast<uint64_t>(start)
                               : static_cast<uint64_t>(start) - static_cast<uint64_t>(stop);
    const uint64_t stride = step > 0 ? static_cast<uint64_t>(step) : 0 - static_cast<uint64_t>(step);
    const uint64_t size = (span - 1) / stride + 1;
    if (size > kMaxRange) fail("Range too big. The sandbox blocks ranges larger than MAX_RANGE (100000).");
    range->size = static_cast<int64_t>(size);
  }
  range->weight = 1 + range->size;
  return Value::object(Type::kRange, std::move(range));
}

Value do_dict(Runtime& rt, Args& args) {
  if (args.positional.size() > 1)
    fail("dict expected at most 1 argument, got " + std::to_string(args.positional.size()));
  std::vector<std::pair<Value, Value>> entries;
  if (!args.positional.empty()) {
    const Value& source = args.positional[0];
    if (source.is_dict()) {
      entries = source.as<Dict>().entries;
    } else if (source.is(Type::kNamespace)) {
      fail("'TemplateNamespace' object is not iterable");
    } else {
      for (const Value& pair : rt.collect(source)) {
        const auto parts = rt.collect(pair);
        if (parts.size() != 2) {
          fail("dictionary update sequence element #" + std::to_string(entries.size()) + " has length " +
               std::to_string(parts.size()) + "; 2 is required");
        }
        entries.emplace_back(parts[0], parts[1]);
      }
    }
  }
  for (const auto& [name, value] : args.named) entries.emplace_back(Value::string(name), value);
  rt.charge_bytes(static_cast<int64_t>(entries.size() * 2 * sizeof(Value)));
  return make_dict(std::move(entries));
}

Value do_namespace(Runtime& rt, Args& args) {
  const Value attributes = do_dict(rt, args);
  auto ns = std::make_shared<Namespace>();
  ns->attributes = make_dict({});
  for (const auto& [key, value] : attributes.as<Dict>().entries) {
    if (!key.is_string()) fail_unsupported("a namespace with keys that are no strings");
    check_namespace_name(key.text());
    ns->set(key.text(), value);
  }
  rt.track(ns);
  return Value::object(Type::kNamespace, std::move(ns));
}

Value do_joiner(Runtime&, Args& args) {
  const Bound b("joiner", args, {"sep"});
  auto joiner = std::make_shared<Joiner>();
  joiner->separator = b.get(0, Value::string(", "));
  joiner->depth = joiner->separator.depth() + 1;
  return Value::object(Type::kJoiner, std::move(joiner));
}

Value do_raise(Runtime&, Args& args) {
  const Bound b("raise_exception", args, {"message"}, 1);
  throw RenderError(to_str(b.at(0)), RenderError::Kind::kRaised);
}

std::tm local_now() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm tm{};
  localtime_r(&now, &tm);
  return tm;
}

Value do_strftime(Runtime& rt, Args& args) {
  const Bound b("strftime_now", args, {"format"}, 1);
  if (!b.at(0).is_string()) fail("strftime() argument 1 must be str, not " + type_name(b.at(0)));
  const std::string& given = b.at(0).text();
  if (given.size() > 1024) fail_limit("strftime_now with a format of more than 1024 bytes");
  std::string format;  // datetime.strftime answers these itself
  for (size_t i = 0; i < given.size(); ++i) {
    const char next = given[i] == '%' && i + 1 < given.size() ? given[i + 1] : 0;
    if (next == 'f' || next == 'z' || next == 'Z') {
      format += next == 'f' ? "000000" : "";
      ++i;
    } else {
      format += given[i];
      if (next != 0) format += given[++i];
    }
  }
  if (format.empty()) return Value::string("");
  const std::tm now = rt.now() ? *rt.now() : local_now();
  std::array<char, 8192> buffer;
  format += '|';  // an empty result would look like a full buffer
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
  const size_t n = std::strftime(buffer.data(), buffer.size(), format.c_str(), &now);
#pragma GCC diagnostic pop
  if (n == 0) fail_limit("strftime_now makes more than 8192 bytes");
  return rt.new_string(std::string(buffer.data(), n - 1));
}

// Functions of jinja2 that no published chat template was found to use.
Value do_cycler(Runtime&, Args&) { fail_left_out("the function 'cycler'"); }
Value do_lipsum(Runtime&, Args&) { fail_left_out("the function 'lipsum'"); }

}  // namespace

void check_namespace_name(const std::string& name) {
  if (name.empty() || name[0] != '_') return;
  fail("Chat templates cannot store underscore-prefixed attributes on a namespace, but got " +
       to_repr(Value::string(name)) + ". Please rename the attribute.");
}

Value find_global(std::string_view name) {
  using Body = Value (*)(Runtime&, Args&);
  static constexpr std::array<std::pair<std::string_view, Body>, 8> kGlobals = {{
      {"range", do_range},
      {"dict", do_dict},
      {"namespace", do_namespace},
      {"cycler", do_cycler},
      {"joiner", do_joiner},
      {"raise_exception", do_raise},
      {"strftime_now", do_strftime},
      {"lipsum", do_lipsum},
  }};
  for (const auto& [global, body] : kGlobals) {
    if (global == name) return make_function(std::string(name), body);
  }
  return {};
}

}  // namespace vlcache::jinja
