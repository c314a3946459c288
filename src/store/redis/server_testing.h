// For tests of the Redis tier: RedisServer, a real server that the test starts and ends, and FakeRedis, whose replies
// the test decides.
#pragma once

#include <arpa/inet.h>
#include <hiredis/hiredis.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <list>
#include <map>
#include <thread>

#include "store/redis/tier.h"
#include "store/store_testing.h"

namespace vlcache {

// A free port of this machine, and a socket that listens on it if `listening` is given.
inline int free_port(int* listening = nullptr) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  if (listening != nullptr) {
    EXPECT_EQ(listen(fd, 64), 0);
    *listening = fd;
  } else {
    close(fd);
  }
  return ntohs(address.sin_port);
}

inline RedisAddress local_address(int port) {
  RedisAddress address;
  address.seeds = {{"127.0.0.1", port}};
  return address;
}

class RedisServer {
 public:
  // Not running() where the binary is missing.
  explicit RedisServer(std::filesystem::path dir, std::vector<std::string> more = {})
      : dir_(std::move(dir)), more_(std::move(more)) {
    start();
  }
  ~RedisServer() { end(SIGKILL); }
  RedisServer(const RedisServer&) = delete;
  RedisServer& operator=(const RedisServer&) = delete;

  // On the same port as before, if there was one; its data is lost.
  void start() {
    std::filesystem::create_directories(dir_);
    for (int attempt = 0; attempt < 5 && pid_ == 0; ++attempt) {
      if (port_ == 0) port_ = free_port();
      const std::string port = std::to_string(port_), dir = dir_.string();
      const pid_t parent = getpid();
      pid_ = fork();
      if (pid_ == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);
        std::vector<const char*> words = {"redis-server", "--port",    port.c_str(), "--bind",
                                          "127.0.0.1",    "--save",    "",           "--dir",
                                          dir.c_str(),    "--logfile", "redis.log",  "--enable-debug-command",
                                          "yes"};
        for (const std::string& word : more_) words.push_back(word.c_str());
        words.push_back(nullptr);
        execvp(words[0], const_cast<char* const*>(words.data()));
        _exit(127);
      }
      if (answers()) return;
      end(SIGKILL);
      port_ = 0;
    }
  }
  void end(int signal) {
    if (pid_ <= 0) return;
    kill(pid_, signal);
    kill(pid_, SIGCONT);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  void stop() const { kill(pid_, SIGSTOP); }
  void go_on() const { kill(pid_, SIGCONT); }
  bool running() const { return pid_ > 0; }
  int port() const { return port_; }

  RedisReply ask(std::initializer_list<std::string_view> words, const std::string& password = "") const {
    const RedisSettings settings{"", password, 0, {.connect_ms = 5000, .reply_ms = 5000}, nullptr};
    std::string problem;
    const auto connection = RedisConnection::open({"127.0.0.1", port_}, settings, kNoDeadline, problem);
    RedisReply reply;
    if (connection == nullptr) {
      ADD_FAILURE() << problem;
      return reply;
    }
    connection->request(words);
    EXPECT_TRUE(connection->receive(reply, kNoDeadline, 64 << 20));
    return reply;
  }

 private:
  bool answers() {
    for (int i = 0; i < 1000; ++i) {
      int status = 0;
      if (waitpid(pid_, &status, WNOHANG) == pid_) {
        pid_ = WEXITSTATUS(status) == 127 ? -1 : 0;
        return pid_ == -1;  // the binary is missing
      }
      const RedisSettings settings;
      std::string problem;
      if (RedisConnection::open({"127.0.0.1", port_}, settings, kNoDeadline, problem)) return true;
      usleep(10'000);
    }
    return false;
  }

  std::filesystem::path dir_;
  std::vector<std::string> more_;  // words after the flags that every server gets
  int port_ = 0;
  pid_t pid_ = 0;  // -1: the binary is missing
};

// Stores values as Redis does, as far as the tier needs; a reply of `hook` replaces its own.
class FakeRedis {
 public:
  using Words = std::vector<std::string>;
  // The bytes to send instead of the right reply; nullopt: the right reply. "close": closes the connection. May block.
  using Hook = std::function<std::optional<std::string>(const Words&)>;
  explicit FakeRedis(Hook hook = nullptr) : hook_(std::move(hook)) {
    port_ = free_port(&listening_);
    thread_ = std::thread([this] { accept_all(); });
  }
  ~FakeRedis() {
    stopping_ = true;
    shutdown(listening_, SHUT_RDWR);
    thread_.join();
    close(listening_);
    for (auto& [fd, thread] : clients_) {
      shutdown(fd, SHUT_RDWR);
      thread.join();
      close(fd);
    }
  }
  FakeRedis(const FakeRedis&) = delete;
  FakeRedis& operator=(const FakeRedis&) = delete;

  int port() const { return port_; }
  bool stopping() const { return stopping_; }
  void set_hook(Hook hook) {
    const std::lock_guard lock(mutex_);
    hook_ = std::move(hook);
  }
  std::map<std::string, std::string> values() const {
    const std::lock_guard lock(mutex_);
    return values_;
  }
  void set(const std::string& name, std::string value) {
    const std::lock_guard lock(mutex_);
    values_[name] = std::move(value);
  }
  // From now on sends a byte every 10 ms.
  void trickle() { trickling_ = true; }
  int n_connections() const { return n_connections_; }
  int64_t n_bytes_sent() const { return n_bytes_sent_; }

  static std::string bulk(std::string_view text) {
    return "$" + std::to_string(text.size()) + "\r\n" + std::string(text) + "\r\n";
  }

 private:
  void accept_all() {
    while (true) {
      const int fd = accept4(listening_, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) return;
      ++n_connections_;
      clients_.emplace_back(fd, std::thread([this, fd] { serve(fd); }));
    }
  }

  void serve(int fd) {
    redisReader* const reader = redisReaderCreate();
    std::vector<char> buffer(1 << 16);
    bool open = true;
    while (open) {
      const ssize_t n = recv(fd, buffer.data(), buffer.size(), 0);
      if (n <= 0) break;
      redisReaderFeed(reader, buffer.data(), static_cast<size_t>(n));
      void* found = nullptr;
      while (open && redisReaderGetReply(reader, &found) == REDIS_OK && found != nullptr) {
        auto* const request = static_cast<redisReply*>(found);
        Words words;
        for (size_t i = 0; i < request->elements; ++i)
          words.emplace_back(request->element[i]->str, request->element[i]->len);
        freeReplyObject(found);
        open = say(fd, answer(words));
      }
    }
    redisReaderFree(reader);
    shutdown(fd, SHUT_RDWR);
  }

  bool say(int fd, std::string_view text) {
    bool open = true;
    if (text.ends_with("close")) {
      text.remove_suffix(5);
      open = false;
    }
    while (!text.empty()) {
      if (trickling_ && !stopping_) usleep(10'000);
      const size_t at_once = trickling_ ? 1 : 1 << 16;
      const ssize_t n = send(fd, text.data(), std::min(at_once, text.size()), MSG_NOSIGNAL);
      if (n <= 0) return false;
      n_bytes_sent_ += n;
      text.remove_prefix(static_cast<size_t>(n));
    }
    return open;
  }

  std::string answer(const Words& words) {
    Hook hook;
    {
      const std::lock_guard lock(mutex_);
      hook = hook_;
    }
    if (hook) {
      if (const auto said = hook(words)) return *said;
    }
    const std::lock_guard lock(mutex_);
    const std::string& what = words[0];
    if (what == "SET") values_[words[1]] = words[2];
    if (what == "SET" || what == "AUTH" || what == "SELECT" || what == "PING") return "+OK\r\n";
    if (what == "GET") return values_.contains(words[1]) ? bulk(values_[words[1]]) : "$-1\r\n";
    if (what == "GETRANGE") {
      const size_t begin = std::stoul(words[2]), end = std::stoul(words[3]) + 1;
      const std::string& value = values_[words[1]];
      return bulk(begin < value.size() ? std::string_view(value).substr(begin, end - begin) : "");
    }
    int64_t n = 0;  // EXISTS, UNLINK, PERSIST, PEXPIRE
    for (size_t i = 1; i < words.size(); ++i) {
      n += static_cast<int64_t>(values_.count(words[i]));
      if (what == "UNLINK") values_.erase(words[i]);
    }
    return ":" + std::to_string(n) + "\r\n";
  }

  mutable std::mutex mutex_;
  Hook hook_;
  std::map<std::string, std::string> values_;
  std::list<std::pair<int, std::thread>> clients_;  // the accepting thread's, then the destructor's
  std::atomic<bool> stopping_ = false, trickling_ = false;
  std::atomic<int> n_connections_ = 0;
  std::atomic<int64_t> n_bytes_sent_ = 0;
  int port_ = 0, listening_ = -1;
  std::thread thread_;
};

}  // namespace vlcache
