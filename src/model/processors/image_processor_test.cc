// Image processors against transformers' with backend="pil", and against invalid settings.
#include "model/processors/image_processor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "io/checkpoint/checkpoint.h"
#include "io/image/pattern_testing.h"
#include "model/processors/settings.h"

namespace vlcache {
namespace {

// A checkpoint folder with the given files.
class SettingsFolder {
 public:
  explicit SettingsFolder(const std::vector<std::pair<std::string, std::string>>& files) {
    static std::atomic<int> counter{0};
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::path(testing::TempDir()) / ("vlcache_" + std::string(test->name()) + "_" +
                                                         std::to_string(counter++) + "_" + std::to_string(::getpid()));
    std::filesystem::create_directories(path_);
    for (const auto& [name, text] : files) std::ofstream(path_ / name) << text;
  }
  ~SettingsFolder() { std::filesystem::remove_all(path_); }
  SettingsFolder(const SettingsFolder&) = delete;
  SettingsFolder& operator=(const SettingsFolder&) = delete;
  Checkpoint checkpoint() const { return Checkpoint(path_); }
  std::unique_ptr<ImageProcessor> load(std::string_view model_type = "") const {
    return load_image_processor(checkpoint(), model_type);
  }

 private:
  std::filesystem::path path_;
};

std::unique_ptr<ImageProcessor> from_config(const std::string& text) {
  return SettingsFolder({{"preprocessor_config.json", text}}).load();
}

// The error of loading a processor with these settings.
std::string processor_error(const std::string& text, ErrorCode code) {
  try {
    from_config(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "accepted: " << text;
  return "";
}

void check_case(const ImageProcessor& processor, const Json& expected) {
  const Image source = pattern(expected["width"].get<int64_t>(), expected["height"].get<int64_t>());
  if (expected.contains("error")) {  // in transformers, too
    EXPECT_THROW(processor.process(source), Error);
    return;
  }
  const ImageTiles out = processor.process(source);
  const std::vector<int64_t> shape{out.n_tiles, 3, out.height, out.width};
  EXPECT_EQ(shape, expected["shape"].get<std::vector<int64_t>>());
  EXPECT_EQ(static_cast<int64_t>(out.shown.size()), out.n_tiles);
  EXPECT_EQ(sha256_hex(out.pixels.data(), static_cast<size_t>(out.tensor().bytes())),
            expected["sha256"].get<std::string>());
  EXPECT_EQ(out.original_height, source.height);
  EXPECT_EQ(out.original_width, source.width);
  if (expected.contains("grid")) {
    EXPECT_EQ(out.tile_rows, expected["grid"][0].get<int64_t>());
    EXPECT_EQ(out.tile_cols, expected["grid"][1].get<int64_t>());
  }
}

TEST(ImageProcessor, EqualsTransformersToTheBit) {
  const Json rows = load_json(std::filesystem::path(VLCACHE_SOURCE_DIR) / "tests/fixtures/images/processors.json");
  ASSERT_GT(rows.size(), 20u);
  for (const Json& row : rows) {
    SCOPED_TRACE(row["config"].dump());
    if (row["cases"][0].contains("error")) {
      processor_error(row["config"].dump(), ErrorCode::kInput);
      continue;
    }
    const std::unique_ptr<ImageProcessor> processor = from_config(row["config"].dump());
    for (const Json& expected : row["cases"]) {
      SCOPED_TRACE(expected.dump());
      check_case(*processor, expected);
    }
  }
}

// Every size has the grid of patches that transformers computes, hence the number of tokens.
TEST(ImageProcessor, GridsOfRandomSizesEqualTransformers) {
  const Json table = load_json(std::filesystem::path(VLCACHE_SOURCE_DIR) / "tests/fixtures/images/grids.json");
  const Json& sizes = table["sizes"];
  ASSERT_GE(sizes.size(), 500u);
  for (const Json& row : table["processors"]) {
    const std::string family = row["family"];
    SCOPED_TRACE(family);
    const auto patch = row["patch"].get<int64_t>();
    const SmartResize rule = {.small = family == "glm_ocr"        ? SmartResize::Small::kScaled
                                       : family == "paddleocr_vl" ? SmartResize::Small::kSideBySide
                                                                  : SmartResize::Small::kAsIs,
                              .cell = 2 * patch,
                              .n_frames = family == "glm_ocr" ? row["frames"].get<int64_t>() : 1,
                              .least = row["min_pixels"].get<int64_t>(),
                              .most = row["max_pixels"].get<int64_t>()};
    for (size_t i = 0; i < sizes.size(); ++i) {
      const auto [width, height] = sizes[i].get<std::array<int64_t, 2>>();
      SCOPED_TRACE(sizes[i].dump());
      if (row["grids"][i].is_null()) {
        EXPECT_THROW(smart_resized({height, width}, rule), Error);
        continue;
      }
      const Extent found = smart_resized({height, width}, rule);
      EXPECT_EQ(Json({found.height / patch, found.width / patch}), row["grids"][i]);
    }
  }
}

TEST(ImageProcessor, NumbersOfPixelsHaveTwoNames) {
  const auto key = [](const std::string& rest) {
    return from_config(R"({"image_processor_type": "Qwen2VLImageProcessor")" + rest + "}")->settings_key();
  };
  EXPECT_EQ(key(R"(, "min_pixels": 784, "max_pixels": 7840)"),
            key(R"(, "size": {"shortest_edge": 784, "longest_edge": 7840})"));
  EXPECT_EQ(key(R"(, "size": {"min_pixels": 784, "max_pixels": 7840})"),
            key(R"(, "size": {"shortest_edge": 784, "longest_edge": 7840})"));
  std::set<std::string> keys;
  for (const char* rest : {"", R"(, "min_pixels": 784)", R"(, "max_pixels": 784)", R"(, "patch_size": 16)",
                           R"(, "merge_size": 1)", R"(, "resample": 2)", R"(, "do_resize": false)"})
    keys.insert(key(rest));
  EXPECT_EQ(keys.size(), 7u);
  for (const char* rest : {R"("min_pixels": 0)", R"("max_pixels": 1e30)", R"("size": {"longest_edge": -1})",
                           R"("size": 5)", R"("patch_size": 0)", R"("merge_size": 5000)"}) {
    processor_error(R"({"image_processor_type": "Qwen2VLImageProcessor", )" + std::string(rest) + "}",
                    ErrorCode::kInput);
  }
}

// A request's settings replace the checkpoint's, by either name.
TEST(ImageProcessor, SettingsOfARequestReplaceNumbersOfPixels) {
  const std::string own = R"({"image_processor_type": "Qwen2VLImageProcessor", "max_pixels": 100352})";
  const SettingsFolder folder(std::vector<std::pair<std::string, std::string>>{{"preprocessor_config.json", own}});
  const auto pixels = [&](std::string_view changed) {
    const ImageTiles tiles = load_image_processor(folder.checkpoint(), "qwen2_vl", changed)->process(Image(500, 500));
    return tiles.height * tiles.width;
  };
  EXPECT_EQ(pixels(""), 308 * 308);
  EXPECT_EQ(pixels(R"({"max_pixels": 12544})"), 112 * 112);
  EXPECT_EQ(pixels(R"({"size": {"shortest_edge": 3136, "longest_edge": 12544}})"), 112 * 112);
  EXPECT_THROW(pixels(R"({"patch_size": 16})"), Error);
}

TEST(ImageProcessor, BoundsOnTokensAreBoundsOnPixels) {
  const auto own = from_config(R"({"image_processor_type": "Qwen2VLImageProcessor"})");
  const auto tokens = [&](const TokenBounds& bounds, const Image& image) {
    const ImageTiles tiles = own->bounded(bounds)->process(image);
    return tiles.height * tiles.width / (28 * 28);
  };
  const Image page(1000, 700);
  EXPECT_EQ(tokens({}, page), 36 * 25);
  EXPECT_EQ(tokens({.most = 100}, page), 11 * 8);
  EXPECT_EQ(tokens({.least = 1000}, page), 38 * 27);
  EXPECT_EQ(tokens({.fewest = true}, page), 2);                             // 56 x 56 pixels are the fewest
  EXPECT_EQ(tokens({.most = 2}, page), 1);                                  // below the settings' own least
  EXPECT_THROW(tokens({.least = int64_t{1} << 40}, Image(28, 28)), Error);  // too many pixels
}

// Of pages of A4, and of a slide.
TEST(ImageProcessor, NamesTheLongerSideThatItShows) {
  const std::pair<const char*, std::pair<int64_t, int64_t>> cases[] = {
      {R"({"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 224}})", {316, 298}},
      {R"({"image_processor_type": "SiglipImageProcessor", "size": {"height": 384, "width": 384}})", {384, 384}},
      {R"({"image_processor_type": "LlavaImageProcessor", "size": {"shortest_edge": 336}, "do_pad": true})",
       {336, 336}},
      {R"({"image_processor_type": "LlavaNextImageProcessor", "size": {"shortest_edge": 336}})", {1008, 1008}},
      {R"({"image_processor_type": "Idefics3ImageProcessor", "size": {"longest_edge": 1456}})", {1456, 1456}},
      {R"({"image_processor_type": "Idefics3ImageProcessor", "do_image_splitting": false})", {364, 364}},
      {R"({"image_processor_type": "Qwen2VLImageProcessor", "max_pixels": 1003520})", {1192, 1157}},
      {R"({"image_processor_type": "ViTImageProcessor", "do_resize": false})", {2048, 2048}}};
  for (const auto& [config, sides] : cases) {
    const std::unique_ptr<ImageProcessor> processor = from_config(config);
    EXPECT_EQ(processor->longer_side(595, 842), sides.first) << config;
    EXPECT_EQ(processor->longer_side(960, 720), sides.second) << config;
  }
}

TEST(ImageProcessor, IsReadFromEveryKnownFile) {
  const std::string clip = R"({"image_processor_type": "CLIPImageProcessor"})";
  const std::string siglip = R"({"image_processor_type": "SiglipImageProcessor"})";
  const auto type_of = [](const SettingsFolder& checkpoint) {
    const std::string key = checkpoint.load()->settings_key();
    return key.substr(0, key.find(':'));
  };
  EXPECT_EQ(type_of(SettingsFolder({{"preprocessor_config.json", clip}})), "CLIP");
  EXPECT_EQ(type_of(SettingsFolder({{"processor_config.json", R"({"image_processor": )" + siglip + "}"}})), "SigLIP");
  // The nested one wins; without it the separate file counts.
  EXPECT_EQ(type_of(SettingsFolder({{"processor_config.json", R"({"image_processor": )" + siglip + "}"},
                                    {"preprocessor_config.json", clip}})),
            "SigLIP");
  EXPECT_EQ(
      type_of(SettingsFolder({{"processor_config.json", R"({"patch_size": 14})"}, {"preprocessor_config.json", clip}})),
      "CLIP");
  const std::string nameless = "{}";  // then the model's own type counts
  EXPECT_TRUE(SettingsFolder({{"preprocessor_config.json", nameless}})
                  .load("llava_next")
                  ->settings_key()
                  .starts_with("LLaVA-NeXT:"));
  for (const char* suffix : {"", "Fast", "Pil"}) {
    EXPECT_EQ(type_of(SettingsFolder({{"preprocessor_config.json", R"({"image_processor_type": "ViTImageProcessor)" +
                                                                       std::string(suffix) + "\"}"}})),
              "ViT");
  }
}

TEST(ImageProcessor, ErrorsNameTheUnsupportedProcessor) {
  const std::string unknown =
      processor_error(R"({"image_processor_type": "Kosmos9ImageProcessor"})", ErrorCode::kUnsupported);
  EXPECT_NE(unknown.find("Kosmos9ImageProcessor"), std::string::npos);
  EXPECT_NE(unknown.find("SmolVLMImageProcessor"), std::string::npos);
  EXPECT_NE(processor_error("{}", ErrorCode::kUnsupported).find("found none"), std::string::npos);
  processor_error("[]", ErrorCode::kInput);
  processor_error("{", ErrorCode::kInput);
  EXPECT_THROW(SettingsFolder({}).load(), Error);

  const auto clip = [](const std::string& rest) {
    return R"({"image_processor_type": "CLIPImageProcessor", )" + rest + "}";
  };
  for (const char* rest :
       {R"("size": -1)", R"("size": "224")", R"("size": {"short": 3})", R"("size": {"height": 3})", R"("size": 1e9)",
        R"("size": {"height": 3.5, "width": 3})", R"("size": [1, 2, 3])", R"("crop_size": {"shortest_edge": 3})",
        R"("resample": 9)", R"("image_mean": [1, 2])", R"("image_std": "a")", R"("image_std": [0, 1, 1])",
        R"("do_resize": 3)", R"("rescale_factor": "x")"}) {
    processor_error(clip(rest), ErrorCode::kInput);
  }
  // Sizes that one class has and another lacks, found before there is an image; the error names the file.
  for (const std::string type : {"CLIP", "Siglip", "LlavaNext"}) {
    EXPECT_THAT(
        processor_error(R"({"size": {"longest_edge": 30}, "image_processor_type": ")" + type + "ImageProcessor\"}",
                        ErrorCode::kInput),
        testing::HasSubstr("preprocessor_config.json: "));
  }
  EXPECT_THAT(
      processor_error(
          R"({"image_processor_type": "Qwen2VLImageProcessor", "size": {"shortest_edge": 9, "longest_edge": 8}})",
          ErrorCode::kInput),
      testing::HasSubstr("size: shortest_edge: expected pixels of at most longest_edge (8), found 9"));
  for (const char* rest :
       {R"("image_grid_pinpoints": [])", R"("image_grid_pinpoints": [[336]])", R"("image_grid_pinpoints": [[0, 336]])",
        R"("image_grid_pinpoints": 3)", R"("image_grid_pinpoints": [[1e9, 1]])"}) {
    processor_error(R"({"image_processor_type": "LlavaNextImageProcessor", )" + std::string(rest) + "}",
                    ErrorCode::kInput);
  }
  processor_error(R"({"image_processor_type": "Idefics3ImageProcessor", "size": {"shortest_edge": 30}})",
                  ErrorCode::kInput);
  processor_error(
      R"({"image_processor_type": "Idefics3ImageProcessor", "max_image_size": {"height": 30, "width": 30}})",
      ErrorCode::kInput);
}

