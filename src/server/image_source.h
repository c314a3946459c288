// Where the pictures of requests come from: data URIs, and what the operator has allowed besides.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "server/http/http_get.h"
#include "server/http/url.h"

namespace vlcache {

struct ImageSourceOptions {
  std::vector<std::string> url_prefixes;  // "https://images.example/public/"; begins of URLs that are fetched
  std::vector<std::filesystem::path> path_prefixes;  // folders below which file:// URLs are read
  HttpGetLimits limits;                              // of either
};

class ImageSource {
 public:
  // Throws Error(kInput) for prefixes that cannot be.
  explicit ImageSource(const ImageSourceOptions& options);

  // The bytes of the picture that `url` names; `where` names the URL in errors, which are Error(kInput), and say no
  // more of what is not allowed than that. May take limits.timeout. Any thread.
  std::vector<std::byte> read(const std::string& url, const std::string& where) const;

 private:
  bool allows(const Url& url) const;
  std::vector<std::byte> read_file(const std::string& path, const std::string& where) const;

  std::vector<Url> url_prefixes_;
  std::vector<std::filesystem::path> path_prefixes_;  // canonical
  HttpGetLimits limits_;
};

}  // namespace vlcache
