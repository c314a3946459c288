#include "server/operations/access_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/format.h"
#include "base/os/private_folder.h"

namespace vlcache {

AccessLog::AccessLog(std::filesystem::path file) : file_(std::move(file)), to_(open()) {}

AccessLog::~AccessLog() {
  if (to_ != stdout) std::fclose(to_);
}

std::FILE* AccessLog::open() const {
  if (file_ == "-") return stdout;
  make_private_folders(file_.parent_path());  // open() says why there is none
  const int fd = ::open(file_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0640);
  std::FILE* opened = fd < 0 ? nullptr : fdopen(fd, "a");
  if (opened == nullptr) {
    const std::string why = std::strerror(errno);
    if (fd >= 0) close(fd);
    throw Error(ErrorCode::kIo,
                "--access-log: " + file_.string() + ": cannot be written: " + why + "; name another file");
  }
  return opened;
}

void AccessLog::reopen() {
  std::FILE* opened = open();
  const std::lock_guard lock(mutex_);
  if (to_ != stdout) std::fclose(to_);
  to_ = opened;
}

void AccessLog::write(const ExchangeReport& report) {
  const std::string line = log_line(report, std::chrono::system_clock::now()) + "\n";
  const std::lock_guard lock(mutex_);
  std::fwrite(line.data(), 1, line.size(), to_);
  std::fflush(to_);
}

std::string terminal_line(const ExchangeReport& report) {
  std::string line = report.method + " " + report.path + " " + std::to_string(report.status);
  if (report.generates) {
    line += format(" found %ld of %ld prompt tokens, %ld generated,", static_cast<long>(report.n_cached),
                   static_cast<long>(report.n_prompt), static_cast<long>(report.n_generated));
  }
  line += format(" %.0f ms", report.ms);
  if (!report.error.empty()) line += ": " + report.error;
  for (const std::string& note : report.notes) line += "; " + note;
  if (report.gone) line += " (the client left)";
  std::ranges::replace_if(
      line, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }, ' ');
  return line;
}

std::string log_line(const ExchangeReport& report, std::chrono::system_clock::time_point time) {
  using OrderedJson = nlohmann::ordered_json;
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count();
  const std::time_t seconds = ms / 1000;
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
  OrderedJson line{{"time", text + format(".%03dZ", static_cast<int>(ms % 1000))}, {"id", report.id}};
  if (!report.peer.empty()) line["peer"] = report.peer;
  if (!report.tenant.empty()) line["tenant"] = report.tenant;
  line["method"] = report.method;
  line["path"] = report.path;
  line["status"] = report.status;
  line["ms"] = std::round(report.ms * 1000) / 1000;
  if (report.generates) {
    line["prompt_tokens"] = report.n_prompt;
    line["cached_tokens"] = report.n_cached;
    line["completion_tokens"] = report.n_generated;
  }
  if (!report.error.empty()) line["error"] = report.error;
  if (!report.notes.empty()) line["notes"] = report.notes;
  if (report.gone) line["gone"] = true;
  if (!report.bug.empty()) line["bug"] = report.bug;
  return line.dump(-1, ' ', /*ensure_ascii=*/true, OrderedJson::error_handler_t::replace);
}

}  // namespace vlcache
