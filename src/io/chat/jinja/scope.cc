// Gives every name of a template its variable, by the rules of jinja2's idtracking: which scope owns a name, and
// whether it starts as a render argument, as a copy of an outer variable, or unset, is decided before the template
// runs.
#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "io/chat/jinja/ast.h"
#include "io/chat/jinja/lexer.h"

namespace vlcache::jinja {
namespace {

// What becomes one activation at run time: the template, a macro, a call block, a recursive for, a for's test.
struct FunctionScope {
  FunctionScope* parent = nullptr;
  int depth = 0;
  std::map<std::string, int> slots;

  int slot(const std::string& variable) {
    return slots.emplace(variable, static_cast<int>(slots.size())).first->second;
  }
};

struct LoadRule {
  enum class Kind { kParameter, kResolve, kAlias, kUndefined };
  Kind kind;
  std::string name;   // kResolve
  std::string alias;  // kAlias: a variable of an outer scope
};

// One scope of names. A variable is named by its level too, so that inner and outer ones of one name differ.
class Scope {
 public:
  Scope(const Scope* parent, FunctionScope* function)
      : parent_(parent), function_(function), level_(parent ? parent->level_ + 1 : 0) {}

  FunctionScope* function() const { return function_; }

  void load(const std::string& name) {
    if (!find(name)) define(name, {LoadRule::Kind::kResolve, name, ""});
  }

  void store(const std::string& name) {
    stores_.insert(name);
    if (refs_.count(name) != 0) return;
    const auto outer = parent_ != nullptr ? parent_->find(name) : std::nullopt;
    define(name, outer ? LoadRule{LoadRule::Kind::kAlias, "", *outer} : LoadRule{LoadRule::Kind::kUndefined, "", ""});
  }

  void declare_parameter(const std::string& name) {
    stores_.insert(name);
    define(name, {LoadRule::Kind::kParameter, "", ""});
  }

  // After an `if`: a name that only some branches set starts as what it was outside.
  void merge_branches(const std::vector<Scope>& branches) {
    std::set<std::string> stored;
    for (const Scope& branch : branches) stored.insert(branch.stores_.begin(), branch.stores_.end());
    for (const std::string& name : stores_) stored.erase(name);
    for (const Scope& branch : branches) {
      for (const auto& [name, variable] : branch.refs_) refs_[name] = variable;
      for (const auto& [variable, rule] : branch.loads_) loads_[variable] = rule;
      stores_.insert(branch.stores_.begin(), branch.stores_.end());
    }
    for (const std::string& name : stored) {
      const auto outer = parent_ != nullptr ? parent_->find(name) : std::nullopt;
      loads_[*find(name)] =
          outer ? LoadRule{LoadRule::Kind::kAlias, "", *outer} : LoadRule{LoadRule::Kind::kResolve, name, ""};
    }
  }

  std::optional<std::string> find(const std::string& name) const {
    for (const Scope* s = this; s != nullptr; s = s->parent_) {
      const auto it = s->refs_.find(name);
      if (it != s->refs_.end()) return it->second;
    }
    return std::nullopt;
  }

  SlotRef slot_of(const std::string& variable) const {
    for (const Scope* s = this; s != nullptr; s = s->parent_) {
      if (s->loads_.count(variable) != 0) return {function_->depth - s->function_->depth, s->function_->slot(variable)};
    }
    CHECK(false);
    return {};
  }

  SlotRef ref(const std::string& name) const { return slot_of(*find(name)); }

  std::vector<Load> entry_loads() const {
    std::vector<Load> loads;
    for (const auto& [variable, rule] : loads_) {
      const int slot = function_->slot(variable);
      switch (rule.kind) {
        case LoadRule::Kind::kParameter:
          break;
        case LoadRule::Kind::kResolve:
          loads.push_back({Load::Kind::kResolve, slot, rule.name, {}});
          break;
        case LoadRule::Kind::kAlias:
          loads.push_back({Load::Kind::kAlias, slot, "", slot_of(rule.alias)});
          break;
        case LoadRule::Kind::kUndefined:
          loads.push_back({Load::Kind::kUndefined, slot, "", {}});
          break;
      }
    }
    return loads;
  }

 private:
  void define(const std::string& name, LoadRule rule) {
    const std::string variable = std::to_string(level_) + "_" + name;
    refs_[name] = variable;
    loads_[variable] = std::move(rule);
  }

