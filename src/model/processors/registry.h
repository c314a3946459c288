// Declares the image processors. A new one is a file that defines its maker, and a line in registry.cc.
#pragma once

#include <memory>
#include <string_view>

#include "base/json.h"
#include "model/processors/image_processor.h"

namespace vlcache {

// The processor of these settings, as load_image_processor makes it.
std::unique_ptr<ImageProcessor> make_image_processor(const JsonObject& settings, std::string_view model_type);

// Each reads its settings over the defaults of the class it is named after.
std::unique_ptr<ImageProcessor> make_clip_processor(const JsonObject& config);
std::unique_ptr<ImageProcessor> make_siglip_processor(const JsonObject& config);
std::unique_ptr<ImageProcessor> make_vit_processor(const JsonObject& config);
std::unique_ptr<ImageProcessor> make_llava_processor(const JsonObject& config);
std::unique_ptr<ImageProcessor> make_llava_next_processor(const JsonObject& config);
std::unique_ptr<ImageProcessor> make_idefics3_processor(const JsonObject& config);
std::unique_ptr<ImageProcessor> make_qwen2_vl_processor(const JsonObject& config);
std::unique_ptr<ImageProcessor> make_paddleocr_vl_processor(const JsonObject& config);
std::unique_ptr<ImageProcessor> make_glm46v_processor(const JsonObject& config);
std::unique_ptr<ImageProcessor> make_nanovlm_processor(const JsonObject& config);

}  // namespace vlcache
