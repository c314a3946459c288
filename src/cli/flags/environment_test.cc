// Variables of Kubernetes, of typos and of errors.
#include "cli/flags/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace vlcache {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

const std::vector<std::string> kKnown{"VLCACHE_THREADS", "VLCACHE_SERVE_OPS_PORT", "VLCACHE_SERVE_PORT",
                                      "VLCACHE_KV_BUDGET", "VLCACHE_BENCH_BATCH"};

TEST(Environment, VariablesOfAServiceAreKubernetes) {
  for (const auto& [name, value] : {std::pair{"VLCACHE_SERVE_PORT", "tcp://10.96.0.7:8080"},
                                    {"VLCACHE_PORT", "udp://10.96.0.7:53"},
                                    {"VLCACHE_SERVE_OPS_PORT", "tcp://[fd00::7]:8080"},
                                    {"VLCACHE_SERVE_SERVICE_HOST", "10.96.0.7"},
                                    {"VLCACHE_SERVICE_PORT", "8080"},
                                    {"VLCACHE_SERVE_SERVICE_PORT_HTTP_ALT", "8080"},
                                    {"VLCACHE_SERVE_PORT_8080_TCP", "tcp://10.96.0.7:8080"},
                                    {"VLCACHE_SERVE_PORT_8080_TCP_PROTO", "tcp"},
                                    {"VLCACHE_SERVE_PORT_8080_TCP_PORT", "8080"},
                                    {"VLCACHE_SERVE_PORT_53_UDP_ADDR", "10.96.0.7"},
                                    {"VLCACHE_X_PORT_9_SCTP", "sctp://10.96.0.7:9"}}) {
    EXPECT_TRUE(is_of_kubernetes({name, value})) << name;
    EXPECT_THAT(unknown_variables(std::vector<Variable>{{name, value}}, kKnown), IsEmpty()) << name;
  }
  for (const auto& [name, value] : {std::pair{"VLCACHE_SERVE_PORT", "8080"},
                                    {"VLCACHE_PORT", "9000"},
                                    {"VLCACHE_MODEL", "tcp://x"},
                                    {"VLCACHE_PORT_X_TCP", "a"},
                                    {"VLCACHE_PORT_80_TCP_X", "a"}}) {
    EXPECT_FALSE(is_of_kubernetes({name, value})) << name;
  }
}

TEST(Environment, UnknownVariablesAreNamedWithTheNearest) {
  const std::vector<Variable> set{{"VLCACHE_PORT", "9000"},     {"VLCACHE_THREDS", "2"},
                                  {"VLCACHE_RUN_THREADS", "2"}, {"VLCACHE_KV_BUDGET", "0.1"},
                                  {"VLCACHE_NONSENSE", "1"},    {"VLCACHE_TEST_FULL", "1"},
                                  {"VLCACHE_SOAK_ROUNDS", "3"}, {"VLCACHE_UPDATE_DOCS", "1"}};
  EXPECT_THAT(unknown_variables(set, kKnown),
              ElementsAre("VLCACHE_PORT is not the variable of a flag (did you mean 'VLCACHE_SERVE_PORT'?)",
                          "VLCACHE_THREDS is not the variable of a flag (did you mean 'VLCACHE_THREADS'?)",
                          "VLCACHE_RUN_THREADS is not the variable of a flag (did you mean 'VLCACHE_THREADS'?)",
                          "VLCACHE_NONSENSE is not the variable of a flag"));
}

TEST(Environment, ErrorsNameTheVariableOfTheirFlag) {
  const std::vector<FlagVariable> set{{"--kv-budget", {"VLCACHE_KV_BUDGET", "lots"}},
                                      {"--model", {"VLCACHE_MODEL", "/no/such"}},
                                      {"--top-k", {"VLCACHE_TOP_K", "3"}}};
  EXPECT_EQ(origin_of_error("--kv-budget: expected a share", set), " (set by VLCACHE_KV_BUDGET)");
  EXPECT_EQ(origin_of_error("kv_budget: expected a share", set), " (set by VLCACHE_KV_BUDGET)");
  EXPECT_EQ(origin_of_error("KV budget: expected a share, found 'lots'", set), " (set by VLCACHE_KV_BUDGET)");
  EXPECT_EQ(origin_of_error("lots of 3 things", set), "");
  EXPECT_EQ(origin_of_error("/no/such: no such folder", set), " (set by VLCACHE_MODEL)");
  EXPECT_EQ(origin_of_error("--kv-budget-of: expected 3, found --kv", set), "");
  EXPECT_EQ(origin_of_error("VLCACHE_TOP_K: --top-k: 3 is too small", set), "");
}

}  // namespace
}  // namespace vlcache
