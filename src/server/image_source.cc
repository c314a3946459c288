#include "server/image_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <span>

#include "base/error.h"
#include "base/file.h"
#include "base/file_url.h"

namespace vlcache {
namespace {

namespace fs = std::filesystem;

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

bool is_below(const fs::path& path, const fs::path& folder) {
  return std::ranges::mismatch(folder, path).in1 == folder.end() && path != folder;
}

}  // namespace

ImageSource::ImageSource(const ImageSourceOptions& options) : limits_(options.limits) {
  for (const std::string& prefix : options.url_prefixes) {
    const std::optional<Url> url = parse_url(with_escapes(prefix));
    if (!url || !url->path.ends_with('/') || !url->query.empty()) {
      throw Error(
          ErrorCode::kInput,
          "--image-url-prefix: expected a URL that ends with /, such as https://images.example/public/, found '" +
              prefix + "'");
    }
    url_prefixes_.push_back(*url);
  }
  for (const fs::path& prefix : options.path_prefixes) {
    std::error_code e;
    path_prefixes_.push_back(fs::canonical(prefix, e));
    if (e || !fs::is_directory(path_prefixes_.back(), e)) {
      throw Error(ErrorCode::kInput, "--image-path-prefix: expected a folder, found '" + prefix.string() + "'");
    }
  }
}

bool ImageSource::allows(const Url& url) const {
  return std::ranges::any_of(url_prefixes_, [&](const Url& prefix) {
    return url.tls == prefix.tls && url.host == prefix.host && url.port == prefix.port &&
           url.path.starts_with(prefix.path);
  });
}

std::vector<std::byte> ImageSource::read_file(const std::string& path, const std::string& where) const {
  const auto refuse = [&] {
    throw Error(ErrorCode::kInput,
                where + ": expected a file in a folder that this server reads (--image-path-prefix)");
  };
  const auto allowed = [&](const fs::path& real) {
    return std::ranges::any_of(path_prefixes_, [&](const fs::path& prefix) { return is_below(real, prefix); });
  };
  std::error_code e;
  const fs::path real = fs::canonical(path, e);
  if (e || !allowed(real)) refuse();
  const File file(open(real.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  // The opened file is checked again: a symbolic link may have been put in between.
  const fs::path opened = fs::read_symlink("/proc/self/fd/" + std::to_string(file.fd()), e);
  struct stat about {};
  if (file.fd() < 0 || e || !allowed(opened) || fstat(file.fd(), &about) != 0 || !S_ISREG(about.st_mode)) refuse();
  if (static_cast<uint64_t>(about.st_size) > limits_.max_bytes) {
    throw Error(ErrorCode::kInput, where + ": larger than " + std::to_string(limits_.max_bytes) + " bytes");
  }
  std::vector<std::byte> bytes(static_cast<size_t>(about.st_size));
  size_t n = 0;
  while (n < bytes.size()) {
    const ssize_t got = ::read(file.fd(), bytes.data() + n, bytes.size() - n);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    n += static_cast<size_t>(got);
  }
  bytes.resize(n);
  return bytes;
}

std::vector<std::byte> ImageSource::read(const std::string& url, const std::string& where, FileKind kind,
                                         const std::function<bool()>& cancelled) const {
  if (is_data_uri(url) || (url_prefixes_.empty() && path_prefixes_.empty())) return decode_data_uri(url, where, kind);
  if (const std::optional<std::string> path = path_of_file_url(url)) return read_file(*path, where);
  if (url.starts_with("file:///")) return read_file("", where);  // an escape that names no file
  const std::optional<Url> parsed = parse_url(with_escapes(url));
  if (!parsed || !allows(*parsed)) {
    throw Error(ErrorCode::kInput,
                where + ": expected a data URI, or a URL of a place that this server reads from (--image-url-prefix)");
  }
  return bytes_of(http_get(*parsed, where, limits_, cancelled));
}

}  // namespace vlcache
