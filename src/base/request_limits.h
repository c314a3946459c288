// Bounds of what one request may ask for, where no flag of the server sets them: each keeps the work and the memory of
// a small body small. docs/server/requests.md lists all bounds; tests/e2e/test_bounds.py tests these.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace vlcache {

// Values in a body, members and items alike. One takes 16 bytes in a list and 48 with a short name, twice that while
// its object is closed: 64 MiB of body could hold 32 million.
inline constexpr int64_t kMaxJsonValues = 4'000'000;
// Levels within one another. Real bodies and files stay below 10; reading and writing is recursive.
inline constexpr int kMaxJsonDepth = 256;
// Messages of a conversation, or items of OpenAI's responses: each is a call of the chat template's loop. No context
// holds as many turns.
inline constexpr size_t kMaxMessages = 65'536;
// Bytes of the items that an input's references name (OpenAI's responses): what a body of the default size holds.
inline constexpr int64_t kMaxRecalledBytes = int64_t{64} << 20;
// Tools of a request, and the bytes of a tool's name (Anthropic's; OpenAI's is 64).
inline constexpr size_t kMaxTools = 4096, kMaxToolNameBytes = 128;
// Texts that end an answer, and their bytes: all are looked for in every piece of it (OpenAI accepts four).
inline constexpr size_t kMaxStops = 1024, kMaxStopBytes = size_t{64} << 10;
// Prompts of a text completion.
inline constexpr size_t kMaxPrompts = 64;
// Answers to one prompt.
inline constexpr int kMaxAnswers = 16;
// Bytes of a JSON schema (OpenAI accepts 120,000 characters), and the time in which its grammar is compiled: real
// schemas take a few ms (docs/server/tools.md).
inline constexpr size_t kMaxSchemaBytes = size_t{1} << 20;
inline constexpr std::chrono::seconds kMaxGrammarTime{5};
// Documents and videos that are read at once: with a thread each, half of those that serve has then (kPatient in
// serve_flags.cc).
inline constexpr int kMaxDocuments = 8;

// Scans of a JPEG: at the largest accepted size (--max-megapixels), as many as libjpeg's scripts (10; 18 of CMYK),
// mozjpeg's search (about 16) and Photoshop's progressive files (3 to 5) have, and half as many more; of smaller images
// more, in proportion, because each scan is a pass over all pixels.
inline constexpr int64_t kMaxJpegScansAtLargest = 32, kMaxJpegScans = 500;

}  // namespace vlcache
