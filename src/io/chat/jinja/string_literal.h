// Resolves the escapes of a string literal in a template.
#pragma once

#include <string>
#include <string_view>

namespace vlcache::jinja {

// The text between the quotes, with Python's unicode-escape sequences resolved. Throws RenderError for a broken escape.
std::string unescape_literal(std::string_view body);

}  // namespace vlcache::jinja
