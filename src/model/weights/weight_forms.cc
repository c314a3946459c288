#include "model/weights/weight_forms.h"

#include "base/error.h"

namespace vlcache {

std::string_view weight_choice_name(WeightChoice choice) {
  switch (choice) {
    case WeightChoice::kAuto:
      return "auto";
    case WeightChoice::kDense:
      return "dense";
    case WeightChoice::kInt8:
      return "int8";
    case WeightChoice::kInt4:
      return "int4";
    case WeightChoice::kInt4Plus:
      return "int4+";
  }
  CHECK(false);
}

std::optional<QuantForm> form_of(WeightChoice choice, MatrixRole role) {
  if (choice == WeightChoice::kAuto || choice == WeightChoice::kDense) return std::nullopt;
  if (choice == WeightChoice::kInt8 || role == MatrixRole::kTokens) return kInt8;
  if (role == MatrixRole::kShared) return kInt6;
  return choice == WeightChoice::kInt4Plus && role == MatrixRole::kSensitive ? kInt6 : kInt4;
}

std::optional<QuantForm> form_near_grid(const std::optional<QuantForm>& form, float distance) {
  // Of Qwen2.5-Coder-0.5B and SmolLM2-135M, as they are, moved and fine-tuned: 0.004 of a step at most if they lie on
  // it, 0.07 to 0.20 if they were moved from it, 0.19 to 0.24 if they know of none (docs/studies/weights.md).
  constexpr float kOnGrid = 0.02f, kFree = 0.2f;
  return form && form->bits < 8 && distance > kOnGrid && distance < kFree ? kInt8 : form;
}

}  // namespace vlcache
