// poll waits, and a signal or a timeout ends it; then the available bytes are read.
#include "cli/terminal/line_source.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/config_json.h"
#include "base/error.h"

namespace vlcache {
namespace {
constexpr size_t kChunkBytes = 1 << 16;
constexpr int kPollMs = 100;  // longest delay of a signal that arrives just before poll
}  // namespace

LineSource::LineSource(const std::string& path, Stopped stopped) : fd_(STDIN_FILENO), stopped_(std::move(stopped)) {
  if (path == "-") return;
  // Not blocking: poll waits for the writer of a FIFO, where the user can stop it.
  fd_ = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  const int problem = errno;
  owned_ = fd_ >= 0;
  std::error_code ec;
  if (!owned_ || std::filesystem::is_directory(path, ec)) {
    if (owned_) ::close(fd_);
    throw Error(ErrorCode::kNotFound,
                path + ": cannot be opened: " + (owned_ ? "it is a directory" : std::strerror(problem)));
  }
}

LineSource::~LineSource() {
  if (owned_) ::close(fd_);
}

bool LineSource::take(std::string& line) {
  size_t end = buffer_.find('\n', scanned_);
  scanned_ = buffer_.size();
  const bool last = end == std::string::npos && at_end_ && begin_ < buffer_.size();
  if (last) end = buffer_.size();
  if (end == std::string::npos) return false;
  line.assign(buffer_, begin_, end - begin_);
  if (std::exchange(at_first_, false)) line.erase(0, line.size() - without_bom(line).size());
  begin_ = scanned_ = last ? end : end + 1;
  return true;
}

// Returns false if no bytes came and waiting is over.
bool LineSource::read_more(bool wait) {
  buffer_.erase(0, begin_);
  scanned_ -= begin_;
  begin_ = 0;
  while (!stopped_ || !stopped_()) {
    pollfd poll{fd_, POLLIN, 0};
    const int ready = ::poll(&poll, 1, wait ? kPollMs : 0);
    if (ready == 0 && !wait) return false;
    if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
    const size_t size = buffer_.size();
    buffer_.resize(size + kChunkBytes);
    const ssize_t n = ready < 0 ? -1 : ::read(fd_, buffer_.data() + size, kChunkBytes);
    buffer_.resize(size + (n > 0 ? static_cast<size_t>(n) : 0));
    at_end_ = n == 0;
    if (n >= 0) return true;
    if (errno == EINTR) continue;
    if (errno == EAGAIN && !wait) return false;
    if (errno != EAGAIN) throw Error(ErrorCode::kIo, std::string("reading lines failed: ") + std::strerror(errno));
  }
  return false;
}

bool LineSource::next(std::string& line, bool wait) {
  while (!take(line)) {
    if (at_end_ || !read_more(wait)) return false;
  }
  return true;
}

}  // namespace vlcache
