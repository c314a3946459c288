#include "reuse/image/image_kv_form.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "base/format.h"
#include "base/nearest.h"

namespace vlcache {
namespace {

constexpr std::array<std::string_view, 3> kCodecs{"exact", "int8", "int4"};
// Scorers that need no question: two use the keys alone, one the model's attention while it repeats the image.
constexpr std::array<std::string_view, 3> kScorers{"key_diff", "knorm", "kvzip"};

}  // namespace

KvCodec ImageKvForm::kv_codec(const KvShape& shape) const {
  if (codec == Codec::kInt8) return KvCodec::kInt8;
  if (codec == Codec::kInt4) return KvCodec::kInt4;
  return shape.codec == KvCodec::kF32 ? KvCodec::kF32 : KvCodec::kBF16;
}

int32_t ImageKvForm::n_kept(int32_t n_tokens) const {
  constexpr double kSlack = 1e-9;  // 0.1 of 30 are 3, not 4
  if (keeps_all()) return n_tokens;
  return std::clamp(static_cast<int32_t>(std::ceil(share * n_tokens - kSlack)), std::min(1, n_tokens), n_tokens);
}

std::string ImageKvForm::name() const {
  const std::string text(kCodecs[static_cast<size_t>(codec)]);
  return keeps_all() ? text : text + format(", %g:%s", share, scorer.c_str());
}

ImageKvForm::Codec parse_image_codec(std::string_view text) {
  const auto at = std::ranges::find(kCodecs, text);
  if (at != kCodecs.end()) return static_cast<ImageKvForm::Codec>(at - kCodecs.begin());
  throw Error(ErrorCode::kInput,
              "--cache-codec: expected exact, int8 or int4, found '" + std::string(text) + "'" +
                  did_you_mean(std::string(text), std::vector<std::string>(kCodecs.begin(), kCodecs.end())));
}

void parse_image_keep(std::string_view text, ImageKvForm& form) {
  const auto fail = [&](const std::string& what) { throw Error(ErrorCode::kInput, "--cache-keep: " + what); };
  const size_t colon = text.find(':');
  const auto [end, error] = std::from_chars(text.data(), text.data() + std::min(colon, text.size()), form.share);
  if (colon == std::string_view::npos || error != std::errc() || end != text.data() + colon || !(form.share > 0) ||
      form.share >= 1) {
    fail("expected SHARE:SCORER with a share of an image's tokens below 1, such as 0.2:key_diff, found '" +
         std::string(text) + "'");
  }
  form.scorer = text.substr(colon + 1);
  if (std::ranges::find(kScorers, form.scorer) != kScorers.end()) return;
  if (form.scorer == "am") {
    fail(
        "am gives the tokens that stay the weight of all, and those that a chooser recomputes would count twice; "
        "kvzip looks at the same repetition of an image");
  }
  fail("unknown scorer '" + form.scorer + "'; those that know no question are key_diff, knorm and kvzip");
}

}  // namespace vlcache