TEST(ImageProcessor, RejectsImagesThatWouldBecomeTooLarge) {
  const auto processor =
      from_config(R"({"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 4000}})");
  EXPECT_THROW(processor->process(Image(1, 200000)), Error);
  const auto tiny_tiles = from_config(
      R"({"image_processor_type": "LlavaNextImageProcessor", "crop_size": 1, "image_grid_pinpoints": [[8192, 8192]]})");
  EXPECT_THROW(tiny_tiles->process(Image(100, 100)), Error);
  const auto many_tiles = from_config(
      R"({"image_processor_type": "Idefics3ImageProcessor", "size": {"height": 5098, "width": 5098}, "max_image_size": {"longest_edge": 8}})");
  EXPECT_THROW(many_tiles->process(Image(100, 100)), Error);
  const auto square = from_config(R"({"image_processor_type": "LlavaImageProcessor", "do_pad": true})");
  EXPECT_THROW(square->process(Image(262144, 1)), Error);  // 206 GB as a square
  EXPECT_EQ(square->process(Image(2000, 1)).n_tiles, 1);
}

// Every size alone is within the limits, but resizing each of 577 tiles to 64 million pixels would take minutes.
TEST(ImageProcessor, RejectsTilesWithTooManyResizedPixels) {
  const auto processor = from_config(R"({"image_processor_type": "LlavaNextImageProcessor", "size": 8000,
      "crop_size": 336, "image_grid_pinpoints": [[8064, 8064]]})");
  try {
    processor->process(Image(10, 10));
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kMemory);
    EXPECT_NE(std::string(error.what()).find("8000 x 8000 pixels at a step"), std::string::npos) << error.what();
  }
}

