// Variables of the environment that set flags: which are meant for others, which are mistyped, and which one an error
// is about.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace vlcache {

struct Variable {
  std::string name, value;
};

// The variables of this process whose names begin with VLCACHE_ and whose values are not empty.
std::vector<Variable> own_variables();

// Whether Kubernetes has set it, as it does in every pod of a namespace that has a Service of such a name:
// NAME_SERVICE_HOST, NAME_SERVICE_PORT[_PORTNAME], NAME_PORT=tcp://..., NAME_PORT_8080_TCP[_PROTO|_PORT|_ADDR].
bool is_of_kubernetes(const Variable& variable);

// A line for each variable that no flag has, with the nearest that one has; variables of Kubernetes, tests and tools
// are left out. known: the variables of all flags.
std::vector<std::string> unknown_variables(std::span<const Variable> variables, std::span<const std::string> known);

// A flag that a variable has set.
struct FlagVariable {
  std::string flag;  // "--kv-budget"
  Variable variable;
};

// " (set by VLCACHE_KV_BUDGET)" for the flags that a message is about: it names the flag or quotes the value; "": none.
std::string origin_of_error(std::string_view message, std::span<const FlagVariable> set);

}  // namespace vlcache
