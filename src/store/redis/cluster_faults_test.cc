// What a Redis cluster says about itself: its slots, its redirects, and nodes that give wrong answers. Each is a miss
// with its reason, in bounded time, and no other host is connected to.
#include <gtest/gtest.h>

#include <atomic>

#include "store/redis/keys.h"
#include "store/redis/server_testing.h"
#include "store/redis/slots.h"

namespace vlcache {
namespace {

using namespace std::chrono_literals;
using Replied = RedisReply::Type;

const RedisNode kFrom{"10.0.0.1", 7000};

TEST(RedisSlots, OfKeys) {
  EXPECT_EQ(redis_slot("123456789"), 0x31C3);  // the check value of CRC16/XMODEM
  EXPECT_EQ(redis_slot(""), 0);
  EXPECT_EQ(redis_slot("foo"), 12182);
  EXPECT_EQ(redis_slot("{user1000}.following"), redis_slot("user1000"));
  EXPECT_EQ(redis_slot("foo{bar}{zap}"), redis_slot("bar"));
  EXPECT_EQ(redis_slot("foo{{bar}}zap"), redis_slot("{bar"));
  EXPECT_NE(redis_slot("foo{}{bar}"), redis_slot("bar"));
  EXPECT_NE(redis_slot("foo{bar"), redis_slot("bar"));
  RecordId id{};
  for (int i = 0; i < 1000; ++i) {
    id[0] = static_cast<uint8_t>(i);
    id[1] = static_cast<uint8_t>(i >> 8);
    EXPECT_EQ(redis_slot(header_name(id)), redis_slot(hex(id)));
    EXPECT_EQ(redis_slot(piece_name(id, i)), redis_slot(header_name(id)));
  }
}

RedisReply integer(int64_t value) {
  RedisReply reply;
  reply.type = Replied::kInteger;
  reply.integer = value;
  return reply;
}
RedisReply text(std::string_view value) {
  RedisReply reply;
  reply.type = Replied::kString;
  reply.text = value;
  return reply;
}
RedisReply array(std::vector<RedisReply> elements) {
  RedisReply reply;
  reply.type = Replied::kArray;
  reply.elements = std::move(elements);
  return reply;
}
RedisReply node_reply(std::string_view host, int64_t port) { return array({text(host), integer(port), text("id")}); }

TEST(RedisSlots, Tables) {
  const auto parsed = [](RedisReply range) { return parse_slot_table(array({std::move(range)}), kFrom); };
  const auto table =
      parse_slot_table(array({array({integer(0), integer(99), node_reply("a", 1), node_reply("b", 2)}),
                              array({integer(200), integer(16383), node_reply("b", 2), node_reply("", 3)}),
                              array({integer(300), integer(300), array({RedisReply{}, integer(4)})})}),
                       kFrom);
  ASSERT_TRUE(table);
  const auto owner = [&](size_t slot) {
    return table->owner[slot] < 0 ? "" : table->nodes[static_cast<size_t>(table->owner[slot])].shown();
  };
  EXPECT_EQ(owner(0) + " " + owner(99) + " " + owner(100) + " " + owner(199), "a:1 a:1  ");
  EXPECT_EQ(owner(200) + " " + owner(300) + " " + owner(301), "b:2 10.0.0.1:4 b:2");
  EXPECT_EQ(table->n_without_node(), 100);
  EXPECT_TRUE(table->announces({"10.0.0.1", 3}));
  EXPECT_FALSE(table->announces({"a", 2}));
  EXPECT_TRUE(parse_slot_table(array({}), kFrom));
  for (const auto& [first, last] : {std::pair<int64_t, int64_t>{-1, 5}, {5, 4}, {0, 16384}, {INT64_MIN, INT64_MAX}}) {
    EXPECT_FALSE(parsed(array({integer(first), integer(last), node_reply("a", 1)}))) << first;
  }
  for (const int64_t port : {int64_t{0}, int64_t{-1}, int64_t{65536}, INT64_MAX}) {
    EXPECT_FALSE(parsed(array({integer(0), integer(5), node_reply("a", port)}))) << port;
  }
  EXPECT_FALSE(parsed(array({integer(0), integer(5), node_reply("a b", 1)})));
  EXPECT_FALSE(parsed(array({integer(0), integer(5), node_reply(std::string(256, 'a'), 1)})));
  EXPECT_FALSE(parsed(array({integer(0), integer(5)})));
  EXPECT_FALSE(parsed(array({integer(0), text("5"), node_reply("a", 1)})));
  EXPECT_FALSE(parsed(array({integer(0), integer(5), text("a:1")})));
  EXPECT_FALSE(parsed(text("0 5 a 1")));
  EXPECT_FALSE(parse_slot_table(text("0 5 a 1"), kFrom));
}

TEST(RedisSlots, NodesAndRedirects) {
  const std::string lines =
      "id1 127.0.0.1:7000@17000 myself,master - 0 0 1 connected 0-5\n"
      "id2 ::1:7001@17001,node-2,shard-id=7 slave id1 0 0 1 connected\n"
      "id3 :7002@17002 master,noaddr - 0 0 1 disconnected\nid4 :7003@17003,?,x master -\n\nrubbish\nid 5:x@1 master\n";
  std::string shown;
  for (const RedisNode& node : parse_cluster_nodes(lines, kFrom)) shown += node.shown() + " ";
  EXPECT_EQ(shown, "127.0.0.1:7000 [::1]:7001 node-2:7001 10.0.0.1:7003 ");

  const auto redirect = [](std::string_view error) {
    const auto r = parse_redirect(error, kFrom);
    return r ? (r->ask ? "ask " : "") + std::to_string(r->slot) + " " + r->node.shown() : "";
  };
  EXPECT_EQ(redirect("MOVED 3999 127.0.0.1:6381"), "3999 127.0.0.1:6381");
  EXPECT_EQ(redirect("ASK 0 ::1:6381"), "ask 0 [::1]:6381");
  EXPECT_EQ(redirect("MOVED 1 :6381"), "1 10.0.0.1:6381");
  for (const char* error :
       {"", "MOVED", "MOVED 1", "MOVED 1 ", "MOVED 1 h", "MOVED 1 h:", "MOVED 1 h:0", "MOVED 1 h:x", "MOVED -1 h:1",
        "MOVED 16384 h:1", "MOVED x h:1", "MOVED 1 h:65536", "MOVED 1 a b:1", "moved 1 h:1", "ERR MOVED 1 h:1"}) {
    EXPECT_EQ(redirect(error), "") << error;
  }
}

// Two servers that a test makes nodes of a cluster, with a record in each, and one that is not announced.
class RedisClusterFaults : public testing::Test {
 protected:
  RedisClusterFaults() {
    reset();
    RedisTier tier(options());
    EXPECT_EQ(tier.put(stored_.record, kNoDeadline).outcome, PutOutcome::kStored);
    EXPECT_EQ(reason(read_all(tier, stored_.record.key).miss), "hit");
    slot_ = redis_slot(header_name(tier.id_of(stored_.record.key)));
    for (const auto& [name, value] : a_.values()) b_.set(name, value);
    for (const auto& [name, value] : a_.values()) outside_.set(name, value);
    n_outside_ = outside_.n_connections();
  }
  ~RedisClusterFaults() override {
    for (FakeRedis* fake : {&a_, &b_, &outside_}) fake->set_hook(nullptr);
  }

