// Fuzzes files of conversations: one that is read stays the same when it is written and read again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "base/error.h"
#include "base/fuzz_target.h"
#include "cli/commands/conversation_file.h"

FUZZ_TARGET(conversation_file) {
  using namespace vlcache;
  try {
    ConversationFile conversation = parse_conversation({reinterpret_cast<const char*>(data), size}, "fuzz");
    for (ChatTurn& turn : conversation.turns) {
      turn.images.clear();     // decoding has a target of its own
      turn.documents.clear();  // written as images
    }
    const std::string text = conversation_text(conversation, 1);
    if (conversation_text(parse_conversation(text, "fuzz"), 1) != text) std::abort();
  } catch (const Error&) {
  }
  return 0;
}
