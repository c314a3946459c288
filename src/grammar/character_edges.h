// CharacterEdges: edges of an automaton for sets of characters.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "grammar/automaton.h"
#include "grammar/string_pattern.h"

namespace vlcache {

class CharacterEdges {
 public:
  enum class Form : uint8_t {
    kJson,   // inside a string, as json.dumps writes them
    kPlain,  // UTF-8
  };
  CharacterEdges(Automaton& automaton, Form form) : a_(automaton), form_(form) {}

  // Connects two states by the characters of a set, which is normalized(). States that lead to `to` are shared by all
  // sets.
  void add(const CodePointSet& set, int32_t from, int32_t to);

 private:
  bool is_plain(int32_t c) const { return form_ == Form::kPlain || (c >= 0x20 && c != '"' && c != '\\'); }
  void ascii(const CodePointSet& set, int32_t from, int32_t to);
  int32_t escape(const std::string& characters, int32_t to);
  void utf8(const std::string& low, const std::string& high, int32_t from, int32_t to);

  Automaton& a_;
  Form form_;
  std::map<std::tuple<std::string, std::string, int32_t>, int32_t> tails_;
  std::map<std::pair<std::string, int32_t>, int32_t> escapes_;
};

}  // namespace vlcache
