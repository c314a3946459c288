// ImageSource reads the images and PDFs of requests: from data URIs, and from what the operator has allowed besides.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "api/messages/data_uri.h"
#include "server/http/http_get.h"
#include "server/http/url.h"

namespace vlcache {

struct ImageSourceOptions {
  std::vector<std::string> url_prefixes;             // "https://images.example/public/": URLs that begin so are fetched
  std::vector<std::filesystem::path> path_prefixes;  // file:// URLs below these folders are read
  HttpGetLimits limits;                              // of both
};

class ImageSource {
 public:
  // Throws Error(kInput) for invalid prefixes.
  explicit ImageSource(const ImageSourceOptions& options);

  // Returns the bytes of the image, or the PDF, that `url` names; `where` names the URL in errors, which are
  // Error(kInput) and reveal nothing else about what is not allowed. May take limits.timeout; `cancelled` as http_get
  // has it. Any thread.
  std::vector<std::byte> read(const std::string& url, const std::string& where, FileKind kind = FileKind::kImage,
                              const std::function<bool()>& cancelled = nullptr) const;

 private:
  bool allows(const Url& url) const;
  std::vector<std::byte> read_file(const std::string& path, const std::string& where) const;

  std::vector<Url> url_prefixes_;
  std::vector<std::filesystem::path> path_prefixes_;  // canonical
  HttpGetLimits limits_;
};

}  // namespace vlcache
