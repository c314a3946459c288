#include "engine/prompt/encoded_image.h"

namespace vlcache {

EncodedImage read_encoded_image(const std::filesystem::path& path) {
  return {.bytes = std::make_shared<const std::vector<std::byte>>(read_image_file(path)),
          .where = path.string(),
          .limits = {},
          .options = {},
          .owner = ""};
}

}  // namespace vlcache
