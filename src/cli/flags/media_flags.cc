#include "cli/flags/media_flags.h"

namespace vlcache {

void add_media_flags(const Command& command, MediaFlags& flags, const std::string& where) {
  const Flag image = command
                         .add("-i,--image", flags.images,
                              "Image (JPEG, PNG, WebP, BMP, GIF, TIFF), or PDF or TIFF with optional pages: "
                              "report.pdf#3-7 (one per use; default: none). " +
                                  where)
                         .value_name("FILE")
                         .group("Basic")
                         .one_per_use();
  const Flag video =
      command
          .add("-v,--video", flags.videos,
               "Video clip (MP4, WebM, MOV, GIF, ...) or folder of numbered frames; clip.mp4,fps=1,max_frames=64 sets "
               "how many frames are sampled; the sound is ignored (one per use; default: none)")
          .value_name("FILE|DIR")
          .group("Basic")
          .one_per_use();
  flags.order = [command, image, video] {
    std::string order;
    for (const size_t flag : command.order_of({image, video})) order += flag == 0 ? 'i' : 'v';
    return order;
  };
}

}  // namespace vlcache
