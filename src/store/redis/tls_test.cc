// Redis through TLS: whose certificates are accepted, clients with certificates of their own, records of every size.
// Skipped without a redis-server binary with TLS.
#include "store/redis/tls.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <atomic>
#include <thread>

#include "base/error.h"
#include "store/redis/server_testing.h"

namespace vlcache {
namespace {

using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;

// A certificate and its key; signed by another, or by itself.
struct Identity {
  Key key{nullptr, EVP_PKEY_free};
  Certificate certificate{nullptr, X509_free};
};

void extend(X509* certificate, X509* issuer, int what, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, &context, what, value.c_str());
  ASSERT_NE(extension, nullptr) << value;
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

// names: "IP:127.0.0.1,DNS:localhost"; empty: an authority. Valid from an hour ago for so many seconds.
Identity make_identity(const std::string& names, const Identity* signer = nullptr, int valid_s = 86'400) {
  Identity made;
  made.key.reset(EVP_EC_gen("P-256"));
  made.certificate.reset(X509_new());
  X509* const x = made.certificate.get();
  static int serial = 0;
  X509_set_version(x, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(x), ++serial);
  X509_gmtime_adj(X509_getm_notBefore(x), -3600);
  X509_gmtime_adj(X509_getm_notAfter(x), valid_s);
  X509_set_pubkey(x, made.key.get());
  const std::string name = "test " + std::to_string(serial);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(x), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509* const issuer = signer != nullptr ? signer->certificate.get() : x;
  X509_set_issuer_name(x, X509_get_subject_name(issuer));
  if (names.empty()) {
    extend(x, issuer, NID_basic_constraints, "critical,CA:TRUE");
  } else {
    extend(x, issuer, NID_subject_alt_name, names);
  }
  EXPECT_GT(X509_sign(x, signer != nullptr ? signer->key.get() : made.key.get(), EVP_sha256()), 0);
  return made;
}

class RedisWithTls : public StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    write("ca", authority_);
    write("server", server_identity_);
    start("server");
    if (!server_->running()) GTEST_SKIP() << "redis-server is not installed, or has no TLS";
  }
  void TearDown() override {
    server_.reset();
    StoreTest::TearDown();
  }

  std::string path(const std::string& name) const { return (root_ / name).string(); }
  void write(const std::string& name, const Identity& identity) const {
    FILE* const crt = fopen(path(name + ".crt").c_str(), "w");
    PEM_write_X509(crt, identity.certificate.get());
    fclose(crt);
    FILE* const key = fopen(path(name + ".key").c_str(), "w");
    PEM_write_PrivateKey(key, identity.key.get(), nullptr, nullptr, 0, nullptr, nullptr);
    fclose(key);
  }
  // A server with this certificate.
  void start(const std::string& name, const std::string& clients = "no") {
    tls_port_ = free_port();
    server_.emplace(root_ / "redis",
                    std::vector<std::string>{"--tls-port", std::to_string(tls_port_), "--tls-cert-file",
                                             path(name + ".crt"), "--tls-key-file", path(name + ".key"),
                                             "--tls-ca-cert-file", path("ca.crt"), "--tls-auth-clients", clients});
  }
  RedisTierOptions with_tls(const std::string& host = "127.0.0.1", const std::string& ca = "ca.crt") const {
    RedisTierOptions options;
    options.address.seeds = {{host, tls_port_}};
    options.address.tls = true;
    if (!ca.empty()) options.tls.ca = path(ca);
    options.times = {.connect_ms = 10'000, .reply_ms = 10'000, .retry_ms = 10, .max_retry_ms = 40};
    return options;
  }
  // "stored", or why not.
  static std::string put(const RedisTierOptions& options) {
    RedisTier tier(options);
    const PutResult put = tier.put(make_record(make_key(1), {100}).record, kNoDeadline);
    return put.there() ? "stored" : put.detail;
  }

  Identity authority_ = make_identity(""), server_identity_ = make_identity("IP:127.0.0.1,DNS:localhost", &authority_);
  int tls_port_ = 0;
  std::optional<RedisServer> server_;
};

TEST_F(RedisWithTls, RecordsAreReadBack) {
  RedisTier tier(with_tls());
  for (const size_t size : {0, 100, 16'384, 5'000'000}) {
    const Stored stored = make_record(make_key(static_cast<int>(size)), {size, 3, size});
    const PutResult put = tier.put(stored.record, kNoDeadline);
    ASSERT_EQ(put.outcome, PutOutcome::kStored) << put.detail;
    EXPECT_EQ(read_all(tier, stored.record.key).sections, stored.sections);
    EXPECT_EQ(tier.put(stored.record, kNoDeadline).outcome, PutOutcome::kPresent);
  }
  EXPECT_EQ(tier.list().size(), 4u);
  EXPECT_EQ(tier.stats().n_failed(), 0) << tier.stats().last_problem;
  // One connection does all that: what TLS sends for itself is not taken for a reply.
  const std::string clients = server_->ask({"INFO", "stats"}).text;
  const size_t at = clients.find("total_connections_received:");
  EXPECT_LT(std::stoi(clients.substr(at + 27)), 10) << clients;
}

TEST_F(RedisWithTls, ThreadsShareATier) {
  RedisTier tier(with_tls("localhost"));
  const Stored stored = make_record(make_key(1), {400'000, 1'000});
  ASSERT_TRUE(tier.put(stored.record, kNoDeadline).there()) << tier.stats().last_problem;
  std::atomic<int> n_right = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 10; ++i) n_right += read_all(tier, stored.record.key).sections == stored.sections;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(n_right, 40);
}

