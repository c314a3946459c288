// -i and -v: images, PDFs and videos of a question.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/flags/flags.h"

namespace vlcache {

struct MediaFlags {
  std::vector<std::string> images, videos;
  // In which order they were given: 'i' an image, 'v' a video. Others came from elsewhere than the
  // command line, and comes last.
  std::function<std::string()> order;
};

// Adds -i and -v. where: ends both help texts, such as "stands before the text". All must outlive the parse.
void add_media_flags(const Command& command, MediaFlags& flags, const std::string& where);

}  // namespace vlcache
