// TLS of connections to Redis: the certificates of both sides, and one connection's encryption.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace vlcache {

struct RedisTlsFiles {
  std::string ca;         // certificates that sign the server's; empty: the system's trusted ones
  std::string cert, key;  // this client's own; empty: none
  bool any() const { return !ca.empty() || !cert.empty() || !key.empty(); }
};

// One attempt to move bytes through a socket that does not block.
struct Transfer {
  int64_t n = 0;        // bytes moved; 0 with everything below empty: the other side has closed the connection
  short wait_for = 0;   // POLLIN or POLLOUT: try again then
  std::string problem;  // not empty: the connection cannot be used
};

class RedisTls {
 public:
  // Reads the files. Throws Error(kInput), which names the flag.
  explicit RedisTls(const RedisTlsFiles& files);
  ~RedisTls();
  RedisTls(const RedisTls&) = delete;
  RedisTls& operator=(const RedisTls&) = delete;

 private:
  friend class RedisTlsStream;
  void trust(const RedisTlsFiles& files);
  void identify(const RedisTlsFiles& files);
  struct Context;
  std::unique_ptr<Context> context_;
};

// Nothing of the caller's is sent before the server's certificate is verified: its signatures, its time, and that it
// is for `host`, a name or an address.
class RedisTlsStream {
 public:
  // fd: connected; stays the caller's.
  RedisTlsStream(const RedisTls& tls, int fd, const std::string& host);
  ~RedisTlsStream();
  RedisTlsStream(const RedisTlsStream&) = delete;
  RedisTlsStream& operator=(const RedisTlsStream&) = delete;

  // Each returns at once. n > 0 of a handshake: it is complete.
  Transfer handshake();
  Transfer write(std::span<const char> bytes);
  Transfer read(std::span<char> bytes);
  // Whether there are bytes for the caller to read, or the end of the connection. Reads what TLS sends for itself.
  bool has_input();

 private:
  Transfer outcome(int result) const;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace vlcache
