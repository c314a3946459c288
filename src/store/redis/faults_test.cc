// Servers that lie, stall, or send more than was asked for: each is a miss with its reason, in bounded time and memory.
#include <gtest/gtest.h>

#include <atomic>

#include "store/redis/keys.h"
#include "store/redis/server_testing.h"
#include "store/store_worker.h"

namespace vlcache {
namespace {

using namespace std::chrono_literals;

// Waits long enough for a slow machine under a sanitizer.
RedisTierOptions patient(int port) {
  RedisTierOptions options;
  options.address = local_address(port);
  options.times = {.connect_ms = 10'000, .reply_ms = 10'000, .retry_ms = 10, .max_retry_ms = 40};
  return options;
}
// For tests of the time limits themselves.
RedisTierOptions quick(int port, double ms = 300) {
  RedisTierOptions options = patient(port);
  options.times.connect_ms = options.times.reply_ms = ms;
  return options;
}

// A server that works until it is told otherwise, with a record in it.
class RedisFaults : public testing::Test {
 protected:
  RedisFaults() : stored_(make_record(make_key(1), {2'000, 3'000'000, 100})) {
    RedisTier tier(patient(server_.port()));
    const PutResult put = tier.put(stored_.record, kNoDeadline);
    EXPECT_EQ(put.outcome, PutOutcome::kStored) << put.detail;
    EXPECT_EQ(read_all(tier, stored_.record.key).sections, stored_.sections);
  }

  // The result of reading while requests of this name get this reply.
  ReadAll read_with(const std::string& request, const std::string& reply) {
    return read_with(request, reply, patient(server_.port()));
  }
  ReadAll read_with(const std::string& request, const std::string& reply, const RedisTierOptions& options) {
    server_.set_hook([=](const FakeRedis::Words& words) -> std::optional<std::string> {
      if (words[0] == request) return reply;
      return std::nullopt;
    });
    RedisTier tier(options);
    const ReadAll read = read_all(tier, stored_.record.key);
    const bool failed = read.miss && read.miss->reason != MissReason::kAbsent;
    EXPECT_EQ(tier.stats().last_problem, failed ? describe(*read.miss) : "");
    server_.set_hook(nullptr);
    return read;
  }

  FakeRedis server_;
  Stored stored_;
};

TEST_F(RedisFaults, InvalidRepliesAreMisses) {
  for (const char* request : {"GET", "GETRANGE"}) {
    for (const char* reply : {"close", "hello\r\n", "$12\r\nabcclose", "$-7\r\n", "$99999999999999999999\r\n",
                              "*-9\r\n", ":12x\r\n", "*1000000000\r\nclose", "*2147483647\r\n*2147483647\r\nclose",
                              "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n", "\x01\x02\x03\x04\r\n",
                              "$4294967297\r\nabcclose"}) {
      const ReadAll read = read_with(request, reply);
      EXPECT_EQ(reason(read.miss), "io error") << request << " " << reply;
    }
    for (const char* reply :
         {":5\r\n", "*0\r\n", "*1\r\n$3\r\nabc\r\n", "+OK\r\n", "-ERR no\r\n", "-LOADING dataset\r\n"})
      EXPECT_EQ(reason(read_with(request, reply).miss), "io error") << request << " " << reply;
  }
  EXPECT_EQ(reason(read_with("GET", "$-1\r\n").miss), "absent");
  EXPECT_EQ(reason(read_with("GETRANGE", "$-1\r\n").miss), "io error");
  EXPECT_EQ(reason(read_with("GETRANGE", "$0\r\n\r\n").miss), "absent");
  EXPECT_EQ(reason(read_with("PING", "close").miss), "io error");
  EXPECT_EQ(reason(read_with("PING", ":1\r\n").miss), "io error");
}

TEST_F(RedisFaults, ValuesOfAnotherSize) {
  // Not removed in between: the fake keeps what it is not asked to remove.
  const auto keep = server_.values();
  const auto put_back = [&] {
    for (const auto& [name, value] : keep) server_.set(name, value);
  };
  EXPECT_EQ(reason(read_with("GETRANGE", FakeRedis::bulk("short")).miss), "truncated");
  put_back();
  EXPECT_EQ(reason(read_with("GETRANGE", FakeRedis::bulk(std::string(2'001, 'x'))).miss), "truncated");
  put_back();
  EXPECT_EQ(reason(read_with("GETRANGE", FakeRedis::bulk(std::string(2'000, 'x'))).miss), "checksum");
  put_back();
  EXPECT_EQ(reason(read_with("GET", FakeRedis::bulk(std::string(50'000, 'x'))).miss), "malformed");
  put_back();
  EXPECT_EQ(reason(read_with("GET", "$10\r\nabc", quick(server_.port())).miss), "late");  // waits for the rest
  EXPECT_EQ(reason(read_with("GET", "", quick(server_.port())).miss), "late");
  EXPECT_EQ(read_with("ECHO", "").sections, stored_.sections);
}

// A server that sends for as long as the connection is open.
TEST_F(RedisFaults, EndlessReplyTakesNoMemory) {
  std::string many_elements = "*100000000\r\n";
  while (many_elements.size() < 32 << 20) many_elements += ":1\r\n";
  for (const std::string& reply : {"$500000000\r\n" + std::string(32 << 20, 'x'), many_elements}) {
    for (const char* request : {"GET", "GETRANGE"}) {
      const int64_t before = server_.n_bytes_sent();
      const ReadAll read = read_with(request, reply);
      EXPECT_EQ(reason(read.miss), "io error");
      EXPECT_NE(read.miss->detail.find("longer than what was asked for"), std::string::npos) << read.miss->detail;
      EXPECT_LT(server_.n_bytes_sent() - before, 16 << 20) << "more than the system keeps on the way was taken";
    }
  }
}

// Forged sizes in a header: without a salt any writer can do that.
TEST_F(RedisFaults, HeaderWithForgedSizesIsAMiss) {
  const RecordSeal seal;
  for (const int64_t bytes : {kMaxRecordBytes - 4096, kMaxRecordBytes, kMaxRecordBytes + 1, INT64_MAX}) {
    RecordHeader header{.key = stored_.record.key, .created_ms = now_ms(), .sections = {{bytes, {}}}};
    const auto encoded = encode_header(seal, header);
    server_.set(header_name(seal.id(header.key)),
                std::string(reinterpret_cast<const char*>(encoded.data()), encoded.size()));
    RedisTier tier(patient(server_.port()));
    const OpenedRecord opened = tier.open(header.key, kNoDeadline);
    Bytes to(100);
    if (opened.reader) {
      opened.reader->expect(std::vector<int32_t>{0});
      EXPECT_EQ(reason(opened.reader->read(0, to, kNoDeadline)), "other layout");
    } else {
      EXPECT_EQ(reason(opened.miss), "truncated") << bytes;
    }
    EXPECT_EQ(bytes >= kMaxRecordBytes, !opened.reader) << bytes;
  }
}

// A reply that arrives after its time is not taken for the next request's.
TEST_F(RedisFaults, LateRepliesAreDiscarded) {
  RedisTier tier(patient(server_.port()));
  const Stored other = make_record(make_key(2), {2'000});
  ASSERT_TRUE(tier.put(other.record, kNoDeadline).there());
  std::atomic<bool> slow = true;
  server_.set_hook([&](const FakeRedis::Words& words) -> std::optional<std::string> {
    if (slow && words[0] == "GETRANGE") std::this_thread::sleep_for(100ms);
    return std::nullopt;
  });
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(reason(read_all(tier, stored_.record.key, Clock::now() + 30ms).miss), "late");
    slow = false;
    EXPECT_EQ(read_all(tier, other.record.key).sections, other.sections);
    EXPECT_EQ(read_all(tier, stored_.record.key).sections, stored_.sections);
    slow = true;
  }
  EXPECT_EQ(tier.stats().n_missed[static_cast<size_t>(MissReason::kLate)], 3);
  server_.set_hook(nullptr);
}

// A byte now and then counts as late.
TEST_F(RedisFaults, TricklingServerIsLate) {
  RedisTier tier(quick(server_.port(), 1'000));
  server_.trickle();
  auto start = Clock::now();
  EXPECT_EQ(reason(read_all(tier, stored_.record.key).miss), "late");
  EXPECT_GT(ms_since(start), 990);
  EXPECT_LT(ms_since(start), 5'000);
  start = Clock::now();
  EXPECT_EQ(reason(read_all(tier, stored_.record.key).miss), "io error");
  EXPECT_LT(ms_since(start), 900);
}

TEST_F(RedisFaults, ServerDiesAtEveryRequest) {
  for (int alive = 0; alive < 14; ++alive) {
    std::atomic<int> left = alive;
    server_.set_hook([&](const FakeRedis::Words& words) -> std::optional<std::string> {
      if (words[0] == "PING") return std::nullopt;
      return left-- > 0 ? std::nullopt : std::optional<std::string>("$3000close");
    });
    RedisTier tier(patient(server_.port()));
    const ReadAll read = read_all(tier, stored_.record.key);
    if (read.miss) {
      EXPECT_EQ(reason(read.miss), "io error");
    } else {
      EXPECT_EQ(read.sections, stored_.sections);
    }
    left = alive;
    const Stored fresh = make_record(make_key(100 + alive), {5'000'000, 1});
    RedisTier writer(patient(server_.port()));
    const PutResult put = writer.put(fresh.record, kNoDeadline);
    EXPECT_TRUE(put.there() || put.outcome == PutOutcome::kIo) << put.detail;
    server_.set_hook(nullptr);
    RedisTier reader(patient(server_.port()));
    const ReadAll again = read_all(reader, fresh.record.key);
    EXPECT_EQ(reason(again.miss), put.there() ? "hit" : "absent") << alive;
    if (put.there()) {
      EXPECT_EQ(again.sections, fresh.sections);
    }
  }
}

TEST_F(RedisFaults, FullServerIsNotSentTheRemainingPieces) {
  std::atomic<int> n_sets = 0;
  server_.set_hook([&](const FakeRedis::Words& words) -> std::optional<std::string> {
    if (words[0] != "SET") return std::nullopt;
    return ++n_sets > 2 ? std::optional<std::string>("-OOM command not allowed\r\n") : std::nullopt;
  });
  RedisTier tier(patient(server_.port()));
  const Stored large = make_record(make_key(2), {60'000'000});
  EXPECT_EQ(tier.put(large.record, kNoDeadline).outcome, PutOutcome::kNoSpace);
  EXPECT_LT(n_sets, 10);
  EXPECT_NE(tier.stats().last_problem.find("no space: OOM"), std::string::npos) << tier.stats().last_problem;
  server_.set_hook(nullptr);
}

// A password that a server repeats in a reply is not passed on.
TEST(RedisSecrets, AreNeverPrinted) {
  for (const char* reply :
       {"-ERR unknown command 'AUTH', with args beginning with: 'ann' 'hunter2secret'\r\n",
        "-WRONGPASS hunter2secret\r\n", "+OK\r\n", "-NOPERM hunter2secret\r\n", "$13\r\nhunter2secret\r\n"}) {
    FakeRedis server([=](const FakeRedis::Words& words) -> std::optional<std::string> {
      if (words[0] == "AUTH") return reply;
      return "-ERR you are hunter2secret \x1b[31m\r\n";
    });
    RedisTierOptions options = patient(server.port());
    options.address.user = "ann";
    options.address.password = "hunter2secret";
    RedisTier tier(options);
    EXPECT_EQ(tier.exists({{make_key(1)}}, kNoDeadline), std::vector<bool>{false});
    const std::string problem = tier.stats().last_problem;
    EXPECT_NE(problem, "");
    EXPECT_EQ(problem.find("hunter2"), std::string::npos) << problem;
    EXPECT_EQ(problem.find('\x1b'), std::string::npos);
    EXPECT_EQ(options.address.shown().find("hunter2"), std::string::npos);
  }
}

// --- servers that cannot be reached

TEST(RedisDown, AtStartIsNoError) {
  RedisTier tier(quick(free_port()));
  const Stored stored = make_record(make_key(1), {100});
  const auto start = Clock::now();
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(tier.exists({{make_key(1), make_key(2)}}, kNoDeadline), (std::vector<bool>{false, false}));
    EXPECT_EQ(reason(read_all(tier, stored.record.key).miss), "io error");
    EXPECT_EQ(tier.put(stored.record, kNoDeadline).outcome, PutOutcome::kIo);
  }
  EXPECT_LT(ms_since(start), 1'000);
  EXPECT_EQ(tier.stats().n_missed[static_cast<size_t>(MissReason::kIo)], 150);
  EXPECT_NE(tier.stats().last_problem.find("refused"), std::string::npos) << tier.stats().last_problem;
}

TEST(RedisDown, UnknownHostNameIsAnIoError) {
  RedisTierOptions options = quick(6379);
  options.address.seeds[0].host = "no-such-host.invalid";
  RedisTier tier(options);
  EXPECT_EQ(reason(read_all(tier, make_key(1)).miss), "io error");
}

// Retried less and less often while no connection has been useful.
TEST(RedisDown, RetryIntervalsGrow) {
  FakeRedis server([](const FakeRedis::Words& words) -> std::optional<std::string> {
    if (words[0] == "PING") return std::nullopt;
    return "close";
  });
  RedisTierOptions options = quick(server.port());
  options.times.retry_ms = 20;
  options.times.max_retry_ms = 160;
  RedisTier tier(options);
  const auto start = Clock::now();
  while (ms_since(start) < 1'000) {
    EXPECT_EQ(reason(read_all(tier, make_key(1)).miss), "io error");
    std::this_thread::sleep_for(1ms);
  }
  // 20 + 40 + 80 + 160 + ...: eight or nine times in a second.
  EXPECT_GT(server.n_connections(), 3);
  EXPECT_LT(server.n_connections(), 12);
}

// The loading thread with a server that stops replying: a late load, then misses at once.
TEST_F(RedisFaults, WorkerIsNotBlocked) {
  RedisTier tier(quick(server_.port(), 1'000));
  StoreWorker worker(tier, 1 << 20);
  std::atomic<bool> silent = false;
  server_.set_hook([&](const FakeRedis::Words&) -> std::optional<std::string> {
    if (silent) return "";
    return std::nullopt;
  });
  const auto load = [&](Deadline deadline) {
    auto sections = std::make_shared<std::vector<Bytes>>(stored_.sections);
    LoadRequest request{.key = stored_.record.key, .targets = {}, .owner = sections, .deadline = deadline};
    for (int32_t i = 0; i < 3; ++i) {
      Bytes& section = (*sections)[static_cast<size_t>(i)];
      std::ranges::fill(section, std::byte{0});
      request.targets.push_back({i, section});
    }
    RecordLoad done = worker.load(std::move(request));
    const bool ready = done.wait(2, kNoDeadline) == RecordLoad::State::kReady;
    if (ready) {
      EXPECT_EQ(*sections, stored_.sections);
    }
    return ready ? "hit" : reason(done.miss());
  };
  EXPECT_EQ(load(kNoDeadline), "hit");
  silent = true;
  EXPECT_EQ(load(Clock::now() + 50ms), "late");
  EXPECT_EQ(load(kNoDeadline), "io error");  // nor does it answer new connections
  const auto start = Clock::now();
  EXPECT_EQ(load(kNoDeadline), "io error");
  EXPECT_LT(ms_since(start), 900);
  silent = false;
  std::string found;
  for (int i = 0; i < 200 && found != "hit"; ++i) {
    found = load(kNoDeadline);
    if (found != "hit") std::this_thread::sleep_for(10ms);
  }
  EXPECT_EQ(found, "hit");
  server_.set_hook(nullptr);
}

}  // namespace
}  // namespace vlcache
