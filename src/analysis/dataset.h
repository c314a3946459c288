// EvalDataset: a file of questions about images, a JSON object a line.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "analysis/metrics.h"

namespace vlcache {

struct EvalTurn {
  std::string question;
  std::vector<std::string> answers;  // correct ones; empty: not known (Answers::kOptional)
};

struct EvalSample {
  std::string id;  // the line's, or its number
  std::string kind;
  Metric metric = Metric::kExact;
  std::vector<std::filesystem::path> images;
  std::vector<EvalTurn> turns;  // one at least
};

struct EvalDataset {
  std::vector<EvalSample> samples;
  std::vector<std::string> problems;  // of lines that were left out: "FILE: line 7: ..."
};

enum class Answers { kRequired, kOptional };

struct DatasetNeeds {
  Metric metric = Metric::kExact;  // default for lines that name none
  Answers answers = Answers::kRequired;
};

// Lines hold {images | image, question | prompt, answers: [..] | answer, kind, metric, id}, or, for several questions
// about the same images, turns: [{question, answers}]. Other keys of `run --requests` are ignored, but
// keys that would change the prompt are errors. Paths are relative to the file's folder (resolved_path). Throws
// Error(kNotFound / kIo) if the file cannot be read, Error(kInput) if it has no valid line.
EvalDataset load_dataset(const std::filesystem::path& path, const DatasetNeeds& needs);
// The same from text; paths are relative to `folder`, and `where` names the text in errors.
EvalDataset parse_dataset(const std::string& text, const std::filesystem::path& folder, const std::string& where,
                          const DatasetNeeds& needs);

// The messages that ask the sample's question `turn` after the earlier ones with the data's own answers.
nlohmann::ordered_json conversation(const EvalSample& sample, size_t turn);

}  // namespace vlcache
