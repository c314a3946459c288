// The flags that `--help` of a long command shows; `--help-all` shows all of them.
#pragma once

#include <span>
#include <string_view>

namespace vlcache {

// A flag with a shorter text than in --help-all, without its choices, range and environment variable.
struct FirstFlag {
  std::string_view group, name, help;
};

// About twenty flags of a command ("run"), in the order in which --help shows them; empty: --help shows all flags.
std::span<const FirstFlag> first_flags(std::string_view command);

}  // namespace vlcache
