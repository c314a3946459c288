// Lines are read one by one: an invalid line is left out, the others remain.
#include "analysis/dataset.h"

#include <nlohmann/json.hpp>
#include <set>

#include "analysis/question_line.h"
#include "api/messages/data_uri.h"
#include "base/error.h"
#include "base/json.h"
#include "base/nearest.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr size_t kShownProblems = 3;

std::vector<std::string> right_answers(const JsonObject& o) {
  std::vector<std::string> out;
  if (o.has("answer")) out.push_back(o.string("answer"));
  const Json* list = o.find("answers");
  if (list == nullptr) return out;
  if (!list->is_array()) o.fail("answers", "a list of strings");
  for (const Json& item : *list) {
    if (!item.is_string()) o.fail("answers", "a list of strings");
    out.push_back(item.get<std::string>());
  }
  return out;
}

// Keys of `run --requests` that would change the prompt, which here is a question after its images.
void refuse_other_prompts(const JsonObject& o) {
  if (o.has("messages")) o.fail("messages", "a question or prompt instead, as this command asks no conversations");
  if (o.has("videos")) o.fail("videos", "none, as this command asks about images alone");
  if (!o.string("system", "").empty()) o.fail("system", "none, as this command asks without a system message");
  if (o.boolean("raw", false)) o.fail("raw", "false, as this command asks with the chat template");
}

EvalTurn read_turn(const JsonObject& o, Answers answers) {
  std::optional<std::string> question = asked_text(o);
  if (!question) throw Error(ErrorCode::kInput, o.where() + ": expected question or prompt, found neither");
  if (question->find("<image:1>") != std::string::npos || question->find("<image:2>") != std::string::npos) {
    throw Error(ErrorCode::kInput, o.where() + ": expected no <image:N>, as this command places images first");
  }
  EvalTurn turn{.question = *std::move(question), .answers = right_answers(o)};
  if (turn.answers.empty() && answers == Answers::kRequired) {
    throw Error(ErrorCode::kInput, o.where() + ": expected answers or answer, found neither");
  }
  return turn;
}

EvalSample read_sample(const JsonObject& o, const std::filesystem::path& folder, const DatasetNeeds& needs) {
  EvalSample sample{.id = {}, .kind = o.string("kind", ""), .metric = needs.metric, .images = {}, .turns = {}};
  refuse_other_prompts(o);
  for (const auto& [key, ignored] : o.raw().items()) {
    if (!is_mistyped(key)) continue;
    throw Error(ErrorCode::kInput, o.where() + ": unknown key '" + key + "'" + did_you_mean(key, line_keys()));
  }
  if (o.has("metric")) {
    const auto named = metric_from_name(o.string("metric"));
    if (!named) o.fail("metric", "one of " + metric_names());
    sample.metric = *named;
  }
  if (const Json* id = o.find("id")) sample.id = id->is_string() ? id->get<std::string>() : id->dump();
  for (std::string& image : image_paths(o)) {
    image = checked_path(std::move(image), o.where());
    if (is_data_uri(image)) o.fail(o.has("images") ? "images" : "image", "paths, as this command reads no data URIs");
    sample.images.emplace_back(resolved_path(folder, image));
  }
  const Json* turns = o.find("turns");
  if (turns == nullptr) {
    sample.turns.push_back(read_turn(o, needs.answers));
    return sample;
  }
  if (asked_text(o)) throw Error(ErrorCode::kInput, o.where() + ": expected either turns or a question, found both");
  if (!turns->is_array() || turns->empty()) o.fail("turns", "a list of {question, answers}");
  for (const Json& turn : *turns) {
    sample.turns.push_back(read_turn(JsonObject(turn, o.where() + ": turns"), needs.answers));
  }
  return sample;
}

OrderedJson message(std::string_view role, std::string_view text, size_t n_images) {
  if (n_images == 0) return {{"role", role}, {"content", text}};
  OrderedJson content = OrderedJson::array();
  for (size_t i = 0; i < n_images; ++i) content.push_back({{"type", "image"}});
  content.push_back({{"type", "text"}, {"text", text}});
  return {{"role", role}, {"content", std::move(content)}};
}

}  // namespace

EvalDataset parse_dataset(const std::string& text, const std::filesystem::path& folder, const std::string& file,
                          const DatasetNeeds& needs) {
  EvalDataset data;
  std::set<std::string> ids;
  data.problems = read_json_lines(text, file, [&](const Json& json, const std::string& where, int number) {
    EvalSample sample = read_sample(JsonObject(json, where), folder, needs);
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

EvalDataset load_dataset(const std::filesystem::path& path, const DatasetNeeds& needs) {
  return parse_dataset(read_text_file(path), path.parent_path(), path.string(), needs);
}

nlohmann::ordered_json conversation(const EvalSample& sample, size_t turn) {
  OrderedJson messages = OrderedJson::array();
  for (size_t i = 0; i <= turn; ++i) {
    messages.push_back(message("user", sample.turns[i].question, i == 0 ? sample.images.size() : 0));
    if (i < turn) messages.push_back(message("assistant", sample.turns[i].answers[0], 0));
  }
  return messages;
}

}  // namespace vlcache
