// The program carries the files of src/server/page. cmake/EmbedPage.cmake generates their code.
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
