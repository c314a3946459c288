// ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace, BPEDecoder, WordPiece, Sequence.
#include "io/tokenizer/decoder.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"
#include "io/tokenizer/normalizer.h"

namespace vlcache {
namespace {

constexpr DecodeStage::Part kWhole{.begins = true, .ends = true};

// A stage that works on whole tokens, so it waits for the rest of a token that arrives in parts.
class WholeTokenStage : public DecodeStage {
 public:
  explicit WholeTokenStage(DecodeStage& next) : next_(next) {}
  void push(std::string_view text, Part part) final {
    if (part.begins && part.ends) {
      token(text);
      return;
    }
    if (part.begins) waiting_.clear();
    waiting_ += text;
    if (part.ends) token(waiting_);
  }
  void finish() override { next_.finish(); }

 protected:
  virtual void token(std::string_view text) = 0;
  DecodeStage& next_;

 private:
  std::string waiting_;
};

template <typename Stage>
class SimpleStep : public DecodeStep {
 public:
  std::unique_ptr<DecodeStage> start(DecodeStage& next) const override { return std::make_unique<Stage>(next); }
};

// A step that knows which bytes a token stands for.
template <typename Stage>
class BytesStep : public SimpleStep<Stage> {
 public:
  bool bytes(std::string_view token, std::string& out) const override { return Stage::append_bytes(token, out); }
};

// Passes its output on as one token.
class FusingStage : public DecodeStage {
 public:
  explicit FusingStage(DecodeStage& next) : next_(next) {}
  void finish() override {
    next_.push({}, {.begins = !begun_, .ends = true});
    next_.finish();
  }

 protected:
  void emit(std::string_view text) {
    if (text.empty()) return;
    next_.push(text, {.begins = !begun_, .ends = false});
    begun_ = true;
  }
  DecodeStage& next_;

 private:
  bool begun_ = false;
};

class FuseStage : public FusingStage {
 public:
  using FusingStage::FusingStage;
  void push(std::string_view text, Part) override { emit(text); }
};

// Maps characters back to bytes, bytes to text. A token with a character that maps to no byte is taken as UTF-8.
class ByteLevelStage : public FusingStage {
 public:
  using FusingStage::FusingStage;
  static bool append_bytes(std::string_view token, std::string& out) {
    std::string bytes;
    for (size_t i = 0; i < token.size();) {
      const int byte = byte_of_character(next_code_point(token, i));
      if (byte < 0) {
        bytes = token;
        break;
      }
      bytes += static_cast<char>(byte);
    }
    out += bytes;
    return true;
  }
  void push(std::string_view text, Part part) override {
    if (part.begins) waiting_.clear();
    waiting_ += text;
    if (!part.ends) return;
    std::string bytes, out;
    append_bytes(waiting_, bytes);
    assembler_.push(bytes, out);
    emit(out);
  }
  void finish() override {
    std::string out;
    assembler_.finish(out);
    emit(out);
    FusingStage::finish();
  }

 private:
  std::string waiting_;
  Utf8Assembler assembler_;
};

// <0xE2> and the like: a run of them is text if it is valid as a whole, else a U+FFFD for every one, so the stage waits
// for the end of a run.
class ByteFallbackStage : public WholeTokenStage {
 public:
  using WholeTokenStage::WholeTokenStage;
  static bool append_bytes(std::string_view token, std::string& out) {
    const int byte = byte_of(token);
    if (byte >= 0) out += static_cast<char>(byte);
    return byte >= 0;
  }
  void finish() override {
    flush();
    next_.finish();
  }

 protected:
  void token(std::string_view text) override {
    const int byte = byte_of(text);
    if (byte >= 0) {
      run_ += static_cast<char>(byte);
      return;
    }
    flush();
    next_.push(text, kWhole);
  }

 private:
  static int digit(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
  }
  static int byte_of(std::string_view text) {
    if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return -1;
    if (text[3] == '+') return digit(text[4]);  // the reference's number parser accepts a sign
    return digit(text[3]) < 0 || digit(text[4]) < 0 ? -1 : digit(text[3]) * 16 + digit(text[4]);
  }
  void flush() {
    if (run_.empty()) return;
    if (is_valid_utf8(run_)) {
      next_.push(run_, kWhole);
    } else {
      for (size_t i = 0; i < run_.size(); ++i) next_.push("\xEF\xBF\xBD", kWhole);
    }
    run_.clear();
  }
  std::string run_;
};

class ReplaceStep : public DecodeStep {
 public:
  ReplaceStep(Regex pattern, std::string content) : pattern_(std::move(pattern)), content_(std::move(content)) {}
  std::unique_ptr<DecodeStage> start(DecodeStage& next) const override { return std::make_unique<Stage>(*this, next); }

 private:
  class Stage : public WholeTokenStage {
   public:
    Stage(const ReplaceStep& step, DecodeStage& next) : WholeTokenStage(next), step_(step) {}

