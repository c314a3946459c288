// Tools for a chat template that has no place for them: a text for the system message.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace vlcache {

struct GenericTools {
  std::string text;  // what the model is told; empty: not one tool fits
  std::vector<std::string> notes;
};

// Says what the tools are and how calls are written (CallSyntax::kPlain), in the most detailed form of at most
// `max_tokens`: schemas, signatures with descriptions, signatures. Tools beyond that are left out from the last on,
// which the notes say.
//   tools: in OpenAI's shape.  n_tokens: of a text.
GenericTools generic_tools(const nlohmann::ordered_json& tools, int64_t max_tokens,
                           const std::function<int64_t(const std::string& text)>& n_tokens);

}  // namespace vlcache
