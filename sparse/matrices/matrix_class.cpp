#include "sparse/matrices/matrix_class.h"

#include <algorithm>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"

namespace sparsellm {

std::string_view name_of(MatrixClass matrix_class) {
  switch (matrix_class) {
    case MatrixClass::banded:
      return "banded";
    case MatrixClass::stencil:
      return "stencil";
    case MatrixClass::power_law:
      return "power-law";
    case MatrixClass::blocks:
      return "blocks";
    case MatrixClass::uniform:
      return "uniform";
    case MatrixClass::skewed:
      return "skewed";
    case MatrixClass::arrow:
      return "arrow";
    case MatrixClass::empty_rows:
      return "empty-rows";
  }
  return "?";
}

MatrixClass parse_matrix_class(std::string_view text) {
  const auto found = std::ranges::find_if(
      kMatrixClasses, [&](MatrixClass matrix_class) { return name_of(matrix_class) == text; });
  require(found != kMatrixClasses.end(), "the class of matrices {} is not known; use one of {}",
          quote(text), matrix_class_names());
  return *found;
}

std::string matrix_class_names() {
  std::string names;
  for (const MatrixClass matrix_class : kMatrixClasses) {
    names += names.empty() ? "" : ", ";
    names += name_of(matrix_class);
  }
  return names;
}

}  // namespace sparsellm
