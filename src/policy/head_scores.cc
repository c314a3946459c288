#include "policy/head_scores.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "policy/parameters.h"

namespace vlcache {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{64} << 20;
constexpr size_t kMaxLayers = 4096, kMaxHeads = 4096;

bool is_finite_float(double x) { return std::abs(x) <= std::numeric_limits<float>::max(); }

void check_size(const HeadMatrix& m, std::string_view where) {
  const auto too_long = [](const std::vector<float>& row) { return row.empty() || row.size() > kMaxHeads; };
  if (m.empty() || m.size() > kMaxLayers || std::ranges::any_of(m, too_long)) {
    throw Error(ErrorCode::kInput, std::string(where) + ": expected 1 to " + std::to_string(kMaxLayers) +
                                       " layers of 1 to " + std::to_string(kMaxHeads) + " kv heads");
  }
}

HeadMatrix matrix(const JsonObject& file, std::string_view key) {
  const auto fail = [&] { file.fail(key, "a list of finite numbers for each layer"); };
  const Json* rows = file.find(key);
  if (rows == nullptr || !rows->is_array()) fail();
  HeadMatrix m;
  for (const Json& row : *rows) {
    if (!row.is_array()) fail();
    std::vector<float>& values = m.emplace_back();
    for (const Json& x : row) {
      if (!x.is_number() || !is_finite_float(x.get<double>())) fail();
      values.push_back(x.get<float>());
    }
  }
  check_size(m, file.where() + ": " + std::string(key));
  return m;
}

// The format of numpy.savetxt: numbers with tabs or blanks between them.
HeadMatrix table(std::string_view text, std::string_view where) {
  HeadMatrix m;
  constexpr std::string_view kBlank = " \t\r";
  for (int line = 1; !text.empty(); ++line) {
    std::string_view rest = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), rest.size() + 1));
    std::vector<float> row;
    for (size_t at; (at = rest.find_first_not_of(kBlank)) != rest.npos;) {
      rest.remove_prefix(at);
      const std::string_view word = rest.substr(0, rest.find_first_of(kBlank));
      rest.remove_prefix(word.size());
      double value = 0;
      const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
      const bool whole = error == std::errc() && end == word.data() + word.size();
      if (!whole || !is_finite_float(value)) {
        throw Error(ErrorCode::kInput, std::string(where) + ", line " + std::to_string(line) +
                                           ": expected a finite number for every kv head, found '" +
                                           std::string(word.substr(0, 40)) + "'");
      }
      row.push_back(static_cast<float>(value));
    }
    if (!row.empty()) m.push_back(std::move(row));
  }
  check_size(m, where);
  return m;
}

}  // namespace

HeadScores parse_head_scores(std::string_view text, std::string_view where) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == text.npos || text[first] != '{') return {.model = {}, .echo = {}, .induction = table(text, where)};
  const Json json = parse_json(text, where);
  const JsonObject file(json, std::string(where));
  HeadScores scores{
      .model = file.string("model", ""), .echo = matrix(file, "echo"), .induction = matrix(file, "induction")};
  if (!std::ranges::equal(scores.echo, scores.induction, {}, &std::vector<float>::size, &std::vector<float>::size)) {
    throw Error(ErrorCode::kInput, std::string(where) + ": echo and induction are not of the same heads");
  }
  return scores;
}

std::string head_scores_json(const HeadScores& scores) {
  const nlohmann::ordered_json file{{"model", scores.model}, {"echo", scores.echo}, {"induction", scores.induction}};
  return file.dump() + "\n";
}

HeadFile read_head_file(Parameters& p) {
  const std::filesystem::path path = p.file("heads", kHeadFileName);
  std::error_code ec;
  if (!std::filesystem::is_regular_file(path, ec)) {
    throw Error(ErrorCode::kInput, p.name() + ": no file of head scores" +
                                       (path.empty() ? "" : " at " + path.string()) +
                                       "; `vlcache tune heads -m DIR` makes one beside the model, " + p.name() +
                                       ":heads=FILE names another");
  }
  HeadFile file{path.string(), parse_head_scores(read_text_file(path, kMaxFileBytes), path.string())};
  const std::string& made_for = file.scores.model;
  if (!made_for.empty() && p.model() != nullptr && made_for != p.model()->fingerprint()) {
    const std::string model = p.model()->where();
    throw Error(ErrorCode::kInput, file.path + ": scores of another model than " + model + "; `vlcache tune heads -m " +
                                       model + "` makes a file for it");
  }
  return file;
}

HeadSet::HeadSet(const HeadMatrix& shape) {
  for (const std::vector<float>& row : shape) in_.emplace_back(row.size(), false);
}

void HeadSet::add_best(const HeadMatrix& scores, int64_t n) {
  struct Head {
    float score;
    size_t layer, head;
  };
  std::vector<Head> heads;
  for (size_t l = 0; l < scores.size(); ++l) {
    for (size_t h = 0; h < scores[l].size(); ++h) heads.push_back({scores[l][h], l, h});
  }
  std::ranges::reverse(heads);
  std::ranges::stable_sort(heads, std::ranges::greater(), &Head::score);
  heads.resize(std::min(heads.size(), static_cast<size_t>(std::max<int64_t>(n, 0))));
  for (const Head& h : heads) in_[h.layer][h.head] = true;
}

int64_t HeadSet::n_heads() const {
  int64_t n = 0;
  for (const std::vector<bool>& row : in_) n += std::ssize(row);
  return n;
}

void HeadSet::check_fits(const PolicySlots& slots, const std::string& file) const {
  bool fits = static_cast<int32_t>(in_.size()) == slots.n_layers();
  for (int32_t l = 0; fits && l < slots.n_layers(); ++l) {
    fits = slots.n_kv_heads(l) == 0 || slots.n_kv_heads(l) == std::ssize(in_[static_cast<size_t>(l)]);
  }
  if (fits) return;
  throw Error(ErrorCode::kInput,
              file + ": scores of " + std::to_string(in_.size()) + " layers, " + std::to_string(in_[0].size()) +
                  " kv heads in the first; the model has " + std::to_string(slots.n_layers()) + " layers of " +
                  std::to_string(slots.n_kv_heads(0)) + " kv heads; `vlcache tune heads -m DIR` makes a file for it");
}

}  // namespace vlcache
