// Signs of a download that broke off, in a folder of Hugging Face's cache or of hf download --local-dir.
#pragma once

#include <filesystem>
#include <string>

namespace vlcache {

// Ends an error of a missing file of the model folder `dir`: "; its download is incomplete, fetch the rest with: hf
// download ORG/NAME"; "" where nothing tells that. `needed`: every model has this file, so that a downloaded folder
// without it is not whole; of others, files that are still being written tell it.
std::string incomplete_hint(const std::filesystem::path& dir, bool needed);

// Throws Error(kNotFound) for a symbolic link whose file is not there: as if the file did not exist, an answer would
// come from a part of the model.
void check_link(const std::filesystem::path& path);

}  // namespace vlcache
