// How prompts name images, and how LLaVA-NeXT lays out tiles; expected values from transformers 5.23.
#include "model/families/families.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "model/images/anyres.h"
#include "tests/testing.h"

namespace vlcache {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ModelConfig parse_config(const std::string& text) {
  return parse_model_config(parse_json(text, "config.json"), "config.json");
}

ImageTiles image(int64_t n_tiles, int64_t rows = 0, int64_t cols = 0, int64_t height = 10, int64_t width = 10) {
  ImageTiles tiles;
  tiles.allocate(n_tiles, 28, 28);
  tiles.tile_rows = rows;
  tiles.tile_cols = cols;
  tiles.original_height = height;
  tiles.original_width = width;
  return tiles;
}

template <typename... Images>
std::vector<ImageTiles> list(Images... images) {
  std::vector<ImageTiles> out;
  (out.push_back(std::move(images)), ...);
  return out;
}

std::string images(int n) {
  std::string s;
  while (n-- > 0) s += "<image>";
  return s;
}

TEST(Families, Idefics3NamesTiles) {
  const ModelConfig config = parse_config(
      R"({"model_type":"idefics3","image_token_id":5,"vision_config":{"image_size":28,"patch_size":7},"scale_factor":2})");
  const std::string around = "<fake_token_around_image>", four = images(4);
  const std::vector<ImageTiles> tiles = list(image(3, 1, 2), image(1));
  EXPECT_EQ(expand_prompt(config, "a<image>b <image>", tiles),
            "a" + around + "<row_1_col_1>" + four + around + "<row_1_col_2>" + four + "\n\n" + around + "<global-img>" +
                four + around + "b " + around + "<global-img>" + four + around);
  EXPECT_THAT(config.family->token_rows(config, tiles[0]), testing::SizeIs(12));
  EXPECT_THAT(error_of([&] { expand_prompt(config, "<image>", list(image(3, 2, 2))); }), HasSubstr("expected 5 tiles"));
}

ModelConfig grid_config(const std::string& type, const std::string& vision) {
  return parse_config(R"({"model_type":")" + type + R"(","text_config":{"hidden_size":64,"num_attention_heads":4,
      "num_key_value_heads":2,"head_dim":16,"rope_parameters":{"mrope_section":[2,3,3],"rope_type":"default"}},
      "vision_config":{)" +
                      vision + "}}");
}

ImageTiles grid(int64_t height, int64_t width, std::optional<VideoUnit> unit = {}) {
  ImageTiles tiles;
  tiles.allocate(1, height, width);
  tiles.unit = unit;
  return tiles;
}

// The placeholder once for each token: four patches of 14 (or 16) pixels.
TEST(Families, GridsRepeatThePlaceholder) {
  const std::string qwen = "<|vision_start|><|image_pad|><|vision_end|>";
  for (const auto& [type, vision, cell] : {std::tuple{"qwen2_vl", R"("hidden_size":64)", 28},
                                           {"qwen2_5_vl", R"("out_hidden_size":64)", 28},
                                           {"qwen3_vl", R"("out_hidden_size":64)", 32}}) {
    const ModelConfig config = grid_config(type, vision);
    EXPECT_EQ(config.vision->cell(), cell);
    const std::vector<ImageTiles> images = list(grid(cell, 3 * cell), grid(cell, cell));
    EXPECT_EQ(expand_prompt(config, qwen + "a" + qwen, images),
              "<|vision_start|>" + repeat("<|image_pad|>", 3) + "<|vision_end|>a" + qwen);
    EXPECT_THAT(config.family->image_positions(config, images[0]),
                ElementsAre(Position{0, 0, 0}, Position{0, 0, 1}, Position{0, 0, 2}));
    EXPECT_THAT(error_of([&] { expand_prompt(config, qwen, images); }),
                HasSubstr("has 1 <|image_pad|> placeholder(s) for 2 image(s)"));
  }
}

