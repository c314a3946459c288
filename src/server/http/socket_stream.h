// SocketStream: the byte stream of a connection, plain or through TLS. A stream as Asio and Beast take them, with
// completion handlers only.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/write.hpp>
#include <memory>
#include <utility>

namespace vlcache {

class SocketStream {
 public:
  using Socket = boost::asio::ip::tcp::socket;
  using executor_type = Socket::executor_type;

  // tls: null for plain; must outlive the stream.
  SocketStream(Socket socket, boost::asio::ssl::context* tls) : socket_(std::move(socket)) {
    if (tls != nullptr) tls_ = std::make_unique<Tls>(socket_, *tls);
  }

  executor_type get_executor() { return socket_.get_executor(); }
  Socket& socket() { return socket_; }
  bool has_tls() const { return tls_ != nullptr; }

  template <typename Buffers, typename Handler>
  void async_read_some(const Buffers& buffers, Handler&& handler) {
    tls_ != nullptr ? tls_->async_read_some(buffers, std::forward<Handler>(handler))
                    : socket_.async_read_some(buffers, std::forward<Handler>(handler));
  }
  template <typename Buffers, typename Handler>
  void async_write_some(const Buffers& buffers, Handler&& handler) {
    tls_ != nullptr ? tls_->async_write_some(buffers, std::forward<Handler>(handler))
                    : socket_.async_write_some(buffers, std::forward<Handler>(handler));
  }
  // With TLS only, like the functions below.
  template <typename Handler>
  void async_handshake(boost::asio::ssl::stream_base::handshake_type side, Handler&& handler) {
    tls_->async_handshake(side, std::forward<Handler>(handler));
  }
  SSL* tls_handle() { return tls_->native_handle(); }
  // Sends the end of the TLS stream and waits for the other side's.
  template <typename Handler>
  void async_shutdown(Handler&& handler) {
    tls_->async_shutdown(std::forward<Handler>(handler));
  }
  void close() {
    boost::system::error_code ignored;
    socket_.shutdown(Socket::shutdown_both, ignored);
    socket_.close(ignored);
  }

 private:
  using Tls = boost::asio::ssl::stream<Socket&>;
  Socket socket_;
  std::unique_ptr<Tls> tls_;  // 34 KB of buffers
};

}  // namespace vlcache
