// Registers the flags of requests, which `run`, `chat`, `serve` and `eval` share, and sums up generations.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "api/request_fields.h"
#include "api/reuse_choice.h"
#include "cli/flags/command.h"
#include "cli/flags/flags.h"
#include "engine/cache_totals.h"
#include "engine/engine.h"

namespace vlcache {

// The request fields that a command line sets.
class FieldFlags {
 public:
  // Adds the flag of a field.
  Flag add(const Command& command, const RequestField& field, Front front);
  // The fields as given; the others are not set. Throws Error(kInput or kIo) for a file that cannot be read.
  RequestFields fields() const;

 private:
  RequestFields given_;                               // of fields whose flags have their type
  std::map<const RequestField*, std::string> texts_;  // of the others
  std::map<const RequestField*, std::vector<std::string>> lists_;
};

struct GenerateFlags {
  FieldFlags request;
  ReuseFlags reuse;  // except `how`, which is a field
};

// Flags of the group Generation: all request fields that have a flag, and the flags of reuse.
void add_generate_flags(const Command& command, GenerateFlags& flags, Front front);

// The fields that the command line sets, policy and budget included. Reads the file of --json-schema.
RequestFields given_fields(const GenerateFlags& flags, const ModelFlags& model);
// What evidence of reuse must have been measured with; reads files.
AnsweringForm answering_form(const ModelFlags& flags, const Checkpoint& checkpoint);
// The choice of `--reuse`, which is among `given`, and the flags about it. Throws Error(kInput).
ReuseChoice reuse_choice(const GenerateFlags& flags, const RequestFields& given, const ModelFlags& model,
                         const Checkpoint& checkpoint);

// A line at the start, with its line break, about a checkpoint whose answers consist of special tokens: they are shown.
// "" for other checkpoints, and where the flags say whether they are shown.
std::string special_tokens_text(const Engine& engine, const RequestFields& given);

// "vision 12 ms (256 tokens) | first token 80 ms (281 prompt tokens, 3900/s) | 14 tokens, 410/s | KV 1.2 MiB (full)"
std::string summary(const GenerateResult& result);

// What --explain prints to stderr after an answer: the reused tokens and why not more, and the caches' contents, a line
// each: "prompt: 412 of 981 tokens were found (412 on disk), 569 computed (...)", "image 1: 2304 tokens found in memory
// (exact), 58.0 recomputed (mean over layers)". The meaning of --reuse follows the first answer about images, and no
// other.
class Explainer {
 public:
  // `reuse` must outlive this object.
  explicit Explainer(const ReuseChoice& reuse) : reuse_(reuse) {}
  void print(const GenerateResult& result, const CacheTotals& totals);

 private:
  const ReuseChoice& reuse_;
  bool told_ = false;  // the meaning of --reuse
};

}  // namespace vlcache