  const Scope* parent_;
  FunctionScope* function_;
  int level_;
  std::map<std::string, std::string> refs_;  // name -> variable
  std::map<std::string, LoadRule> loads_;    // by variable
  std::set<std::string> stores_;
};

template <class Visit>
void for_each_child(const Expr& e, Visit&& visit) {
  for (const ExprPtr& child : e.children) {
    if (child) visit(*child);
  }
  for (const auto& [name, value] : e.named) visit(*value);
  if (e.star) visit(*e.star);
  if (e.double_star) visit(*e.double_star);
}

// First pass over one scope: which names it loads and stores. It stops at statements that open a scope of their own.
class NameCollector {
 public:
  explicit NameCollector(Scope& scope) : scope_(&scope) {}

  void block(const Block& block) {
    for (const StatementPtr& s : block) statement(*s);
  }

  void expr(const Expr& e, bool as_parameter = false) {
    if (e.kind == Expr::Kind::kName) {
      if (as_parameter || e.context == Expr::Context::kParam) {
        scope_->declare_parameter(e.name);
      } else if (e.context == Expr::Context::kStore) {
        scope_->store(e.name);
      } else {
        scope_->load(e.name);
      }
    } else if (e.kind == Expr::Kind::kNamespaceRef) {
      scope_->load(e.name);
    }
    for_each_child(e, [&](const Expr& child) { expr(child, as_parameter); });
  }

  void statement(const Statement& s) {
    switch (s.kind) {
      case Statement::Kind::kOutput:
        for (const ExprPtr& e : s.exprs) expr(*e);
        break;
      case Statement::Kind::kAssign:
        expr(*s.expr);
        expr(*s.target);
        break;
      case Statement::Kind::kAssignBlock:
        expr(*s.target);
        break;
      case Statement::Kind::kMacro:
        scope_->store(s.name);
        break;
      case Statement::Kind::kFor:
      case Statement::Kind::kCallBlock:
      case Statement::Kind::kFilterBlock:
        if (s.expr) expr(*s.expr);
        break;
      case Statement::Kind::kWith:
        for (const ExprPtr& value : s.defaults) expr(*value);
        break;
      case Statement::Kind::kIf:
        branches(s);
        break;
      case Statement::Kind::kBreak:
      case Statement::Kind::kContinue:
        break;
    }
  }

 private:
  void branches(const Statement& s) {
    expr(*s.expr);
    Scope* const whole = scope_;
    std::vector<Scope> copies(3, *whole);
    scope_ = &copies[0];
    block(s.body);
    scope_ = &copies[1];
    for (const StatementPtr& elif : s.elifs) statement(*elif);
    scope_ = &copies[2];
    block(s.else_body);
    scope_ = whole;
    whole->merge_branches(copies);
  }

  Scope* scope_;
};

// Which of some special names a body uses before it sets them (loop; caller, kwargs, varargs).
class UndeclaredNames {
 public:
  explicit UndeclaredNames(std::set<std::string> names) : names_(std::move(names)) {}
  bool uses(const std::string& name) const { return used_.count(name) != 0; }

  void block(const Block& block) {
    for (const StatementPtr& s : block) statement(*s);
  }

 private:
  void expr(const Expr& e) {
    if (e.kind == Expr::Kind::kName) {
      if (e.context == Expr::Context::kLoad && names_.count(e.name) != 0) {
        used_.insert(e.name);
      } else {
        names_.erase(e.name);
      }
    }
    for_each_child(e, [&](const Expr& child) { expr(child); });
  }

  void exprs(const std::vector<ExprPtr>& list) {
    for (const ExprPtr& e : list) expr(*e);
  }

  // In the order of the fields of jinja2's nodes, since a store hides the loads after it.
  void statement(const Statement& s) {
    const auto one = [&](const ExprPtr& e) {
      if (e) expr(*e);
    };
    switch (s.kind) {
      case Statement::Kind::kFor:
        one(s.target);
        one(s.expr);
        block(s.body);
        block(s.else_body);
        one(s.test);
        break;
      case Statement::Kind::kFilterBlock:
        block(s.body);
        one(s.expr);
        break;
      case Statement::Kind::kIf:
        one(s.expr);
        block(s.body);
        block(s.elifs);
        block(s.else_body);
        break;
      default:
        if (s.kind != Statement::Kind::kMacro) one(s.target);
        one(s.expr);
        exprs(s.exprs);
        exprs(s.defaults);
        block(s.body);
    }
  }

