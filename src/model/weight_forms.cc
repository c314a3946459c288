#include "model/weight_forms.h"

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
  return choice == WeightChoice::kInt4Plus && role == MatrixRole::kSensitive ? kInt6 : kInt4;
}

}  // namespace vlcache
