// Reads and writes a conversation as the page of `serve` exports it: one JSON file, images included.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/prompt/document_reader.h"
#include "engine/prompt/encoded_image.h"
#include "engine/prompt/video_input.h"

namespace vlcache {

// A video of a conversation, probed once. Its frames are decoded with each question.
struct ChatVideo {
  VideoRequest request;
  InputVideo input;
};

struct ChatTurn {
  std::string question;
  std::vector<EncodedImage> images;        // the engine caches what it has decoded
  std::vector<DocumentRequest> documents;  // PDFs of a file, whose pages come before the images; not read yet
  std::vector<ChatVideo> videos = {};      // after the images; `input` of a file's is not set yet
  std::string answer;
  std::string kv, budget;  // what answered; empty: not known
};

struct ConversationFile {
  std::string name;
  std::string system;  // the page neither writes nor reads it
  std::vector<ChatTurn> turns;
};

// now_ms: since 1970, as the time of the file. Throws Error for an image that cannot be decoded.
std::string conversation_text(const ConversationFile& conversation, int64_t now_ms);
// Of two answers side by side the first; questions without an answer are left out, as the page does; text files stand
// in their question. Throws Error(kInput) that begins with `where`.
ConversationFile parse_conversation(std::string_view text, const std::string& where);

}  // namespace vlcache
