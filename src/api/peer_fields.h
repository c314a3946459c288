// PeerField: a field that OpenAI, Anthropic, vLLM, SGLang, llama.cpp, TGI or Ollama documents for the endpoints that we
// have: it is applied, changes no answer, or is an error. One table, which the readers of bodies check and
// server/protocol/peer_fields_test.cc walks over.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>

namespace vlcache {

enum class PeerEndpoint : char { kChat = 'c', kCompletions = 't', kMessages = 'm', kResponses = 'r' };

struct PeerField {
  enum class Use : uint8_t {
    kApplied,   // a reader of bodies has it
    kNoChange,  // accepted; changes no answer, for the reason `says`
    kRefused,   // an error, except for values that ask for nothing
  };
  const char* name;       // "stream_options.include_usage"; of items of a list "messages[].images"; ".*": all others
  const char* peers;      // initials of its documents: O, A, V, S, L, T (TGI), M (Ollama)
  const char* endpoints;  // the letters of PeerEndpoint
  Use use;
  const char* example;  // JSON: a value that is applied, or that asks for something; empty: not tested here
  const char* says = "";
  // JSON: values that ask for nothing, the documented default among them; unless `strict`, also false, 0, "", [] and
  // {}.
  const char* neutral = "[]";
  bool strict = false;
  const char* equals = "";  // a member beside it whose value asks for nothing, either
};

std::span<const PeerField> peer_fields();

// Throws Error(kInput), "NAME: not supported by this server" or its own words, for the first refused field of a
// body that asks for something. Null asks for nothing. Time is linear in the members that the table's objects have.
void check_peer_fields(const nlohmann::ordered_json& body, PeerEndpoint endpoint);

}  // namespace vlcache