TEST(ImageProcessor, EveryStepCountsAgainstTheAllowance) {
  // 64 x 64 for the whole, 64 x 128 for the grid and again for its bars, then each of two tiles cut out and resized.
  const auto processor = from_config(R"({"image_processor_type": "LlavaNextImageProcessor", "size": 64,
      "do_center_crop": false, "crop_size": 64, "image_grid_pinpoints": [[64, 128]]})");
  constexpr int64_t kNeeded = 64 * 64 * 2 + 64 * 128 * 2 + 4 * 64 * 64;
  EXPECT_EQ(processor->process(Image(20, 10), PixelAllowance(kNeeded)).n_tiles, 3);
  EXPECT_THROW(processor->process(Image(20, 10), PixelAllowance(kNeeded - 1)), Error);
}

TEST(ImageProcessor, KeysDifferWhenSettingsDiffer) {
  const std::vector<std::string> settings = {R"("do_pad": true)",
                                             R"("do_pad": false)",
                                             R"("resample": 2)",
                                             R"("size": 100)",
                                             R"("size": [100, 100])",
                                             R"("do_rescale": false)",
                                             R"("do_normalize": false)",
                                             R"("image_mean": 0.5)",
                                             R"("image_std": 0.5)",
                                             R"("crop_size": 100)",
                                             R"("do_resize": false)",
                                             R"("do_center_crop": false)",
                                             R"("rescale_factor": 0.0039)",
                                             R"("image_mean": [0.5, 0.5, 0.50000001])"};
  std::set<std::string> keys;
  for (const std::string& setting : settings) {
    keys.insert(from_config(R"({"image_processor_type": "LlavaImageProcessor", )" + setting + "}")->settings_key());
  }
  EXPECT_EQ(keys.size(), settings.size());
  // Spelling does not matter.
  EXPECT_EQ(from_config(R"({"image_processor_type": "CLIPImageProcessorFast", "size": 336, "crop_size": 336})")
                ->settings_key(),
            from_config(R"({"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 336},
                            "crop_size": {"height": 336, "width": 336}, "do_convert_rgb": true})")
                ->settings_key());
}

TEST(ImageProcessor, SelectsTheGridWithTheHighestResolution) {
  const std::vector<std::pair<int64_t, int64_t>> pinpoints{
      {336, 672}, {672, 336}, {672, 672}, {1008, 336}, {336, 1008}};
  using Grid = std::pair<int64_t, int64_t>;
  EXPECT_EQ(select_best_resolution(300, 600, pinpoints), Grid(336, 672));
  EXPECT_EQ(select_best_resolution(600, 300, pinpoints), Grid(672, 336));
  EXPECT_EQ(select_best_resolution(600, 600, pinpoints), Grid(672, 672));
  EXPECT_EQ(select_best_resolution(100, 1000, pinpoints), Grid(336, 1008));
  EXPECT_EQ(select_best_resolution(1, 100000, {{1, 1}}), Grid(1, 1));  // shows nothing, but is the only one
  EXPECT_THROW(select_best_resolution(1, 1, {}), Error);
}

}  // namespace
}  // namespace vlcache
