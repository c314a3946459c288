// Runs the "decoder" of tokenizer.json as a pipeline: it receives token texts one by one, and returns text as soon as
// no later token can change it. Decoding a list and streaming are the same code.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace vlcache {

// One step working on one sequence of tokens. A token may arrive in parts once a previous step has fused tokens into
// one.
class DecodeStage {
 public:
  struct Part {
    bool begins, ends;  // the token
  };
  virtual ~DecodeStage() = default;
  virtual void push(std::string_view text, Part part) = 0;
  virtual void finish() = 0;  // no more tokens; passed on
};

class DecodeStep {
 public:
  virtual ~DecodeStep() = default;
  // If this token stands for bytes that need not be whole characters: appends them and returns true.
  virtual bool bytes(std::string_view /*token*/, std::string& /*out*/) const { return false; }
  virtual std::unique_ptr<DecodeStage> start(DecodeStage& next) const = 0;
};

// The steps of a decoder; without one, tokens are joined with spaces.
class DecoderSpec {
 public:
  DecoderSpec(const Json* json, const std::string& where);
  const std::vector<std::unique_ptr<DecodeStep>>& steps() const { return steps_; }
  // If a step knows the bytes of the token: appends them and returns true.
  bool bytes(std::string_view token, std::string& out) const;

 private:
  std::vector<std::unique_ptr<DecodeStep>> steps_;
};

// A run of the decoder.
class DecoderRun {
 public:
  explicit DecoderRun(const DecoderSpec& spec);
  ~DecoderRun();
  DecoderRun(DecoderRun&&) noexcept;
  void push(std::string_view token);
  void finish();
  std::string take();  // the text since the last call

 private:
  struct Sink;
  std::unique_ptr<Sink> sink_;
  std::vector<std::unique_ptr<DecodeStage>> stages_;  // last first
};

}  // namespace vlcache
