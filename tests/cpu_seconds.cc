// Records the CPU seconds of each test, those of its child processes included, as the property `cpu_seconds` in the
// program's XML: tools/results.py holds them against the limits of tools/budgets.json.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <string>

namespace vlcache {
namespace {

double cpu_seconds() {
  double seconds = 0;
  for (const int of : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage usage{};
    getrusage(of, &usage);
    for (const timeval& t : {usage.ru_utime, usage.ru_stime}) {
      seconds += static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
    }
  }
  return seconds;
}

class CpuSeconds : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& /*test*/) override { begin_ = cpu_seconds(); }
  // GoogleTest attributes properties to a test until its listeners have returned.
  void OnTestEnd(const testing::TestInfo& /*test*/) override {
    testing::Test::RecordProperty("cpu_seconds", std::to_string(cpu_seconds() - begin_));
  }

  double begin_ = 0;
};

[[maybe_unused]] const bool listening = [] {
  testing::UnitTest::GetInstance()->listeners().Append(new CpuSeconds);  // the list owns it
  return true;
}();

}  // namespace
}  // namespace vlcache