  RedisTierOptions options(double ms = 10'000) const {
    RedisTierOptions options;
    options.address = local_address(a_.port());
    options.address.cluster = true;
    options.address.password = "hunter2secret";
    options.times = {.connect_ms = ms, .reply_ms = ms, .retry_ms = 10, .max_retry_ms = 40};
    return options;
  }
  static std::string range(int first, int last, const std::string& host, int port) {
    return "*3\r\n:" + std::to_string(first) + "\r\n:" + std::to_string(last) + "\r\n*2\r\n" + FakeRedis::bulk(host) +
           ":" + std::to_string(port) + "\r\n";
  }
  // All slots at a_, which names b_ too.
  std::string table() const {
    return "*2\r\n" + range(0, 16383, "127.0.0.1", b_.port()) + range(0, 16383, "127.0.0.1", a_.port());
  }
  void reset() { set(table(), nullptr, nullptr); }
  // What both nodes say of the cluster, and what each replies otherwise.
  void set(const std::string& slots, FakeRedis::Hook at_a, FakeRedis::Hook at_b) {
    const auto hook = [=, this](const FakeRedis::Hook& other) {
      return [=, this](const FakeRedis::Words& words) -> std::optional<std::string> {
        if (words[0] == "CLUSTER" && words[1] == "SLOTS") return slots;
        if (words[0] == "CLUSTER")
          return FakeRedis::bulk("id 127.0.0.1:" + std::to_string(a_.port()) + "@1 master -\n");
        if (words[0] == "ASKING") return "+OK\r\n";
        if (words[0] == "AUTH" || words[0] == "PING" || !other) return std::nullopt;
        ++n_asked_;
        return other(words);
      };
    };
    a_.set_hook(hook(at_a));
    b_.set_hook(hook(at_b));
  }
  std::string redirect(const std::string& kind, const FakeRedis& to, const std::string& host = "127.0.0.1") const {
    return "-" + kind + " " + std::to_string(slot_) + " " + host + ":" + std::to_string(to.port()) + "\r\n";
  }
  static FakeRedis::Hook always(const std::string& reply) {
    return [=](const FakeRedis::Words&) { return std::optional(reply); };
  }
  // Once for each name of a request.
  static FakeRedis::Hook once(const std::string& reply) {
    auto seen = std::make_shared<std::set<std::string>>();
    return [=](const FakeRedis::Words& words) {
      return seen->insert(words[0]).second ? std::optional(reply) : std::nullopt;
    };
  }
  std::string read(const RedisTierOptions& options) {
    RedisTier tier(options);
    const ReadAll read = read_all(tier, stored_.record.key);
    if (!read.miss) {
      EXPECT_EQ(read.sections, stored_.sections);
    }
    return read.miss ? describe(*read.miss) : "hit";
  }
  void expect_nothing_outside() const { EXPECT_EQ(outside_.n_connections(), n_outside_); }

