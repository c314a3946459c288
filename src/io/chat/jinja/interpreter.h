// Interpreter: walks a template's tree and writes its text.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "io/chat/jinja/ast.h"

namespace vlcache::jinja {

// The variables of one run of a function: the template itself, a macro, a call block, a recursive for.
struct Activation {
  Activation* parent = nullptr;
  std::vector<Value> slots;
};

class Interpreter : public Runtime {
 public:
  Interpreter(const Limits& limits, std::optional<std::tm> now, Variables variables)
      : Runtime(limits, now), variables_(std::move(variables)) {}
  ~Interpreter() override;

  // Throws RenderError; line() then returns where.
  std::string render(const TemplateTree& tree);
  int line() const { return line_; }

  Value call_macro(const Macro& macro, Args& args) override;
  Value call_loop(Loop& loop, const Value& iterable) override;

 private:
  enum class Flow { kNext, kBreak, kContinue };
  // Bounds recursion: macros that call themselves, loops that recurse, deep expressions.
  class Depth {
   public:
    explicit Depth(Interpreter& i) : interpreter_(i) {
      if (i.depth_ >= i.limits_.max_depth)
        fail_limit("maximum recursion depth exceeded (" + std::to_string(i.limits_.max_depth) + ")");
      ++i.depth_;
    }
    ~Depth() { --interpreter_.depth_; }
    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;

   private:
    Interpreter& interpreter_;
  };

  Activation* new_activation(Activation* parent, int n_slots, bool keep, std::unique_ptr<Activation>& owner);
  Value resolve(const std::string& name);
  static Value& slot(Activation* a, const SlotRef& ref);
  void enter(const std::vector<Load>& loads, Activation* a);

  Flow run_block(const Block& block, Activation* a, std::string& out);
  Flow run(const Statement& s, Activation* a, std::string& out);
  Flow run_if(const Statement& s, Activation* a, std::string& out);
  Flow run_for(const Statement& s, Activation* a, std::string& out);
  Flow run_buffered(const Statement& s, Activation* a, std::string& out);
  Flow run_with(const Statement& s, Activation* a, std::string& out);
  void run_call_block(const Statement& s, Activation* a, std::string& out);
  struct LoopRun;
  Flow loop_over(const LoopRun& loop, const Value& iterable, Activation* a, std::string& out);
  Value recurse(const Statement& s, Activation* closure, const Value& iterable, int64_t depth);
  std::function<bool(Value&)> filtered(const Statement& s, const Value& iterable, Activation* closure);
  Value make_macro(const Statement& s, Activation* a);
  void assign(const Expr& target, const Value& value, Activation* a);
  void check_namespaces(const Expr& target, Activation* a);
  void emit(std::string& out, const Value& value);

  Value eval(const Expr& e, Activation* a);
  Value eval_operation(const Expr& e, Activation* a);
  Value eval_name(const Expr& e, Activation* a);
  Value eval_item(const Expr& e, Activation* a);
  Value eval_call(const Expr& e, Activation* a, const Value* caller);
  Value eval_filter(const Expr& e, Activation* a, const Value* input);
  Value eval_dict(const Expr& e, Activation* a);
  bool eval_compare(const Expr& e, Activation* a);
  Value eval_concat(const Expr& e, Activation* a);
  std::vector<Value> eval_all(const std::vector<ExprPtr>& list, size_t from, Activation* a);
  Args eval_args(const Expr& e, Activation* a);

  Variables variables_;
  std::vector<std::unique_ptr<Activation>> kept_;  // activations that macros and loops may still refer to
  int line_ = 1;
  int depth_ = 0;
};

}  // namespace vlcache::jinja
