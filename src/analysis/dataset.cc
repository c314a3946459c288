// Lines are read one by one: an invalid line is left out, the others remain.
#include "analysis/dataset.h"

#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/json.h"

namespace vlcache {
namespace {

constexpr size_t kShownProblems = 3;

std::vector<std::string> strings(const JsonObject& o, std::string_view many, std::string_view one) {
  std::vector<std::string> out;
  if (o.has(one)) out.push_back(o.string(one));
  const Json* list = o.find(many);
  if (list == nullptr) return out;
  if (!list->is_array()) o.fail(many, "a list of strings");
  for (const Json& item : *list) {
    if (!item.is_string()) o.fail(many, "a list of strings");
    out.push_back(item.get<std::string>());
  }
  return out;
}

EvalTurn read_turn(const JsonObject& o) {
  EvalTurn turn{.question = o.string("question"), .answers = strings(o, "answers", "answer")};
  if (turn.answers.empty()) throw Error(ErrorCode::kInput, o.where() + ": expected answers or answer, found neither");
  return turn;
}

EvalSample read_sample(const JsonObject& o, const std::filesystem::path& folder, Metric metric) {
  EvalSample sample{.id = {}, .kind = o.string("kind", ""), .metric = metric, .images = {}, .turns = {}};
  if (o.has("metric")) {
    const auto named = metric_from_name(o.string("metric"));
    if (!named) o.fail("metric", "one of " + metric_names());
    sample.metric = *named;
  }
  if (const Json* id = o.find("id")) sample.id = id->is_string() ? id->get<std::string>() : id->dump();
  for (const std::string& image : strings(o, "images", "image")) {
    if (image.find('\0') != std::string::npos) o.fail("images", "paths without NUL characters");
    sample.images.push_back(folder / image);
  }
  const Json* turns = o.find("turns");
  if (turns == nullptr) {
    sample.turns.push_back(read_turn(o));
    return sample;
  }
  if (!turns->is_array() || turns->empty()) o.fail("turns", "a list of {question, answers}");
  for (const Json& turn : *turns) sample.turns.push_back(read_turn(JsonObject(turn, o.where() + ": turns")));
  return sample;
}

}  // namespace

EvalDataset parse_dataset(const std::string& text, const std::filesystem::path& folder, const std::string& file,
                          Metric metric) {
  EvalDataset data;
  std::set<std::string> ids;
  data.problems = read_json_lines(text, file, [&](const Json& json, const std::string& where, int number) {
    EvalSample sample = read_sample(JsonObject(json, where), folder, metric);
    if (sample.id.empty()) sample.id = std::to_string(number);
    if (!ids.insert(sample.id).second) {
      throw Error(ErrorCode::kInput, where + ": expected an id of its own, found '" + sample.id + "' again");
    }
    data.samples.push_back(std::move(sample));
  });
  if (!data.samples.empty()) return data;
  std::string found;
  for (size_t i = 0; i < std::min(data.problems.size(), kShownProblems); ++i) found += "\n  " + data.problems[i];
  throw Error(ErrorCode::kInput, file + ": expected a JSON object {images, question, answer} on every line, found " +
                                     (found.empty() ? "none" : "no good one:" + found));
}

EvalDataset load_dataset(const std::filesystem::path& path, Metric metric) {
  return parse_dataset(read_text_file(path), path.parent_path(), path.string(), metric);
}

}  // namespace vlcache