   protected:
    void token(std::string_view text) override {
      step_.pattern_.cut(text, matches_);
      std::string out;
      for (const TextMatch& m : matches_)
        out += m.is_match ? std::string_view(step_.content_) : text.substr(m.start, m.end - m.start);
      next_.push(out, kWhole);
    }

   private:
    const ReplaceStep& step_;
    std::vector<TextMatch> matches_;
  };
  Regex pattern_;
  std::string content_;
};

// Removes the character `content` up to `left` times from the start and `right` times from the end of each token.
class StripStep : public DecodeStep {
 public:
  StripStep(std::string content, int64_t left, int64_t right)
      : content_(std::move(content)), left_(left), right_(right) {}
  std::unique_ptr<DecodeStage> start(DecodeStage& next) const override { return std::make_unique<Stage>(*this, next); }

 private:
  class Stage : public DecodeStage {
   public:
    Stage(const StripStep& step, DecodeStage& next) : step_(step), next_(next) {}
    void push(std::string_view text, Part part) override {
      if (part.begins) {
        to_strip_ = step_.left_;
        held_ = 0;
      }
      const std::string& c = step_.content_;
      while (to_strip_ > 0 && text.starts_with(c)) {
        text.remove_prefix(c.size());
        --to_strip_;
      }
      if (!text.empty()) to_strip_ = 0;
      // Trailing characters that may turn out to be the last ones are held back.
      std::string out;
      std::string_view body = text;
      int64_t trailing = 0;
      while (trailing < step_.right_ && body.ends_with(c)) {
        body.remove_suffix(c.size());
        ++trailing;
      }
      const int64_t total = held_ + trailing;
      const int64_t release = body.empty() ? std::max<int64_t>(0, total - step_.right_) : held_;
      for (int64_t k = 0; k < release; ++k) out += c;
      out += body;
      held_ = body.empty() ? total - release : trailing;
      if (part.ends) held_ = 0;
      next_.push(out, part);
    }
    void finish() override { next_.finish(); }

   private:
    const StripStep& step_;
    DecodeStage& next_;
    int64_t to_strip_ = 0;
    int64_t held_ = 0;
  };
  std::string content_;
  int64_t left_, right_;
};

// U+2581 is a space, removed in the first token if one was put before the text.
class MetaspaceStep : public DecodeStep {
 public:
  MetaspaceStep(std::string replacement, bool prepended)
      : replacement_(std::move(replacement)), prepended_(prepended) {}
  std::unique_ptr<DecodeStage> start(DecodeStage& next) const override { return std::make_unique<Stage>(*this, next); }

 private:
  class Stage : public DecodeStage {
   public:
    Stage(const MetaspaceStep& step, DecodeStage& next) : step_(step), next_(next) {}
    void push(std::string_view text, Part part) override {
      std::string out;
      for (size_t i = 0; i < text.size();) {
        if (text.substr(i).starts_with(step_.replacement_)) {
          if (!first_ || !step_.prepended_) out += ' ';
          i += step_.replacement_.size();
        } else {
          out += text[i++];
        }
      }
      next_.push(out, part);
      if (part.ends) first_ = false;
    }
    void finish() override { next_.finish(); }

   private:
    const MetaspaceStep& step_;
    DecodeStage& next_;
    bool first_ = true;
  };
  std::string replacement_;
  bool prepended_;
};

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  if (from.empty()) return;
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

// "</w>" ends a word: a space, except in the last token, so one token is held back.
class BpeDecoderStep : public DecodeStep {
 public:
  explicit BpeDecoderStep(std::string suffix) : suffix_(std::move(suffix)) {}
  std::unique_ptr<DecodeStage> start(DecodeStage& next) const override { return std::make_unique<Stage>(*this, next); }

 private:
  class Stage : public WholeTokenStage {
   public:
    Stage(const BpeDecoderStep& step, DecodeStage& next) : WholeTokenStage(next), step_(step) {}
    void finish() override {
      release("");
      next_.finish();
    }

   protected:
    void token(std::string_view text) override {
      release(" ");
      held_ = text;
    }

   private:
    void release(std::string_view replacement) {
      if (!held_) return;
      replace_all(*held_, step_.suffix_, replacement);
      next_.push(*held_, kWhole);
      held_.reset();
    }
    const BpeDecoderStep& step_;
    std::optional<std::string> held_;
  };
  std::string suffix_;
};

class WordPieceStep : public DecodeStep {
 public:
  WordPieceStep(std::string prefix, bool cleanup) : prefix_(std::move(prefix)), cleanup_(cleanup) {}
  std::unique_ptr<DecodeStage> start(DecodeStage& next) const override { return std::make_unique<Stage>(*this, next); }

 private:
  class Stage : public WholeTokenStage {
   public:
    Stage(const WordPieceStep& step, DecodeStage& next) : WholeTokenStage(next), step_(step) {}

