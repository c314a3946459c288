// The files of src/server/page, which the program carries. Their code is made by cmake/EmbedPage.cmake.
#pragma once

#include <string_view>
#include <vector>

namespace vlcache {

struct PageFile {
  std::string_view name;  // "style.css"
  std::string_view bytes;
};
std::vector<PageFile> page_files();

}  // namespace vlcache