  Stored stored_ = make_record(make_key(1), {2'000, 2'200'000, 100});
  int slot_ = 0, n_outside_ = 0;
  std::atomic<int> n_asked_ = 0;
  FakeRedis a_, b_, outside_;
};

TEST_F(RedisClusterFaults, RedirectsAreFollowed) {
  set(table(), always(redirect("MOVED", b_)), nullptr);
  EXPECT_EQ(read(options()), "hit");
  set(table(), always(redirect("MOVED", b_, "")), nullptr);
  EXPECT_EQ(read(options()), "hit");
  std::atomic<int> n_asking = 0;
  set(table(), always(redirect("ASK", b_)), [&](const FakeRedis::Words&) {
    ++n_asking;
    return std::nullopt;
  });
  EXPECT_EQ(read(options()), "hit");
  EXPECT_EQ(n_asking, 5);  // the header and four ranges, each by itself
  set(table(), once("-TRYAGAIN Multiple keys request during rehashing of slot\r\n"), nullptr);
  EXPECT_EQ(read(options()), "hit");
  set(table(), once("-READONLY You can't write against a read only replica.\r\n"), nullptr);
  RedisTier tier(options());
  EXPECT_EQ(tier.put(make_record(make_key(1), {100}).record, kNoDeadline).outcome, PutOutcome::kPresent);
  EXPECT_EQ(tier.put(make_record(make_key(2), {100, 5'000'000, 9}).record, kNoDeadline).outcome, PutOutcome::kStored);
  EXPECT_EQ(read_all(tier, make_key(2)).sections, make_record(make_key(2), {100, 5'000'000, 9}).sections);
}

TEST_F(RedisClusterFaults, CirclesEnd) {
  for (const char* kind : {"MOVED", "ASK"}) {
    set(table(), always(redirect(kind, b_)), always(redirect(kind, a_)));
    n_asked_ = 0;
    EXPECT_EQ(read(options()).find("io error: redirected more than 5 times: "), 0u) << read(options());
    EXPECT_LE(n_asked_, 2 * 6);
    RedisTier tier(options());
    EXPECT_EQ(tier.put(stored_.record, kNoDeadline).outcome, PutOutcome::kIo);
    EXPECT_EQ(tier.exists({{stored_.record.key, make_key(2)}}, kNoDeadline), (std::vector<bool>{false, false}));
  }
  set(table(), always(redirect("MOVED", a_)), nullptr);  // to itself
  EXPECT_EQ(read(options()).find("io error: redirected more than 5 times: "), 0u);
  for (const char* text :
       {"-TRYAGAIN later\r\n", "-CLUSTERDOWN Hash slot not served\r\n", "-MOVED 16384 127.0.0.1:1\r\n", "-MOVED\r\n",
        "-MOVED x\r\n", "-ASK 5 127.0.0.1:99999\r\n", "-LOADING Redis is loading\r\n", "-READONLY replica\r\n"}) {
    set(table(), always(text), nullptr);
    EXPECT_EQ(read(options()).find("io error: "), 0u) << text;
    RedisTier tier(options());
    EXPECT_EQ(tier.put(stored_.record, kNoDeadline).outcome, PutOutcome::kIo) << text;
  }
}

// A redirect of a key that is not asked for.
TEST_F(RedisClusterFaults, AnotherSlotsRedirectIsNotFollowed) {
  const std::string other =
      "-MOVED " + std::to_string((slot_ + 1) % kRedisSlots) + " 127.0.0.1:" + std::to_string(b_.port()) + "\r\n";
  set(table(), always(other), nullptr);
  EXPECT_EQ(read(options()), "io error: " + other.substr(1, other.size() - 3));
}

TEST_F(RedisClusterFaults, OnlyAnnouncedNodesAreFollowed) {
  for (const char* kind : {"MOVED", "ASK"}) {
    set(table(), always(redirect(kind, outside_)), nullptr);
    EXPECT_NE(read(options()).find("which the cluster does not announce"), std::string::npos) << read(options());
    // "localhost" is another name than 127.0.0.1.
    set(table(), always(redirect(kind, outside_, "localhost")), nullptr);
    EXPECT_NE(read(options()).find("--cache-redis-allow localhost would follow it"), std::string::npos);
  }
  set("*1\r\n" + range(0, 16383, "localhost", outside_.port()), nullptr, nullptr);
  RedisTier tier(options());
  EXPECT_NE(read(options()).find("--cache-redis-allow localhost would follow it"), std::string::npos);
  EXPECT_EQ(tier.put(stored_.record, kNoDeadline).outcome, PutOutcome::kIo);
  EXPECT_TRUE(tier.list().empty());
  EXPECT_GT(tier.stats().n_failed(), 0);
  expect_nothing_outside();

  RedisTierOptions allowed = options();
  allowed.allowed = {"*.example.com", "localhost"};
  EXPECT_EQ(read(allowed), "hit");
  EXPECT_GT(outside_.n_connections(), n_outside_);
}

TEST_F(RedisClusterFaults, PasswordsInRedirectsAreNotPrinted) {
  for (const char* host : {"hunter2secret", "a.hunter2secret.com"}) {
    set(table(), always(redirect("MOVED", outside_, host)), nullptr);
    EXPECT_EQ(read(options()).find("hunter2"), std::string::npos) << read(options());
    set("*1\r\n" + range(0, 16383, host, outside_.port()), nullptr, nullptr);
    EXPECT_EQ(read(options()).find("hunter2"), std::string::npos) << read(options());
    RedisTierOptions allowed = options();
    allowed.allowed = {host};
    set(table(), always(redirect("MOVED", outside_, host)), nullptr);
    EXPECT_EQ(read(allowed).find("hunter2"), std::string::npos) << read(allowed);
  }
}

// A seed that is named, of a cluster that announces addresses.
TEST_F(RedisClusterFaults, AddressesOfSeedsAreFollowed) {
  RedisTierOptions named = options();
  named.address.seeds[0].host = "localhost";
  EXPECT_EQ(read(named), "hit");
}

TEST_F(RedisClusterFaults, TablesWithGaps) {
  const std::string gap =
      "*2\r\n" + range(0, slot_ - 1, "127.0.0.1", a_.port()) + range(slot_ + 1, 16383, "127.0.0.1", a_.port());
  set(gap, nullptr, nullptr);
  RedisTier tier(options());
  EXPECT_EQ(reason(read_all(tier, stored_.record.key).miss), "io error");
  EXPECT_EQ(tier.put(stored_.record, kNoDeadline).outcome, PutOutcome::kIo);
  EXPECT_EQ(tier.stats().last_problem, "io error: no node of the cluster serves slot " + std::to_string(slot_));
  EXPECT_EQ(tier.exists({{stored_.record.key}}, kNoDeadline), std::vector<bool>{false});
  EXPECT_EQ(tier.put(make_record(make_key(2), {100}).record, kNoDeadline).outcome, PutOutcome::kStored);
  reset();  // the table is read again
  std::string found;
  for (int i = 0; i < 1000 && found != "hit"; ++i) {
    found = reason(read_all(tier, stored_.record.key).miss);
    if (found != "hit") std::this_thread::sleep_for(5ms);
  }
  EXPECT_EQ(found, "hit");
}

TEST_F(RedisClusterFaults, InvalidTablesAreMisses) {
  for (const std::string& slots :
       {std::string("*0\r\n"), std::string("-ERR This instance has cluster support disabled\r\n"),
        std::string(":1\r\n"), std::string("$-1\r\n"), std::string("close"), std::string("*1\r\n*0\r\n"),
        std::string("*1\r\n:5\r\n"), std::string("*100000000\r\n"), range(0, 5, "h", 1),
        "*1\r\n" + range(0, 16384, "127.0.0.1", a_.port()), "*1\r\n" + range(9, 3, "127.0.0.1", a_.port()),
        "*1\r\n" + range(0, 16383, "127.0.0.1", 65536)}) {
    set(slots, nullptr, nullptr);
    const std::string found = read(options(200));
    EXPECT_TRUE(found.starts_with("late:") || found.starts_with("io error:")) << slots << found;
  }
  expect_nothing_outside();
}

// Redirects to a silent node, and a table that does not arrive: the caller's deadline holds.
TEST_F(RedisClusterFaults, DeadlinesHold) {
  set(table(), always(redirect("MOVED", b_)), always(""));
  RedisTier tier(options());
  auto start = Clock::now();
  EXPECT_EQ(reason(read_all(tier, stored_.record.key, start + 50ms).miss), "late");
  EXPECT_LT(ms_since(start), 5'000);
  std::atomic<bool> silent = true;
  a_.set_hook([&](const FakeRedis::Words& words) -> std::optional<std::string> {
    while (silent && words[0] == "CLUSTER") std::this_thread::sleep_for(1ms);
    return redirect("MOVED", outside_);
  });
  start = Clock::now();
  EXPECT_NE(reason(read_all(tier, stored_.record.key, start + 50ms).miss), "hit");
  EXPECT_LT(ms_since(start), 5'000);
  silent = false;
  reset();
  // A corrupt record is removed within the deadline, too.
  RedisTier fresh(options());
  set(
      table(),
      [](const FakeRedis::Words& words) -> std::optional<std::string> {
        if (words[0] == "GET") return FakeRedis::bulk(std::string(300, 'x'));
        return words[0] == "UNLINK" ? std::optional<std::string>("") : std::nullopt;
      },
      nullptr);
  start = Clock::now();
  EXPECT_EQ(reason(read_all(fresh, stored_.record.key, start + 50ms).miss), "malformed");
  EXPECT_LT(ms_since(start), 5'000);
}

// A server that has become a replica, and one that loads its data: not the end of the tier.
TEST(RedisRoles, LoadingAndReadonlyServers) {
  FakeRedis server;
  RedisTierOptions options;
  options.address = local_address(server.port());
  options.times = {.connect_ms = 10'000, .reply_ms = 10'000, .retry_ms = 10, .max_retry_ms = 40};
  RedisTier tier(options);
  std::atomic<int> n_asked = 0;
  const auto reply = [&](const std::string& text) {
    server.set_hook([&n_asked, text](const FakeRedis::Words& words) -> std::optional<std::string> {
      ++n_asked;
      return words[0] == "SET" || text.starts_with("-LOADING") ? std::optional(text) : std::nullopt;
    });
  };
  const Stored stored = make_record(make_key(1), {100});
  reply("-READONLY You can't write against a read only replica.\r\n");
  const PutResult put = tier.put(stored.record, kNoDeadline);
  EXPECT_EQ(put.outcome, PutOutcome::kIo);
  EXPECT_EQ(put.detail.find("READONLY"), 0u) << put.detail;
  const int n_connections = server.n_connections();
  EXPECT_EQ(tier.put(stored.record, kNoDeadline).outcome, PutOutcome::kIo);
  EXPECT_EQ(server.n_connections(), n_connections + 1) << "the name may stand for another server by now";
  reply("-LOADING Redis is loading the dataset in memory\r\n");
  EXPECT_EQ(reason(read_all(tier, stored.record.key).miss), "io error");
  n_asked = 0;
  for (int i = 0; i < 100; ++i) EXPECT_EQ(reason(read_all(tier, stored.record.key).miss), "io error");
  EXPECT_LT(n_asked, 50) << "its circuit is open";
  server.set_hook(nullptr);
  PutOutcome outcome = PutOutcome::kIo;
  for (int i = 0; i < 1000 && outcome != PutOutcome::kStored; ++i) {
    outcome = tier.put(stored.record, kNoDeadline).outcome;
    if (outcome != PutOutcome::kStored) std::this_thread::sleep_for(5ms);
  }
  EXPECT_EQ(outcome, PutOutcome::kStored);
  EXPECT_EQ(read_all(tier, stored.record.key).sections, stored.sections);
}

}  // namespace
}  // namespace vlcache