  std::set<std::string> names_;
  std::set<std::string> used_;
};

// Second pass: writes slots into the tree, scope by scope.
class Resolver {
 public:
  void run(TemplateTree& tree) {
    FunctionScope function;
    Scope scope(nullptr, &function);
    NameCollector(scope).block(tree.body);
    block(tree.body, Frame{&scope, false, false, nullptr});
    tree.loads = scope.entry_loads();
    tree.n_slots = static_cast<int>(function.slots.size());
  }

 private:
  struct Frame {
    Scope* scope;
    bool soft;     // inside an if: an unknown filter is an error only when it is reached
    bool in_loop;  // break and continue are allowed
    bool* makes_closures;

    Frame inner(Scope* s) const { return {s, false, in_loop, makes_closures}; }
    Frame softened() const { return {scope, true, in_loop, makes_closures}; }
  };

  void block(Block& block, const Frame& frame) {
    for (const StatementPtr& s : block) statement(*s, frame);
  }

  void expr(Expr& e, const Frame& frame) {
    if (e.kind == Expr::Kind::kName || e.kind == Expr::Kind::kNamespaceRef) {
      // The first pass does not look into the filters of a set block (jinja2 fails there with an assertion).
      if (!frame.scope->find(e.name)) {
        throw SyntaxError("the name '" + e.name + "' in a set block's filter is used nowhere else", e.line);
      }
      e.ref = frame.scope->ref(e.name);
    }
    if (e.kind == Expr::Kind::kFilter && !frame.soft && find_filter(e.text) == nullptr) {
      throw SyntaxError("No filter named '" + e.text + "'.", e.line);
    }
    if (e.kind == Expr::Kind::kTest && !frame.soft && find_test(e.text) == nullptr) {
      throw SyntaxError("No test named '" + e.text + "'.", e.line);
    }
    const Frame used = e.kind == Expr::Kind::kConditional ? frame.softened() : frame;
    for (const ExprPtr& child : e.children) {
      if (child) expr(*child, used);
    }
    for (const auto& [name, value] : e.named) expr(*value, used);
    if (e.star) expr(*e.star, used);
    if (e.double_star) expr(*e.double_star, used);
  }

  void exprs(const std::vector<ExprPtr>& list, const Frame& frame) {
    for (const ExprPtr& e : list) expr(*e, frame);
  }

  void statement(Statement& s, const Frame& frame) {
    switch (s.kind) {
      case Statement::Kind::kOutput:
        exprs(s.exprs, frame);
        break;
      case Statement::Kind::kAssign:
        expr(*s.expr, frame);
        expr(*s.target, frame);
        break;
      case Statement::Kind::kIf: {
        const Frame soft = frame.softened();
        expr(*s.expr, soft);
        block(s.body, soft);
        block(s.elifs, soft);
        block(s.else_body, soft);
        break;
      }
      case Statement::Kind::kFor:
        for_statement(s, frame);
        break;
      case Statement::Kind::kMacro:
        macro_body(s, frame);
        expr(*s.target, frame);
        break;
      case Statement::Kind::kCallBlock:
        macro_body(s, frame);
        if (s.expr) expr(*s.expr, frame);
        break;
      case Statement::Kind::kAssignBlock:
      case Statement::Kind::kFilterBlock:
        buffered(s, frame);
        break;
      case Statement::Kind::kWith:
        with_statement(s, frame);
        break;
      case Statement::Kind::kBreak:
      case Statement::Kind::kContinue:
        if (!frame.in_loop) {
          throw SyntaxError(
              s.kind == Statement::Kind::kBreak ? "'break' outside loop" : "'continue' not properly in loop", s.line);
        }
    }
  }

  void buffered(Statement& s, const Frame& frame) {
    Scope scope(frame.scope, frame.scope->function());
    NameCollector names(scope);
    names.block(s.body);
    if (s.kind == Statement::Kind::kFilterBlock) names.expr(*s.expr);
    const Frame inner = frame.inner(&scope);
    block(s.body, inner);
    if (s.expr) expr(*s.expr, inner);
    if (s.target) expr(*s.target, frame);
    s.loads = scope.entry_loads();
  }

  void with_statement(Statement& s, const Frame& frame) {
    Scope scope(frame.scope, frame.scope->function());
    NameCollector names(scope);
    for (const ExprPtr& target : s.exprs) names.expr(*target);
    names.block(s.body);
    exprs(s.defaults, frame);
    const Frame inner = frame.inner(&scope);
    exprs(s.exprs, inner);
    block(s.body, inner);
    s.loads = scope.entry_loads();
  }

  static void check_no_loop_target(const Expr& e) {
    if (e.kind == Expr::Kind::kName && e.context == Expr::Context::kStore && e.name == "loop") {
      throw SyntaxError("Can't assign to special loop variable in for-loop target", e.line);
    }
    for_each_child(e, [](const Expr& child) { check_no_loop_target(child); });
  }

