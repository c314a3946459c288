#include "io/chat/jinja/interpreter.h"

#include <algorithm>

namespace vlcache::jinja {

struct Interpreter::LoopRun {
  const Statement& statement;
  Activation* closure;  // where the for stands: what its test sees
  int64_t depth0 = 0;
};

Interpreter::~Interpreter() {
  // Activations hold macros that refer back to them only by plain pointers, so order does not matter.
  for (const auto& activation : kept_) activation->slots.clear();
}

std::string Interpreter::render(const TemplateTree& tree) {
  std::unique_ptr<Activation> owner;
  Activation* root = new_activation(nullptr, tree.n_slots, true, owner);
  enter(tree.loads, root);
  std::string out;
  run_block(tree.body, root, out);
  return out;
}

Activation* Interpreter::new_activation(Activation* parent, int n_slots, bool keep,
                                        std::unique_ptr<Activation>& owner) {
  owner = std::make_unique<Activation>();
  owner->parent = parent;
  owner->slots.resize(static_cast<size_t>(n_slots));
  charge_steps(n_slots);
  Activation* const a = owner.get();
  if (keep) {
    if (static_cast<int64_t>(kept_.size()) >= limits_.max_closures) {
      fail_limit("the template makes more than " + std::to_string(limits_.max_closures) + " closures");
    }
    kept_.push_back(std::move(owner));
  }
  return a;
}

Value Interpreter::resolve(const std::string& name) {
  const auto it = variables_.find(name);
  return it != variables_.end() ? it->second : find_global(name);
}

Value& Interpreter::slot(Activation* a, const SlotRef& ref) {
  for (int i = 0; i < ref.hops; ++i) a = a->parent;
  return a->slots[static_cast<size_t>(ref.slot)];
}

void Interpreter::enter(const std::vector<Load>& loads, Activation* a) {
  for (const Load& load : loads) {
    Value value;
    if (load.kind == Load::Kind::kResolve) value = resolve(load.name);
    if (load.kind == Load::Kind::kAlias) value = slot(a, load.source);
    a->slots[static_cast<size_t>(load.slot)] = std::move(value);
  }
}

void Interpreter::emit(std::string& out, const Value& value) {
  const std::string text = value.is_string() ? std::string() : to_str(value);
  const std::string& shown = value.is_string() ? value.text() : text;
  if (static_cast<int64_t>(out.size() + shown.size()) > limits_.max_output_bytes) {
    fail_limit("the text is longer than " + std::to_string(limits_.max_output_bytes) + " bytes");
  }
  charge_bytes(static_cast<int64_t>(shown.size()));
  out += shown;
}

Interpreter::Flow Interpreter::run_block(const Block& block, Activation* a, std::string& out) {
  for (const StatementPtr& s : block) {
    const Flow flow = run(*s, a, out);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run(const Statement& s, Activation* a, std::string& out) {
  const Depth depth(*this);
  charge_steps(1);
  line_ = s.line;
  switch (s.kind) {
    case Statement::Kind::kOutput:
      for (const ExprPtr& e : s.exprs) emit(out, eval(*e, a));
      break;
    case Statement::Kind::kAssign:
      check_namespaces(*s.target, a);
      assign(*s.target, eval(*s.expr, a), a);
      break;
    case Statement::Kind::kIf:
      return run_if(s, a, out);
    case Statement::Kind::kFor:
      return run_for(s, a, out);
    case Statement::Kind::kMacro:
      slot(a, s.target->ref) = make_macro(s, a);
      break;
    case Statement::Kind::kCallBlock:
      run_call_block(s, a, out);
      break;
    case Statement::Kind::kAssignBlock:
    case Statement::Kind::kFilterBlock:
      return run_buffered(s, a, out);
    case Statement::Kind::kWith:
      return run_with(s, a, out);
    case Statement::Kind::kBreak:
      return Flow::kBreak;
    case Statement::Kind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_if(const Statement& s, Activation* a, std::string& out) {
  if (truthy(eval(*s.expr, a))) return run_block(s.body, a, out);
  for (const StatementPtr& elif : s.elifs) {
    line_ = elif->line;
    if (truthy(eval(*elif->expr, a))) return run_block(elif->body, a, out);
  }
  return run_block(s.else_body, a, out);
}

Interpreter::Flow Interpreter::run_buffered(const Statement& s, Activation* a, std::string& out) {
  enter(s.loads, a);
  std::string body;
  const Flow flow = run_block(s.body, a, body);
  if (flow != Flow::kNext) return flow;  // break inside the block: its output is discarded, as in Python
  line_ = s.line;
  Value value = new_string(std::move(body));
  if (s.expr) value = eval_filter(*s.expr, a, &value);
  if (s.kind == Statement::Kind::kFilterBlock) {
    emit(out, value);
  } else {
    check_namespaces(*s.target, a);
    assign(*s.target, value, a);
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_with(const Statement& s, Activation* a, std::string& out) {
  enter(s.loads, a);
  for (size_t i = 0; i < s.exprs.size(); ++i) assign(*s.exprs[i], eval(*s.defaults[i], a), a);
  return run_block(s.body, a, out);
}

void Interpreter::check_namespaces(const Expr& target, Activation* a) {
  if (target.kind == Expr::Kind::kNamespaceRef && !slot(a, target.ref).is(Type::kNamespace)) {
    fail("cannot assign attribute on non-namespace object");
  }
  for (const ExprPtr& child : target.children) check_namespaces(*child, a);
}

void Interpreter::assign(const Expr& target, const Value& value, Activation* a) {
  if (target.kind == Expr::Kind::kName) {
    slot(a, target.ref) = value;
    return;
  }
  if (target.kind == Expr::Kind::kNamespaceRef) {
    const Value ns = slot(a, target.ref);
    if (!ns.is(Type::kNamespace)) fail("cannot assign attribute on non-namespace object");
    check_namespace_name(target.text);
    ns.as<Namespace>().set(target.text, value);
    return;
  }
  if (!is_iterable(value)) fail("cannot unpack non-iterable " + type_name(value) + " object");
  const std::vector<Value> parts = collect(value);
  const size_t n = target.children.size();
  if (parts.size() > n) fail("too many values to unpack (expected " + std::to_string(n) + ")");
  if (parts.size() < n) {
    fail("not enough values to unpack (expected " + std::to_string(n) + ", got " + std::to_string(parts.size()) + ")");
  }
  for (size_t i = 0; i < n; ++i) assign(*target.children[i], parts[i], a);
}

Value Interpreter::make_macro(const Statement& s, Activation* a) {
  auto macro = std::make_shared<Macro>();
  macro->name = s.name;
  macro->node = &s;
  macro->closure = a;
  return Value::object(Type::kCallable, std::move(macro));
}

void Interpreter::run_call_block(const Statement& s, Activation* a, std::string& out) {
  const Value caller = make_macro(s, a);
  Args none;
  emit(out, s.expr ? eval_call(*s.expr, a, &caller) : call(caller, none));
}

Value Macro::call(Runtime& runtime, Args& args) { return runtime.call_macro(*this, args); }

Value Interpreter::call_macro(const Macro& macro, Args& args) {
  const Depth depth(*this);
  const Statement& s = *macro.node;
  const int line = line_;
  std::unique_ptr<Activation> owner;
  Activation* const a = new_activation(macro.closure, s.n_slots, s.makes_closures, owner);
  enter(s.loads, a);
  const size_t n = s.exprs.size();
  const size_t n_positional = std::min(args.positional.size(), n);
  const auto take_named = [&](const std::string& name) {
    const auto it = std::find_if(args.named.begin(), args.named.end(), [&](const auto& p) { return p.first == name; });
    if (it == args.named.end()) return Value();
    Value value = it->second;
    args.named.erase(it);
    return value;
  };
  for (size_t i = 0; i < n; ++i) {
    a->slots[static_cast<size_t>(s.parameter_slots[i])] =
        i < n_positional ? args.positional[i] : take_named(s.exprs[i]->name);
  }
  if (s.caller_slot >= 0) {
    const Value caller = take_named("caller");
    a->slots[static_cast<size_t>(s.caller_slot)] =
        caller.is_missing() || caller.is_none() ? Value::undefined("No caller defined") : caller;
  }
  if (s.kwargs_slot >= 0) {
    std::vector<std::pair<Value, Value>> rest;
    for (const auto& [name, value] : args.named) rest.emplace_back(Value::string(name), value);
    a->slots[static_cast<size_t>(s.kwargs_slot)] = make_dict(std::move(rest));
  } else if (!args.named.empty()) {
    if (args.named.back().first == "caller") {
      fail("macro '" + macro.name +
           "' was invoked with two values for the special caller argument. This is most likely a bug.");
    }
    fail("macro '" + macro.name + "' takes no keyword argument '" + args.named[0].first + "'");
  }
  if (s.varargs_slot >= 0) {
    a->slots[static_cast<size_t>(s.varargs_slot)] =
        Value::tuple({args.positional.begin() + static_cast<int64_t>(n_positional), args.positional.end()});
  } else if (args.positional.size() > n) {
    fail("macro '" + macro.name + "' takes not more than " + std::to_string(n) + " argument(s)");
  }
  for (size_t i = 0; i < n; ++i) {
    Value& parameter = a->slots[static_cast<size_t>(s.parameter_slots[i])];
    if (!parameter.is_missing()) continue;
    const size_t first_default = n - s.defaults.size();
    Value value = i >= first_default ? eval(*s.defaults[i - first_default], a)
                                     : Value::undefined("parameter '" + s.exprs[i]->name + "' was not provided");
    a->slots[static_cast<size_t>(s.parameter_slots[i])] = std::move(value);
  }
  std::string out;
  run_block(s.body, a, out);
  line_ = line;
  return new_string(std::move(out));
}

// The items of a for that pass its `if`, tested one by one while the loop runs.
std::function<bool(Value&)> Interpreter::filtered(const Statement& s, const Value& iterable, Activation* closure) {
  auto a = std::make_shared<Activation>();
  a->parent = closure;
  a->slots.resize(static_cast<size_t>(s.n_test_slots));
  enter(s.test_loads, a.get());
  return [this, &s, a, next = iterate(iterable)](Value& item) {
    while (next(item)) {
      charge_steps(1);
      assign(*s.test_target, item, a.get());
      if (truthy(eval(*s.test, a.get()))) return true;
    }
    return false;
  };
}

Interpreter::Flow Interpreter::loop_over(const LoopRun& run_of, const Value& iterable, Activation* a,
                                         std::string& out) {
  const Statement& s = run_of.statement;
  std::function<bool(Value&)> next = s.test ? filtered(s, iterable, run_of.closure) : iterate(iterable);
  std::shared_ptr<Loop> loop;
  Value loop_value;
  if (s.extended) {
    loop = std::make_shared<Loop>();
    loop->depth = iterable.depth() + 1;
    loop->iterable = s.test ? Value::none() : iterable;  // a filtered iterable has no length of its own
    loop->pull = std::move(next);
    loop->depth0 = run_of.depth0;
    loop->recurse = s.recursive ? &s : nullptr;
    loop->closure = run_of.closure;
    loop_value = Value::object(Type::kLoop, loop);
  }
  bool any = false;
  for (Value item; loop ? loop->next(item) : next(item);) {
    charge_steps(1);
    // The loop variables are parameters of the body's scope: entering it leaves them alone.
    if (loop) a->slots[static_cast<size_t>(s.loop_slot)] = loop_value;
    assign(*s.target, item, a);
    enter(s.loads, a);
    const Flow flow = run_block(s.body, a, out);
    // jinja2 marks the loop as run at the end of its body, which break and continue skip.
    if (flow == Flow::kBreak) break;
    if (flow == Flow::kNext) any = true;
    line_ = s.line;
  }
  if (any || s.else_body.empty()) return Flow::kNext;
  enter(s.else_loads, a);
  return run_block(s.else_body, a, out);
}

Interpreter::Flow Interpreter::run_for(const Statement& s, Activation* a, std::string& out) {
  const Value iterable = eval(*s.expr, a);
  if (!s.recursive) return loop_over({s, a, 0}, iterable, a, out);
  emit(out, recurse(s, a, iterable, 0));
  return Flow::kNext;
}

Value Interpreter::recurse(const Statement& s, Activation* closure, const Value& iterable, int64_t depth) {
  const Depth guard(*this);
  std::unique_ptr<Activation> owner;
  Activation* const a = new_activation(closure, s.n_slots, s.makes_closures || s.test != nullptr, owner);
  std::string out;
  loop_over({s, closure, depth}, iterable, a, out);
  return new_string(std::move(out));
}

Value Interpreter::call_loop(Loop& loop, const Value& iterable) {
  if (loop.recurse == nullptr) fail("The loop must have the 'recursive' marker to be called recursively.");
  return recurse(*loop.recurse, loop.closure, iterable, loop.depth0 + 1);
}

}  // namespace vlcache::jinja
