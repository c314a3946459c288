#include "io/chat/jinja/callable.h"
#include "io/chat/jinja/number.h"
#include "io/chat/jinja/text.h"
#include "io/chat/jinja/value.h"

namespace vlcache::jinja {
namespace {

// Namespaces can hold themselves; everything else is bounded by the depth of values.
constexpr int kMaxReprDepth = 400;

std::string repr_at(const Value& v, int depth);

std::string join_reprs(const std::vector<Value>& items, int depth) {
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += ", ";
    out += repr_at(items[i], depth);
    if (out.size() > (size_t{64} << 20)) fail_limit("repr() of more than 64 MiB");
  }
  return out;
}

std::string repr_dict(const Dict& dict, int depth) {
  std::string out = "{";
  for (size_t i = 0; i < dict.entries.size(); ++i) {
    if (i > 0) out += ", ";
    out += repr_at(dict.entries[i].first, depth) + ": " + repr_at(dict.entries[i].second, depth);
    if (out.size() > (size_t{64} << 20)) fail_limit("repr() of more than 64 MiB");
  }
  return out + "}";
}

std::string repr_range(const Range& r) {
  std::string out = "range(" + std::to_string(r.start) + ", " + std::to_string(r.stop);
  return r.step == 1 ? out + ")" : out + ", " + std::to_string(r.step) + ")";
}

std::string repr_at(const Value& v, int depth) {
  if (depth > kMaxReprDepth) fail_limit("repr() of a value that contains itself");
  switch (v.type()) {
    case Type::kMissing:
    case Type::kUndefined:
      return "Undefined";
    case Type::kNone:
      return "None";
    case Type::kBool:
      return v.as_int() != 0 ? "True" : "False";
    case Type::kInt:
      return std::to_string(v.as_int());
    case Type::kFloat:
      return float_repr(v.as_double());
    case Type::kString:
      if (v.is_digits()) return v.text();
      return v.is_markup() ? "Markup(" + repr(v.text()) + ")" : repr(v.text());
    case Type::kList:
      return "[" + join_reprs(v.items(), depth + 1) + "]";
    case Type::kTuple:
      return "(" + join_reprs(v.items(), depth + 1) + (v.items().size() == 1 ? ",)" : ")");
    case Type::kDict:
      return repr_dict(v.as<Dict>(), depth + 1);
    case Type::kView:
      return type_name(v) + "([" + join_reprs(to_vector(v), depth + 1) + "])";
    case Type::kRange:
      return repr_range(v.as<Range>());
    case Type::kNamespace:
      return "<Namespace " + repr_dict(v.as<Namespace>().attributes.as<Dict>(), depth + 1) + ">";
    case Type::kLoop: {
      Loop& loop = v.as<Loop>();
      return "<LoopContext " + std::to_string(loop.index0 + 1) + "/" + std::to_string(loop.length()) + ">";
    }
    case Type::kCallable: {
      const auto& callable = v.as<Callable>();
      if (callable.kind_name() == "Macro")
        return "<Macro " + (callable.name.empty() ? "anonymous" : repr(callable.name)) + ">";
      break;
    }
    default:
      break;
  }
  return "<" + type_name(v) + " object>";  // Python prints an address here; nothing could depend on it
}

}  // namespace

std::string to_repr(const Value& v) { return repr_at(v, 0); }

std::string to_str(const Value& v) {
  if (v.is_string()) return v.text();
  if (v.is_undefined()) return {};
  return to_repr(v);
}

}  // namespace vlcache::jinja