  static void check_no_loop_target(const Statement& s) {
    if (s.target) check_no_loop_target(*s.target);
    for (const Block* b : {&s.body, &s.else_body, &s.elifs}) {
      for (const StatementPtr& inner : *b) check_no_loop_target(*inner);
    }
  }

  void for_statement(Statement& s, const Frame& frame) {
    check_no_loop_target(s);
    UndeclaredNames used({"loop"});
    used.block(s.body);
    s.extended = s.recursive || used.uses("loop");
    FunctionScope own{frame.scope->function(), frame.scope->function()->depth + 1, {}};
    FunctionScope* const function = s.recursive ? &own : frame.scope->function();
    if ((s.recursive || s.test) && frame.makes_closures != nullptr) *frame.makes_closures = true;

    Scope body(frame.scope, function);
    if (s.extended) body.declare_parameter("loop");
    NameCollector names(body);
    names.expr(*s.target, true);
    names.block(s.body);
    Scope other(frame.scope, function);
    NameCollector(other).block(s.else_body);

    expr(*s.expr, frame);
    if (s.test) for_test(s, frame);
    bool closures = false;
    Frame inner = frame.inner(&body);
    inner.in_loop = true;
    if (s.recursive) inner.makes_closures = &closures;
    expr(*s.target, inner);
    block(s.body, inner);
    Frame otherwise = inner;
    otherwise.scope = &other;
    otherwise.in_loop = !s.recursive && frame.in_loop;
    block(s.else_body, otherwise);
    if (s.extended) s.loop_slot = body.ref("loop").slot;
    s.loads = body.entry_loads();
    s.else_loads = other.entry_loads();
    if (s.recursive) {
      s.n_slots = static_cast<int>(own.slots.size());
      s.makes_closures = closures;
    }
  }

  void for_test(Statement& s, const Frame& frame) {
    FunctionScope own{frame.scope->function(), frame.scope->function()->depth + 1, {}};
    Scope scope(frame.scope, &own);
    NameCollector names(scope);
    names.expr(*s.test_target, true);
    names.expr(*s.test);
    const Frame inner = frame.inner(&scope);
    expr(*s.test_target, inner);
    expr(*s.test, inner);
    s.test_loads = scope.entry_loads();
    s.n_test_slots = static_cast<int>(own.slots.size());
  }

  void macro_body(Statement& s, const Frame& frame) {
    if (frame.makes_closures != nullptr) *frame.makes_closures = true;
    FunctionScope own{frame.scope->function(), frame.scope->function()->depth + 1, {}};
    Scope scope(frame.scope, &own);
    UndeclaredNames used({"caller", "kwargs", "varargs"});
    used.block(s.body);
    const auto has_parameter = [&](std::string_view name) {
      return std::any_of(s.exprs.begin(), s.exprs.end(), [&](const ExprPtr& p) { return p->name == name; });
    };
    s.explicit_caller = has_parameter("caller");
    if (used.uses("caller") && s.explicit_caller) {
      const size_t first_default = s.exprs.size() - s.defaults.size();
      for (size_t i = 0; i < first_default; ++i) {
        if (s.exprs[i]->name == "caller") {
          throw SyntaxError(
              "When defining macros or call blocks the special \"caller\" argument must be omitted or be given a "
              "default.",
              s.line);
        }
      }
    }
    NameCollector names(scope);
    for (const ExprPtr& parameter : s.exprs) names.expr(*parameter);
    const auto special = [&](const std::string& name) {
      if (!used.uses(name) || has_parameter(name)) return -1;
      scope.declare_parameter(name);
      return scope.ref(name).slot;
    };
    s.caller_slot = special("caller");
    s.kwargs_slot = special("kwargs");
    s.varargs_slot = special("varargs");
    for (const ExprPtr& value : s.defaults) names.expr(*value);
    names.block(s.body);

    bool closures = false;
    const Frame inner{&scope, false, false, &closures};
    exprs(s.exprs, inner);
    for (const ExprPtr& parameter : s.exprs) s.parameter_slots.push_back(parameter->ref.slot);
    exprs(s.defaults, inner);
    block(s.body, inner);
    s.loads = scope.entry_loads();
    s.n_slots = static_cast<int>(own.slots.size());
    s.makes_closures = closures;
  }
};

}  // namespace

void resolve_scopes(TemplateTree& tree) { Resolver().run(tree); }

}  // namespace vlcache::jinja