// Qwen2-VL's units follow each other; Qwen3-VL's have times and markers, instead of the template's around the video.
TEST(Families, VideosBecomeUnits) {
  const std::string image = "<|image_pad|>", video = "<|video_pad|>", begin = "<|vision_start|>",
                    end = "<|vision_end|>";
  const auto units = [](int64_t cell) {
    return list(grid(cell, cell), grid(cell, 2 * cell, VideoUnit{.first = true, .seconds = 0.25}),
                grid(cell, 2 * cell, VideoUnit{.first = false, .seconds = 10.95}), grid(cell, cell, VideoUnit{}));
  };
  const std::string prompt = begin + image + end + "a" + begin + video + end + "b" + video + "c";
  for (const auto& [type, vision] :
       {std::pair{"qwen2_vl", R"("hidden_size":64)"}, {"qwen2_5_vl", R"("out_hidden_size":64)"}}) {
    EXPECT_EQ(expand_prompt(grid_config(type, vision), prompt, units(28)),
              begin + image + end + "a" + begin + repeat(video, 4) + end + "b" + video + "c");
  }
  for (const char* type : {"qwen3_vl", "qwen3_vl_moe"}) {
    const ModelConfig config = grid_config(type, R"("out_hidden_size":64)");
    const auto unit = [&](const char* time, int n) {
      return "<" + std::string(time) + " seconds>" + begin + repeat(video, n) + end;
    };
    EXPECT_EQ(expand_prompt(config, prompt, units(32)), begin + image + end + "a" + unit("0.2", 2) + unit("10.9", 2) +
                                                            "b" + unit("0.0", 1) + "c");  // halves to even, as Python
    EXPECT_THAT(error_of([&] { expand_prompt(config, video + image + video, units(32)); }), HasSubstr("another order"));
    EXPECT_THAT(error_of([&] { expand_prompt(config, image + video, units(32)); }),
                HasSubstr("has 1 <|video_pad|> placeholder(s) for 2 video(s)"));
  }
  EXPECT_EQ(media_order(grid_config("glm_ocr", R"("out_hidden_size":64)"), "<|image|><|video|>", 1, 0).size(), 1u);
}

// As get_image_string of nanoVLM's data/processors.py writes it, generation after generation.
TEST(Families, NanoVlmNamesTiles) {
  const auto config_of = [](const std::string& more) {
    return parse_config(
        R"({"model_type":"nanovlm","vit_hidden_dim":64,"vit_n_heads":1,"vit_img_size":28,"vit_patch_size":7,
        "lm_hidden_dim":64,"lm_n_heads":2,"lm_n_kv_heads":1,"lm_vocab_size":60,"mp_pixel_shuffle_factor":2)" +
        more + "}");
  };
  const auto tokens = [](const std::string& names) {
    std::string list;
    for (const auto& [name, content] :
         std::map<std::string, std::string>{{"g", R"({"name":"global_image_token","content":"<|global_image|>"})"},
                                            {"i", R"({"name":"image_token","content":"<|image|>"})"},
                                            {"r", R"({"name":"r1c1","content":"<row_1_col_1>"})"}}) {
      if (names.find(name) != std::string::npos) list += (list.empty() ? "" : ",") + content;
    }
    return R"(,"lm_base_vocab_size":55,"vlm_extra_tokens":[)" + list + "]";
  };
  const auto tiles = [](int64_t n, int64_t rows, int64_t cols, int64_t overview) {
    ImageTiles image;
    image.n_tiles = n;
    image.tile_rows = rows, image.tile_cols = cols, image.overview = overview;
    return image;
  };
  const std::string four = "<|image|><|image|><|image|><|image|>";
  const ModelConfig first = config_of(""), token = config_of(tokens("i")), rows = config_of(tokens("ir")),
                    global = config_of(tokens("gir"));
  EXPECT_EQ(first.image_token_id, 60);
  EXPECT_EQ(token.image_token_id, 55);
  EXPECT_EQ(global.image_token_id, 56);
  const std::vector<ImageTiles> single = list(tiles(1, 0, 0, -1), tiles(1, 0, 0, -1));
  for (const ModelConfig* config : {&first, &token})
    EXPECT_EQ(expand_prompt(*config, "<|image|>a<|image|>", single), four + "a" + four);
  const std::vector<ImageTiles> some = list(tiles(2, 1, 2, -1), tiles(1, 1, 1, -1));
  const std::string two = "<row_1_col_1>" + four + "<row_1_col_2>" + four;
  EXPECT_EQ(expand_prompt(rows, "<|image|>a<|image|>", some), "<image: 0>" + two + "a<image: 1><row_1_col_1>" + four);
  EXPECT_EQ(expand_prompt(rows, "<|image|>", std::span(some).first(1)), two);
  const std::vector<ImageTiles> whole = list(tiles(3, 2, 1, 0), tiles(1, 1, 1, -1));
  EXPECT_EQ(expand_prompt(global, "<|image|><|image|>", whole), "<image: 0><|global_image|>" + four + "<row_1_col_1>" +
                                                                    four + "<row_2_col_1>" + four +
                                                                    "<image: 1><|global_image|>" + four);
  EXPECT_THAT(error_of([&] { global.family->token_rows(global, tiles(2, 2, 1, 0)); }), HasSubstr("tiles has 2"));
  EXPECT_THAT(error_of([&] { config_of(R"(,"vit_cls_flag":true)"); }), HasSubstr("vit_cls_flag: expected false"));
  EXPECT_THAT(error_of([&] { config_of(R"(,"lm_attn_scaling":2)"); }), HasSubstr("lm_attn_scaling"));
  EXPECT_THAT(error_of([&] { config_of(R"(,"mp_image_token_length":5)"); }), HasSubstr("the 4 tokens that a tile"));
  EXPECT_THAT(error_of([&] { config_of(R"(,"lm_rms_eps":-1)"); }), HasSubstr("lm_rms_eps: expected"));
  EXPECT_THAT(error_of([&] { config_of(tokens("r")); }), HasSubstr("an image_token among them"));
  EXPECT_THAT(error_of([&] { config_of(R"(,"lm_base_vocab_size":60,"vlm_extra_tokens":[])"); }),
              HasSubstr("less than lm_vocab_size (60)"));
}

