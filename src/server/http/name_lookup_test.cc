// Names of this machine, and resolvers that do not answer.
#include "server/http/name_lookup.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>

namespace vlcache {
namespace {

using namespace std::chrono_literals;

TEST(NameLookup, FindsThisMachineAndNumbers) {
  const NameLookup here = look_up("localhost", 10s);
  ASSERT_FALSE(here.addresses.empty()) << here.problem;
  for (const auto& address : here.addresses) EXPECT_TRUE(address.is_loopback()) << address;
  EXPECT_EQ(look_up("192.0.2.7", 10s).addresses.at(0).to_string(), "192.0.2.7");
  EXPECT_EQ(look_up("2001:db8::7", 10s).addresses.at(0).to_string(), "2001:db8::7");
  const NameLookup none = look_up("no host has spaces", 10s);
  EXPECT_TRUE(none.addresses.empty());
  EXPECT_FALSE(none.problem.empty());
}

TEST(NameLookup, DoesNotWaitForASilentResolver) {
  auto gate = std::make_shared<std::promise<void>>();
  const auto stuck = [passed = gate->get_future().share()](const std::string&) {
    passed.wait();
    return NameLookup{};
  };
  // Cancelled, it does not wait for the timeout either.
  EXPECT_EQ(look_up("slow.example", 100s, stuck, [] { return true; }).problem, "no answer within 100000 ms");
  for (int i = 1; i < kMaxLookups; ++i) EXPECT_EQ(look_up("slow.example", 1ms, stuck).problem, "no answer within 1 ms");
  EXPECT_EQ(look_up("localhost", 10s).problem, "too many names are being looked up already");
  gate->set_value();
  NameLookup again;
  do {
    again = look_up("localhost", 10s);
  } while (again.problem == "too many names are being looked up already");
  EXPECT_FALSE(again.addresses.empty()) << again.problem;
}

TEST(NameLookup, ResolverExceptionIsAProblem) {
  const auto broken = [](const std::string&) -> NameLookup { throw std::bad_alloc(); };
  EXPECT_FALSE(look_up("any.example", 10s, broken).problem.empty());
}

}  // namespace
}  // namespace vlcache
