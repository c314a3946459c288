// ImageTiles: an image in the form a vision encoder reads: the pixels of its tiles, and the part of the image each of
// them shows.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/tensor.h"

namespace vlcache {

// In pixels of the decoded image; x to the right, y down, right and bottom exclusive.
struct PixelRect {
  float left = 0, top = 0, right = 0, bottom = 0;
  bool operator==(const PixelRect&) const = default;
};

// What `part`, in pixels, shows of an image of `size_x` x `size_y` pixels that itself shows `shown`.
PixelRect part_of(const PixelRect& shown, float size_x, float size_y, const PixelRect& part);

// A unit of a video: the frames that one patch covers in time. It is an image to everything but the text and the
// positions of a prompt.
struct VideoUnit {
  bool first = true;   // of its video; the others follow it in the prompt
  double seconds = 0;  // from the video's beginning to the middle of its frames
  int32_t t = 0;       // positions from the video's first unit to this one, where units share a place
  bool operator==(const VideoUnit&) const = default;
};

// The rest of an image of one tile where other cells are dropped before the encoder sees them (cell_dedup.h). A
// cell is the area that becomes one token (VisionConfig::cell()); cells are numbered line by line.
struct KeptCells {
  std::vector<int32_t> cells;   // ascending
  std::vector<int32_t> counts;  // [cells.size()] cells that each stands for, itself among them
  int64_t n_dropped = 0;
  bool weighted = false;  // attention of the language model counts each of them that often
  std::string setting;    // what chose them: under two settings nothing is shared, even if they chose the same

  bool operator==(const KeptCells&) const = default;
};

struct ImageTiles {
  // Of all tiles together; four times what Idefics3 needs for the largest image, 768 MiB as floats.
  static constexpr int64_t kMaxPixels = int64_t{1} << 26;

  // [n_tiles, n_frames, 3, height, width] f32, normalised; or empty, where only the other fields are known
  Buffer pixels;
  int64_t n_tiles = 0, height = 0, width = 0;
  int64_t n_frames = 1;                             // of a tile: in a video, the frames that one patch covers
  int64_t original_height = 0, original_width = 0;  // of the image
  // The grid that the image was split into, row by row; 0 x 0: not split.
  int64_t tile_rows = 0, tile_cols = 0;
  int64_t overview =
      -1;  // the tile that shows the whole of a split image again: first for LLaVA-NeXT, last for Idefics3
  // [n_tiles] what each tile shows: crops, resizing and padding undone. Reaches beyond the image where a tile is
  // padded.
  std::vector<PixelRect> shown;
  std::optional<VideoUnit> unit;  // set for units of videos; no part of what identifies the image
  std::optional<KeptCells> kept;  // none: every cell is encoded
  // cell_hashes() of its pixels, where it is to be compared with other images; null: it is not.
  std::shared_ptr<const std::vector<uint64_t>> hashes;

  // Allocates zeros, for n_frames as set before. Throws Error(kMemory) above kMaxPixels.
  void allocate(int64_t n, int64_t tile_height, int64_t tile_width);
  ImageTiles copy() const;
  ImageTiles without_pixels() const;
  // The cell of a row of the encoder's output.
  int32_t cell_of(int32_t row) const { return kept ? kept->cells[static_cast<size_t>(row)] : row; }
  Tensor tensor() const { return {pixels.data(), DType::kF32, {n_tiles, n_frames * 3, height, width}}; }
  // Of all but `hashes`, which follow from the rest.
  bool operator==(const ImageTiles& other) const;
};

}  // namespace vlcache
