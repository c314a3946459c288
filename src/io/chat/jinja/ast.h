// Defines the tree of a template. The parser builds it, scope.cc gives every name its slot, the interpreter walks it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "io/chat/jinja/runtime.h"

namespace vlcache::jinja {

// Where a variable lives: `hops` activations out from the current one, at `slot`.
struct SlotRef {
  int hops = 0;
  int slot = -1;
};

// Executed on entry to a scope: its variables start as a value from the caller, a copy of an outer variable, or unset.
struct Load {
  enum class Kind { kResolve, kAlias, kUndefined };
  Kind kind;
  int slot;
  std::string name;  // kResolve
  SlotRef source;    // kAlias
};

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Expr {
  enum class Kind : uint8_t {
    kConst,         // value
    kName,          // name, ref
    kNamespaceRef,  // name.text as a target
    kTuple,         // children
    kList,          // children
    kDict,          // children: key, value, key, value...
    kAttribute,     // children[0].text
    kItem,          // children[0][children[1]]
    kSlice,         // only as children[1] of kItem: start, stop, step (null where absent)
    kCall,          // children[0](children[1...], named, *star, **double_star)
    kFilter,        // children[0]|text(...); children[0] null: the body of a filter block
    kTest,          // children[0] is text(...)
    kNegative,
    kPositive,
    kNot,
    kBinary,  // binary
    kConcat,  // children joined by ~
    kAnd,
    kOr,
    kCompare,      // children[0] compares[0] children[1] compares[1] ...
    kConditional,  // children: test, then, else (else may be null)
  };
  enum class Context : uint8_t { kLoad, kStore, kParam };

  Kind kind;
  Context context = Context::kLoad;
  BinaryOp binary = BinaryOp::kAdd;
  int line = 0;
  int depth = 1;  // of the tree below: bounded by the parser
  std::string name;
  std::string text;
  Value value;
  std::vector<ExprPtr> children;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr star, double_star;
  std::vector<CompareOp> compares;
  SlotRef ref;
};

struct Statement;
using StatementPtr = std::unique_ptr<Statement>;
using Block = std::vector<StatementPtr>;

// size: one node type for all statements; each uses a few of the members.
struct Statement {
  enum class Kind : uint8_t {
    kOutput,       // exprs
    kAssign,       // target = expr
    kAssignBlock,  // target = body, filtered by expr if not null
    kFor,          // for target in expr if test: body else: else_body
    kIf,           // if expr: body; elifs (kIf each); else_body
    kMacro,        // name(exprs = parameters, defaults of the last ones): body
    kCallBlock,    // call(parameters) expr: body. expr null: {% generation %}
    kFilterBlock,  // expr applied to body
    kWith,         // exprs (targets) = defaults (values): body
    kBreak,
    kContinue,
  };

  Kind kind;
  int line = 0;
  std::string name;
  ExprPtr target, expr, test, test_target;
  std::vector<ExprPtr> exprs, defaults;
  Block body, else_body, elifs;
  bool recursive = false;

  // Set by scope.cc.
  bool extended = false;  // a for whose body uses `loop`
  int loop_slot = -1;
  std::vector<Load> loads;  // on entering the body
  std::vector<Load> else_loads;
  std::vector<Load> test_loads;
  int n_slots = 0;              // of the function that a macro, call block or recursive for is
  int n_test_slots = 0;         // of the function that filters a for's items
  bool makes_closures = false;  // something inside may outlive the call
  // kMacro, kCallBlock: slots of the parameters, then of caller, kwargs and varargs where the body uses them (-1: not
  // used).
  std::vector<int> parameter_slots;
  int caller_slot = -1, kwargs_slot = -1, varargs_slot = -1;
  bool explicit_caller = false;
};

struct TemplateTree {
  Block body;
  std::vector<Load> loads;
  int n_slots = 0;
};

// Throws SyntaxError: what jinja2 would refuse to compile, or a statement that is not supported (by name).
TemplateTree parse_template(std::string_view source);
// Gives names their slots and checks filters, tests and loop control; part of parse_template.
void resolve_scopes(TemplateTree& tree);

}  // namespace vlcache::jinja
