// FileRoutes: the routes below /v1/files, where clients upload files that requests name by their ids, as OpenAI's API
// has them, and Anthropic's on the same paths.
#pragma once

#include <string>
#include <string_view>

#include "api/messages/uploads.h"
#include "server/http/http_server.h"

namespace vlcache {

// Whether a path is one of these routes'.
bool is_file_route(std::string_view path);
// Whether a request for them expects replies and errors of Anthropic's shape: its clients send headers of their own.
bool asks_anthropic_files(const HttpRequest& request);

// Any thread. `owner`: of the files that the caller sees. All but the constructor throw Error, whose message begins
// with a field of the form or the query.
class FileRoutes {
 public:
  // It must outlive this object.
  explicit FileRoutes(Uploads& uploads) : uploads_(uploads) {}

  // As the request's method and path choose.
  HttpResponse answer(const HttpRequest& request, const std::string& owner);

  // The form has `file`, `purpose` and a time of expiry.
  HttpResponse add(const HttpRequest& request, const std::string& owner);
  HttpResponse list(const HttpRequest& request, const std::string& owner);
  HttpResponse read(const HttpRequest& request, const std::string& owner);  // the file's description, or its bytes
  HttpResponse remove(const HttpRequest& request, const std::string& owner);

 private:
  void check_enabled() const;

  Uploads& uploads_;
};

// The name of an uploaded file as replies have it: without folders and control characters, valid UTF-8 of at most 255
// bytes; "unnamed.png", after the media type, where nothing is left of it.
std::string upload_name(std::string_view given, std::string_view type);

}  // namespace vlcache
