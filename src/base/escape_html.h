// Escapes text for HTML.
#pragma once

#include <string>
#include <string_view>

namespace vlcache {

// & < > " and ' as references, as markupsafe.escape writes them.
std::string escape_html(std::string_view text);

}  // namespace vlcache
