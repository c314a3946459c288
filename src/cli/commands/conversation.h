// Conversation: the turns of `vlcache chat`, whose KV is kept from one to the next.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/request_builder.h"
#include "cli/commands/conversation_file.h"
#include "cli/commands/session.h"
#include "cli/flags/command.h"
#include "cli/flags/generate_flags.h"
#include "cli/terminal/answer_printer.h"
#include "engine/request.h"

namespace vlcache {

class Conversation {
 public:
  struct Options {
    ModelFlags model;  // --kv and --kv-budget are replaced by set_policy
    std::string system;
    std::string session;     // empty: none
    bool truncates = false;  // when the context is full; false: the question is refused
    AnswerPrinter::Options printing;
  };

  // The others must outlive this object. Throws Error for fields that no question can have, and for a session that
  // cannot be opened.
  Conversation(Engine& engine, Options options, PolicyPtr policy, RequestFields fields, RequestBuilder& builder,
               const Checkpoint& checkpoint);

  // Prints the answer to standard output. If it was stopped before its first token, removes the question and returns
  // false. Throws Error: the conversation is as it was before.
  bool ask(const std::string& question);
  // Asks the last question again, with the next seed.
  void retry();
  // Only an image that the model accepts waits for the next message: another would fail that one and all later ones.
  void add_image(const std::string& path);
  void add_video(const std::string& argument);  // likewise; in the form of -v
  void undo();
  void reset();

  void print_stats() const;
  void print_policy() const;
  // From the next question on. The KV of the conversation is computed again under it.
  void set_policy(const std::string& kv, const std::string& budget);
  void print_codec() const;
  // Of its KV, likewise.
  void set_codec(const std::string& name);
  const std::string& system() const { return options_.system; }
  void set_system(const std::string& text);

  void save_to(const std::string& path) const;
  void load_from(const std::string& path);

 private:
  void open_session();
  void save_session();
  Prompt prompt() const;
  bool full(const Prompt& prompt) const;
  Prompt truncate();
  int32_t keep_kv(Prompt& shorter);
  KvCodec codec() const { return builder_.kv_codec(fields_, *policy_); }
  void forget_kv();
  void check_fits(const Prompt& prompt) const;
  void keep_if_usable(ChatTurn refused);
  void take_back();
  std::string answer(Prompt next);

  Engine& engine_;
  Options options_;
  PolicyPtr policy_;
  RequestBuilder& builder_;
  Explainer explainer_{builder_.reuse()};
  const Checkpoint& checkpoint_;
  RequestFields fields_;
  std::vector<ChatTurn> turns_;
  ChatTurn pending_;  // images and videos of the next message
  std::unique_ptr<Sequence> sequence_;
  std::unique_ptr<Session> session_;
  PrefixTokens stored_;               // by the session
  std::optional<Sha256Digest> salt_;  // of a conversation that was truncated: its KV is no other prompt's
  std::optional<GenerateResult> last_;
  int32_t n_dropped_ = 0;  // tokens that the model did not see
};

}  // namespace vlcache
