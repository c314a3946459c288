// A job that never changes: tools/budgets.py compiles this unit and runs it, and divides what tests and builds cost by
// what the job costs on the same machine at the same time. Half of the time goes into templates, half into the loop.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <regex>
#include <set>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

namespace {

template <int kKind>
struct Value {
  std::variant<int, double, std::string, std::vector<int>> held;
  bool operator<(const Value& other) const { return held < other.held; }
};

template <int kKind>
size_t use(const std::string& text) {
  std::map<Value<kKind>, std::set<std::string>> sorted;
  std::unordered_map<std::string, std::function<size_t(size_t)>> by_name;
  std::vector<std::shared_ptr<Value<kKind>>> all;
  const std::regex word("([a-z]+)([0-9]*)" + std::to_string(kKind));
  for (std::sregex_iterator i(text.begin(), text.end(), word), end; i != end; ++i) {
    sorted[Value<kKind>{(*i)[1].str()}].insert(i->str());
    by_name.emplace((*i)[1].str(), [n = sorted.size()](size_t k) { return k + n; });
    all.push_back(std::make_shared<Value<kKind>>(Value<kKind>{kKind}));
  }
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return *a < *b; });
  size_t sum = all.size();
  for (const auto& [name, add] : by_name) sum = add(sum) + name.size();
  return sum + sorted.size();
}

uint64_t random_bits(uint64_t& state) {
  state ^= state << 13;
  state ^= state >> 7;
  return state ^= state << 17;
}

}  // namespace

int main() {
  const std::string text = "one1 two22 three3 four4 five5";
  size_t sum = use<1>(text) + use<2>(text);
  uint64_t state = 1;
  std::vector<float> row(4096), other(4096);
  for (int round = 0; round < 45; ++round) {
    std::vector<uint64_t> values(400'000);
    for (uint64_t& v : values) v = random_bits(state);
    std::sort(values.begin(), values.end());
    sum += values[1000] & 7;
    for (size_t i = 0; i < row.size(); ++i) {
      row[i] = static_cast<float>(values[i] & 1023);
      other[i] = static_cast<float>(values[2 * i] & 1023);
    }
    for (int repeat = 0; repeat < 6000; ++repeat) {
      float dot = 0;
      for (size_t i = 0; i < row.size(); ++i) dot += row[i] * other[i];
      row[static_cast<size_t>(repeat) % row.size()] += dot > 1e9F ? 1.0F : 2.0F;
    }
    sum += static_cast<size_t>(row[static_cast<size_t>(round)]);
  }
  std::printf("%zu\n", sum);
  return 0;
}