TEST_F(RedisWithTls, OnlyTheRightServerIsBelieved) {
  EXPECT_EQ(put(with_tls()), "stored");
  EXPECT_EQ(put(with_tls("localhost")), "stored");
  const auto refused = [&](const RedisTierOptions& options, const char* why) {
    const std::string found = put(options);
    EXPECT_NE(found.find(why), std::string::npos) << found;
  };
  refused(with_tls("127.0.0.1", ""), "self-signed certificate in certificate chain");  // not one the system trusts
  write("stranger", make_identity(""));
  refused(with_tls("127.0.0.1", "stranger.crt"), "self-signed certificate in certificate chain");
  RedisTierOptions plain = with_tls();
  plain.address.seeds[0].port = server_->port();
  plain.times.connect_ms = 500;
  refused(plain, "TLS: ");  // that port does not speak TLS
  RedisTierOptions without = with_tls();
  without.address.tls = false;
  without.tls = {};
  EXPECT_NE(put(without), "stored");

  const auto with_certificate = [&](const Identity& identity) {
    write("other", identity);
    start("other");
    return with_tls();
  };
  refused(with_certificate(make_identity("IP:127.0.0.2,DNS:localhost", &authority_)), "IP address mismatch");
  refused(with_certificate(make_identity("IP:127.0.0.1", &authority_, -60)), "certificate has expired");
  refused(with_certificate(make_identity("IP:127.0.0.1")), "self-signed certificate");
  with_certificate(make_identity("IP:127.0.0.1,DNS:example.com", &authority_));
  refused(with_tls("localhost"), "hostname mismatch");
}

TEST_F(RedisWithTls, ClientsWithCertificates) {
  start("server", "yes");
  const std::string without = put(with_tls());  // "certificate required", if that arrives before the connection ends
  EXPECT_EQ(without.find("TLS: "), 0u) << without;
  write("client", make_identity("DNS:client", &authority_));
  RedisTierOptions options = with_tls();
  options.tls.cert = path("client.crt");
  options.tls.key = path("client.key");
  EXPECT_EQ(put(options), "stored");
}

TEST_F(RedisWithTls, UnusableFilesAreErrors) {
  write("client", make_identity("DNS:client", &authority_));
  write("another", make_identity("DNS:client", &authority_));
  const auto error = [&](const RedisTlsFiles& files) -> std::string {
    try {
      const RedisTls tls(files);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(error({}), "");
  EXPECT_EQ(error({path("ca.crt"), path("client.crt"), path("client.key")}), "");
  EXPECT_EQ(error({path("none"), "", ""}).find("--cache-redis-ca: "), 0u);
  EXPECT_EQ(error({path("ca.key"), "", ""}).find("--cache-redis-ca: "), 0u);
  EXPECT_EQ(error({"", path("client.key"), path("client.key")}).find("--cache-redis-cert: "), 0u);
  EXPECT_EQ(error({"", path("client.crt"), path("client.crt")}).find("--cache-redis-key: "), 0u);
  EXPECT_EQ(error({"", path("client.crt"), path("another.key")}).find("--cache-redis-key: "), 0u);
  EXPECT_NE(error({"", path("client.crt"), ""}), "");
  EXPECT_NE(error({"", "", path("client.key")}), "");
}

TEST_F(RedisWithTls, KilledAndStoppedServers) {
  RedisTierOptions options = with_tls();
  options.times.reply_ms = 1'000;
  RedisTier tier(options);
  const Stored stored = make_record(make_key(1), std::vector<size_t>(6, 3'000'000));
  ASSERT_TRUE(tier.put(stored.record, kNoDeadline).there());
  server_->stop();
  const auto start = Clock::now();
  EXPECT_EQ(reason(read_all(tier, stored.record.key, start + std::chrono::milliseconds(30)).miss), "late");
  EXPECT_LT(ms_since(start), 900);
  server_->go_on();
  const OpenedRecord opened = tier.open(stored.record.key, kNoDeadline);
  ASSERT_TRUE(opened.reader);
  Bytes to(3'000'000);
  EXPECT_EQ(reason(opened.reader->read(0, to, kNoDeadline)), "hit");
  server_->end(SIGKILL);
  EXPECT_EQ(reason(opened.reader->read(1, to, kNoDeadline)), "io error");
  EXPECT_EQ(tier.put(stored.record, kNoDeadline).outcome, PutOutcome::kIo);
}

}  // namespace
}  // namespace vlcache