TEST(Families, LlavaCountsPatches) {
  const std::string vision = R"("vision_config":{"image_size":28,"patch_size":7},"image_token_index":5)";
  const ModelConfig config = parse_config(R"({"model_type":"llava",)" + vision + "}");
  EXPECT_EQ(expand_prompt(config, "<image>!", list(image(1))), images(16) + "!");
  const ModelConfig full =
      parse_config(R"({"model_type":"llava","vision_feature_select_strategy":"full",)" + vision + "}");
  EXPECT_EQ(expand_prompt(full, "<image>!", list(image(1))), images(17) + "!");
}

TEST(Families, CountsMustAgree) {
  const ModelConfig config = parse_config(R"({"model_type":"llava","image_token_index":5})");
  EXPECT_THAT(error_of([&] { expand_prompt(config, "<image> <image>", list(image(1))); }),
              HasSubstr("has 2 <image> placeholder(s) for 1 image(s)"));
  EXPECT_THAT(error_of([&] { expand_prompt(config, "none", list(image(1))); }), HasSubstr("has 0 <image>"));
  const ModelConfig text = parse_config(R"({"model_type":"llama"})");
  EXPECT_THAT(error_of([&] { expand_prompt(text, "<image>", list(image(1))); }), HasSubstr("takes text only"));
  EXPECT_EQ(expand_prompt(text, "<image>", {}), "<image>");
}

TEST(Anyres, UnpadsAsTransformersDoes) {
  struct Row {
    int64_t height, width, grid_height, grid_width, top, bottom, left, right;
  };
  const std::vector<Row> rows = {
      {551, 2332, 9, 3, 4, 5, 0, 3},      {259, 1045, 24, 48, 6, 18, 0, 48}, {2030, 1842, 72, 24, 23, 49, 0, 24},
      {2669, 1555, 9, 3, 2, 7, 0, 3},     {860, 385, 72, 24, 9, 63, 0, 24},  {117, 1597, 72, 24, 35, 37, 0, 24},
      {1825, 1091, 3, 6, 0, 3, 2, 4},     {938, 2422, 24, 48, 3, 21, 0, 48}, {1301, 126, 24, 48, 0, 24, 23, 25},
      {105, 2661, 24, 72, 11, 13, 0, 72}, {38, 1562, 3, 6, 1, 2, 0, 6},      {888, 1729, 3, 6, 0, 3, 0, 6},
      {119, 2162, 48, 24, 23, 25, 0, 24}};
  for (const Row& r : rows) {
    const PatchRect rect = unpadded_patches(r.height, r.width, r.grid_height, r.grid_width);
    EXPECT_THAT((std::vector{rect.top, rect.bottom, rect.left, rect.right}),
                ElementsAre(r.top, r.bottom, r.left, r.right))
        << r.height << " x " << r.width;
  }
}

TEST(Anyres, OrdersOverviewThenLines) {
  // Two tiles of 2 x 2 patches side by side, the outer columns padding: overview rows 0-3, tiles 4-7 and 8-11.
  const AnyresLayout layout = {.tile_rows = 1, .tile_cols = 2, .rect = {.top = 0, .bottom = 2, .left = 1, .right = 3}};
  EXPECT_THAT(anyres_order(layout, 2), ElementsAre(0, 1, 2, 3, 5, 8, kNewlineRow, 7, 10, kNewlineRow));
}

TEST(Anyres, RejectsTilesOfAnotherGrid) {
  const ModelConfig config =
      parse_config(R"({"model_type":"llava_next","image_token_index":5,"vision_config":{"image_size":28,"patch_size":7},
      "image_grid_pinpoints":[[28,56],[56,28]]})");
  EXPECT_THAT(config.family->token_rows(config, image(3, 1, 2, 100, 200)), testing::SizeIs(16 + 4 * 9));
  EXPECT_THAT(error_of([&] { anyres_layout(config, image(5, 2, 2, 100, 200)); }),
              HasSubstr("2 x 2 of 28 pixels, and 5 in all"));
  EXPECT_THAT(error_of([&] { anyres_layout(config, image(4, 1, 2, 100, 200)); }), HasSubstr("and 4 in all"));
}

TEST(Siglip, PositionsFollowTheRelativeCoordinate) {
  const std::vector<int32_t> whole = siglip_position_ids(27, 27, 27);
  for (size_t i = 0; i < whole.size(); ++i) ASSERT_EQ(whole[i], static_cast<int32_t>(i));
  EXPECT_THAT(siglip_position_ids(4, 1, 2), ElementsAre(0, 2));
  EXPECT_THAT(siglip_position_ids(4, 2, 1), ElementsAre(0, 8));
}

}  // namespace
}  // namespace vlcache
