// The name is resolved once; the connection goes to an address that was checked.
#include "server/http/http_get.h"

#include <algorithm>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <vector>

#include "base/error.h"
#include "server/http/name_lookup.h"
#include "server/http/socket_stream.h"

namespace vlcache {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::chrono::milliseconds kLook{50};  // between two questions whether the fetch is cancelled

bool is_public_v4(uint32_t a) {
  struct Net {
    uint32_t base;
    int bits;
  };
  // RFC 6890, and addresses that are not unicast.
  constexpr Net kOthers[] = {{0x00000000, 8},  {0x0a000000, 8},  {0x64400000, 10}, {0x7f000000, 8},  {0xa9fe0000, 16},
                             {0xac100000, 12}, {0xc0000000, 24}, {0xc0000200, 24}, {0xc0586300, 24}, {0xc0a80000, 16},
                             {0xc6120000, 15}, {0xc6336400, 24}, {0xcb007100, 24}, {0xe0000000, 3}};
  for (const Net& net : kOthers) {
    if ((a ^ net.base) >> (32 - net.bits) == 0) return false;
  }
  return true;
}

// Global unicast (2000::/3) except documentation, 6to4 and Teredo.
bool is_public_v6(const asio::ip::address_v6::bytes_type& b) {
  if ((b[0] & 0xe0) != 0x20) return false;
  const bool teredo_and_others = b[0] == 0x20 && b[1] == 0x01 && b[2] < 0x02;  // 2001::/23
  const bool documentation = b[0] == 0x20 && b[1] == 0x01 && b[2] == 0x0d && b[3] == 0xb8;
  return !teredo_and_others && !documentation && !(b[0] == 0x20 && b[1] == 0x02) && !(b[0] == 0x3f && b[1] == 0xff);
}

bool is_public(const asio::ip::address& address) {
  return address.is_v4() ? is_public_v4(address.to_v4().to_uint()) : is_public_v6(address.to_v6().to_bytes());
}

class Fetch {
 public:
  Fetch(const Url& url, const HttpGetLimits& limits, const std::function<bool()>& cancelled)
      : url_(url), limits_(limits), cancelled_(cancelled), tls_(tls_of(url)), stream_(tcp::socket(io_), tls_.get()) {
    parser_.body_limit(limits.max_bytes);
    request_.method(http::verb::get);
    request_.target(url.path + url.query);
    request_.version(11);
    request_.set(http::field::host, url.authority());
    request_.set(http::field::accept, "image/*");
    request_.set(http::field::accept_encoding, "identity");
    request_.set(http::field::connection, "close");
    request_.set(http::field::user_agent, "vlcache");
  }

  // Returns why the fetch failed; "": the result is in body().
  std::string run() {
    const auto deadline = std::chrono::steady_clock::now() + limits_.timeout;
    const NameLookup found = look_up(url_.host, limits_.timeout, look_up_now, cancelled_);
    found.problem.empty() ? connect(found) : fail("its host cannot be found: " + found.problem);
    while (!done_ && !io_.stopped() && !is_cancelled() && std::chrono::steady_clock::now() < deadline) {
      io_.run_until(std::min(deadline, std::chrono::steady_clock::now() + kLook));
    }
    if (!done_) fail("not there within " + std::to_string(limits_.timeout.count()) + " ms");
    return why_;
  }
  bool is_cancelled() const { return cancelled_ && cancelled_(); }
  std::string take_body() { return std::move(parser_.get().body()); }

 private:
  static std::unique_ptr<asio::ssl::context> tls_of(const Url& url) {
    if (!url.tls) return nullptr;
    auto tls = std::make_unique<asio::ssl::context>(asio::ssl::context::tls_client);
    error_code ignored;  // without the system's certificates, no server is trusted
    tls->set_default_verify_paths(ignored);
    tls->set_verify_mode(asio::ssl::verify_peer);
    tls->set_verify_callback(asio::ssl::host_name_verification(url.host));
    return tls;
  }

  void fail(const std::string& why) {
    why_ = why;
    done_ = true;
    stream_.close();
  }

  bool may_connect(const asio::ip::address& address) const {
    if (url_.is_address) return true;  // the operator has named it
    return url_.host == "localhost" ? address.is_loopback() : is_public(address);
  }

  void connect(const NameLookup& found) {
    for (const asio::ip::address& address : found.addresses) {
      if (may_connect(address)) endpoints_.emplace_back(address, url_.port);
    }
    if (endpoints_.empty()) return fail("its host has no public address");
    asio::async_connect(stream_.socket(), endpoints_, [this](error_code e, const tcp::endpoint&) {
      if (e) return fail("its host cannot be reached: " + e.message());
      url_.tls ? shake_hands() : write();
    });
  }

  void shake_hands() {
    if (!url_.is_address) SSL_set_tlsext_host_name(stream_.tls_handle(), url_.host.c_str());
    stream_.async_handshake(asio::ssl::stream_base::client,
                            [this](error_code e) { e ? fail("no TLS with its host: " + e.message()) : write(); });
  }

  void write() {
    http::async_write(stream_, request_,
                      [this](error_code e, size_t) { e ? fail("its host does not listen: " + e.message()) : read(); });
  }

  void fail_reading(const std::string& what, error_code e) {
    if (e == http::error::body_limit) return fail("larger than " + std::to_string(limits_.max_bytes) + " bytes");
    fail(what + e.message());
  }

  void read() {
    http::async_read_header(stream_, buffer_, parser_, [this](error_code e, size_t) {
      if (e) return fail_reading("its host gives no answer: ", e);
      const unsigned status = parser_.get().result_int();
      if (status != 200) {
        const bool redirects = status >= 300 && status < 400;
        return fail("its host answers " + std::to_string(status) + (redirects ? "; redirects are not followed" : ""));
      }
      http::async_read(stream_, buffer_, parser_, [this](error_code body_error, size_t) {
        // Some servers end TLS without close_notify; the length shows whether the body is complete.
        if (body_error && !parser_.is_done()) return fail_reading("not complete: ", body_error);
        done_ = true;
        stream_.close();
      });
    });
  }

  Url url_;
  HttpGetLimits limits_;
  const std::function<bool()>& cancelled_;
  asio::io_context io_;
  std::unique_ptr<asio::ssl::context> tls_;
  SocketStream stream_;
  std::vector<tcp::endpoint> endpoints_;
  http::request<http::empty_body> request_;
  http::response_parser<http::string_body> parser_;
  boost::beast::flat_buffer buffer_;
  bool done_ = false;
  std::string why_;
};

}  // namespace

bool is_public_address(std::string_view address) {
  error_code e;
  const asio::ip::address parsed = asio::ip::make_address(std::string(address), e);
  return !e && is_public(parsed);
}

std::string http_get(const Url& url, const std::string& where, const HttpGetLimits& limits,
                     const std::function<bool()>& cancelled) {
  Fetch fetch(url, limits, cancelled);
  if (const std::string why = fetch.run(); !why.empty()) {
    if (fetch.is_cancelled()) throw Error(ErrorCode::kCancelled, where + ": cancelled while it was fetched");
    throw Error(ErrorCode::kInput, where + ": the image of '" + url.authority() + "' cannot be had: " + why);
  }
  return fetch.take_body();
}

}  // namespace vlcache