   protected:
    void token(std::string_view text) override {
      std::string out(text);
      if (!first_) out = text.starts_with(step_.prefix_) ? out.substr(step_.prefix_.size()) : " " + out;
      first_ = false;
      constexpr std::pair<std::string_view, std::string_view> kCleanup[] = {
          {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
          {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
      if (step_.cleanup_) {
        for (const auto& [from, to] : kCleanup) replace_all(out, from, to);
      }
      next_.push(out, kWhole);
    }

   private:
    const WordPieceStep& step_;
    bool first_ = true;
  };
  std::string prefix_;
  bool cleanup_;
};

class JoinWithSpacesStage : public DecodeStage {
 public:
  explicit JoinWithSpacesStage(DecodeStage& next) : next_(next) {}
  void push(std::string_view text, Part part) override {
    if (!first_) next_.push(" ", kWhole);
    first_ = false;
    next_.push(text, part);
  }
  void finish() override { next_.finish(); }

 private:
  DecodeStage& next_;
  bool first_ = true;
};

std::string one_character(const JsonObject& object, std::string_view key, std::string_view fallback) {
  std::string s = object.string(key, fallback);
  size_t length = 0;
  if (!s.empty()) next_code_point(s, length);
  if (length == 0 || length != s.size()) object.fail(key, "one character");
  return s;
}

int64_t strip_count(const JsonObject& object, std::string_view key) {
  const int64_t n = object.integer(key, 0);
  if (n < 0) object.fail(key, "a count");
  return n;
}

void parse_steps(const Json& json, const std::string& where, std::vector<std::unique_ptr<DecodeStep>>& steps) {
  const JsonObject object(json, where);
  const std::string type = object.string("type");
  if (type == "Sequence") {
    const Json* list = object.find("decoders");
    if (list == nullptr || !list->is_array()) object.fail("decoders", "a list");
    for (size_t k = 0; k < list->size(); ++k) parse_steps((*list)[k], where + "[" + std::to_string(k) + "]", steps);
  } else if (type == "ByteLevel") {
    steps.push_back(std::make_unique<BytesStep<ByteLevelStage>>());
  } else if (type == "ByteFallback") {
    steps.push_back(std::make_unique<BytesStep<ByteFallbackStage>>());
  } else if (type == "Fuse") {
    steps.push_back(std::make_unique<SimpleStep<FuseStage>>());
  } else if (type == "Replace") {
    steps.push_back(std::make_unique<ReplaceStep>(parse_pattern(object, "pattern"), object.string("content")));
  } else if (type == "Strip") {
    steps.push_back(std::make_unique<StripStep>(one_character(object, "content", " "), strip_count(object, "start"),
                                                strip_count(object, "stop")));
  } else if (type == "Metaspace") {
    const bool prepended =
        object.string("prepend_scheme", "always") != "never" && object.boolean("add_prefix_space", true);
    steps.push_back(std::make_unique<MetaspaceStep>(one_character(object, "replacement", "\xE2\x96\x81"), prepended));
  } else if (type == "BPEDecoder") {
    steps.push_back(std::make_unique<BpeDecoderStep>(object.string("suffix", "</w>")));
  } else if (type == "WordPiece") {
    steps.push_back(std::make_unique<WordPieceStep>(object.string("prefix", "##"), object.boolean("cleanup", true)));
  } else {
    throw Error(
        ErrorCode::kUnsupported,
        where + ": decoder type " + shown_json(Json(type)) +
            " is not supported (supported: ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace, BPEDecoder, "
            "WordPiece, Sequence)");
  }
}

}  // namespace

DecoderSpec::DecoderSpec(const Json* json, const std::string& where) {
  if (json == nullptr || json->is_null()) {
    steps_.push_back(std::make_unique<SimpleStep<JoinWithSpacesStage>>());
  } else {
    parse_steps(*json, where, steps_);
  }
}

bool DecoderSpec::bytes(std::string_view token, std::string& out) const {
  return std::ranges::any_of(steps_, [&](const auto& step) { return step->bytes(token, out); });
}

struct DecoderRun::Sink : DecodeStage {
  void push(std::string_view text, Part) override { out += text; }
  void finish() override {}
  std::string out;
};

DecoderRun::DecoderRun(const DecoderSpec& spec) : sink_(std::make_unique<Sink>()) {
  DecodeStage* next = sink_.get();
  for (size_t k = spec.steps().size(); k-- > 0;) {
    stages_.push_back(spec.steps()[k]->start(*next));
    next = stages_.back().get();
  }
}

DecoderRun::~DecoderRun() = default;
DecoderRun::DecoderRun(DecoderRun&&) noexcept = default;

void DecoderRun::push(std::string_view token) {
  DecodeStage& first = stages_.empty() ? *sink_ : *stages_.back();
  first.push(token, kWhole);
}

void DecoderRun::finish() {
  DecodeStage& first = stages_.empty() ? *sink_ : *stages_.back();
  first.finish();
}

std::string DecoderRun::take() { return std::exchange(sink_->out, {}); }

}  // namespace vlcache
