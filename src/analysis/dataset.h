// A file of questions about pictures: a JSON object a line.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "analysis/metrics.h"

namespace vlcache {

struct EvalTurn {
  std::string question;
  std::vector<std::string> answers;  // right ones, one at least
};

struct EvalSample {
  std::string id;  // as the line says, else its number
  std::string kind;
  Metric metric = Metric::kExact;
  std::vector<std::filesystem::path> images;
  std::vector<EvalTurn> turns;  // one at least
};

struct EvalDataset {
  std::vector<EvalSample> samples;
  std::vector<std::string> problems;  // of lines left out: "FILE: line 7: ..."
};

// Lines hold {images: [..] | image, question | turns: [{question, answers}], answers: [..] | answer, kind, metric, id}.
// Paths are relative to the file's folder. `metric` is for lines that name none. Throws Error(kNotFound / kIo) if the
// file cannot be read, Error(kInput) if no line is good.
EvalDataset load_dataset(const std::filesystem::path& path, Metric metric);
// The same of a text; `folder` is what paths are relative to, `where` names it in errors.
EvalDataset parse_dataset(const std::string& text, const std::filesystem::path& folder, const std::string& where,
                          Metric metric);

}  // namespace vlcache
