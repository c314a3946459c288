#include "store/redis/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <new>

#include "base/error.h"
#include "store/redis/address.h"

namespace vlcache {
namespace {

// OpenSSL's own sockets write with write(), which raises SIGPIPE.
int socket_of(BIO* bio) { return static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio))); }

int write_socket(BIO* bio, const char* from, int n) {
  BIO_clear_retry_flags(bio);
  const ssize_t sent = send(socket_of(bio), from, static_cast<size_t>(n), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_write(bio);
  return static_cast<int>(sent);
}
int read_socket(BIO* bio, char* to, int n) {
  BIO_clear_retry_flags(bio);
  const ssize_t received = recv(socket_of(bio), to, static_cast<size_t>(n), MSG_DONTWAIT);
  if (received < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_read(bio);
  return static_cast<int>(received);
}
long control_socket(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }  // NOLINT: OpenSSL's

BIO_METHOD* socket_method() {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* const made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "vlcache socket");
    if (made == nullptr) throw std::bad_alloc();
    BIO_meth_set_write(made, write_socket);
    BIO_meth_set_read(made, read_socket);
    BIO_meth_set_ctrl(made, control_socket);
    return made;
  }();
  return method;
}

// Of the oldest error of this thread, which is its cause.
std::string openssl_error(const std::string& otherwise) {
  const char* const text = ERR_reason_error_string(ERR_get_error());
  ERR_clear_error();
  return text != nullptr ? text : otherwise;
}

}  // namespace

struct RedisTls::Context {
  Context() : ssl(SSL_CTX_new(TLS_client_method())) {
    if (ssl == nullptr) throw std::bad_alloc();
  }
  ~Context() { SSL_CTX_free(ssl); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  SSL_CTX* ssl;
};

RedisTls::RedisTls(const RedisTlsFiles& files) : context_(std::make_unique<Context>()) {
  ERR_clear_error();
  SSL_CTX* const ssl = context_->ssl;
  SSL_CTX_set_min_proto_version(ssl, TLS1_2_VERSION);
  SSL_CTX_set_verify(ssl, SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_mode(ssl, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_options(ssl, SSL_OP_NO_RENEGOTIATION);
  // A key with a passphrase is an error, not a question on the terminal.
  SSL_CTX_set_default_passwd_cb(ssl, [](char*, int, int, void*) { return -1; });
  trust(files);
  identify(files);
}

RedisTls::~RedisTls() = default;

void RedisTls::trust(const RedisTlsFiles& files) {
  if (files.ca.empty()) {
    SSL_CTX_set_default_verify_paths(context_->ssl);
  } else if (SSL_CTX_load_verify_file(context_->ssl, files.ca.c_str()) != 1) {
    throw Error(ErrorCode::kInput,
                "--cache-redis-ca: " + files.ca + ": cannot be used: " + openssl_error("not a file of certificates"));
  }
}

void RedisTls::identify(const RedisTlsFiles& files) {
  if (files.cert.empty() != files.key.empty()) {
    throw Error(ErrorCode::kInput, "expected both of --cache-redis-cert and --cache-redis-key, found one");
  }
  if (files.cert.empty()) return;
  if (SSL_CTX_use_certificate_chain_file(context_->ssl, files.cert.c_str()) != 1) {
    throw Error(ErrorCode::kInput,
                "--cache-redis-cert: " + files.cert + ": cannot be used: " + openssl_error("not a certificate"));
  }
  if (SSL_CTX_use_PrivateKey_file(context_->ssl, files.key.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(context_->ssl) != 1) {
    throw Error(ErrorCode::kInput,
                "--cache-redis-key: " + files.key + ": cannot be used: " + openssl_error("not the certificate's key"));
  }
}

struct RedisTlsStream::State {
  explicit State(SSL_CTX* context) : ssl(SSL_new(context)) {
    if (ssl == nullptr) throw std::bad_alloc();
  }
  ~State() { SSL_free(ssl); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  SSL* ssl;
};

RedisTlsStream::RedisTlsStream(const RedisTls& tls, int fd, const std::string& host)
    : state_(std::make_unique<State>(tls.context_->ssl)) {
  SSL* const ssl = state_->ssl;
  BIO* const bio = BIO_new(socket_method());
  if (bio == nullptr) throw std::bad_alloc();
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<intptr_t>(fd)));
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl, bio, bio);
  SSL_set_connect_state(ssl);
  bool expected = false;
  if (is_ip_address(host)) {
    expected = X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host.c_str()) == 1;
  } else {
    SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    expected = SSL_set1_host(ssl, host.c_str()) == 1 &&
               SSL_ctrl(ssl, SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name,
                        const_cast<char*>(host.c_str())) == 1;  // NOLINT: what the macro SSL_set_tlsext_host_name does
  }
  if (!expected) throw std::bad_alloc();
}

RedisTlsStream::~RedisTlsStream() = default;

Transfer RedisTlsStream::outcome(int result) const {
  if (result > 0) return {result, 0, ""};
  const int saved = errno;
  switch (SSL_get_error(state_->ssl, result)) {
    case SSL_ERROR_WANT_READ:
      return {0, POLLIN, ""};
    case SSL_ERROR_WANT_WRITE:
      return {0, POLLOUT, ""};
    case SSL_ERROR_ZERO_RETURN:
      return {};
    default:
      break;
  }
  if (const long verified = SSL_get_verify_result(state_->ssl); verified != X509_V_OK) {  // NOLINT: OpenSSL's type
    ERR_clear_error();
    return {0, 0, std::string("TLS: the server's certificate: ") + X509_verify_cert_error_string(verified)};
  }
  return {0, 0, "TLS: " + openssl_error(saved != 0 ? std::strerror(saved) : "the server has closed the connection")};
}

Transfer RedisTlsStream::handshake() {
  ERR_clear_error();
  errno = 0;
  return outcome(SSL_do_handshake(state_->ssl));
}

Transfer RedisTlsStream::write(std::span<const char> bytes) {
  ERR_clear_error();
  errno = 0;
  return outcome(SSL_write(state_->ssl, bytes.data(), static_cast<int>(std::min<size_t>(bytes.size(), INT_MAX))));
}

Transfer RedisTlsStream::read(std::span<char> bytes) {
  ERR_clear_error();
  errno = 0;
  return outcome(SSL_read(state_->ssl, bytes.data(), static_cast<int>(std::min<size_t>(bytes.size(), INT_MAX))));
}

bool RedisTlsStream::has_input() {
  char byte = 0;
  ERR_clear_error();
  const int result = SSL_peek(state_->ssl, &byte, 1);
  const bool none = result <= 0 && SSL_get_error(state_->ssl, result) == SSL_ERROR_WANT_READ;
  ERR_clear_error();
  return !none;
}

}  // namespace vlcache
