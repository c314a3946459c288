// Fuzzes URLs: a URL that is accepted stays the same when it is written and parsed again, and its path does not climb.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "base/fuzz_target.h"
#include "server/http/url.h"

FUZZ_TARGET(url) {
  using namespace vlcache;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::string escaped = with_escapes(text);
  if (with_escapes(escaped) != escaped) std::abort();
  const std::optional<Url> url = parse_url(escaped);
  if (!url) return 0;
  const std::optional<Url> again =
      parse_url((url->tls ? "https://" : "http://") + url->authority() + url->path + url->query);
  if (!again || again->host != url->host || again->port != url->port || again->tls != url->tls) std::abort();
  if (again->path != url->path || again->query != url->query || again->is_address != url->is_address) std::abort();
  if (url->path[0] != '/' || (url->path + "/").find("/../") != std::string::npos) std::abort();
  if ((url->path + url->query + url->host).find_first_of(std::string_view(" \r\n\0#", 5)) != std::string::npos)
    std::abort();
  return 0;
}
