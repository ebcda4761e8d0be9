#include "sparse/registry.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "kernels/base/error.h"
#include "sparse/dense/dense.h"
#include "sparse/general_sparse/general_sparse.h"
#include "sparse/tca_bme/dense_narrow.h"
#include "sparse/tca_bme/tca_bme.h"
#include "sparse/tiled_csl/tiled_csl.h"

namespace sparsellm {
namespace {

std::string names_of(std::span<const WeightFormat* const> formats) {
  std::string names;
  for (const WeightFormat* format : formats) {
    names += names.empty() ? "" : ", ";
    names += format->name();
  }
  return names;
}

}  // namespace

std::span<const WeightFormat* const> weight_formats() {
  static const std::array formats{&dense_format(),    &tiled_csl_format(),
                                  &tca_bme_format(),  &general_sparse_format(),
                                  &dense_i8_format(), &dense_i4_format()};
  return formats;
}

std::vector<const WeightFormat*> exact_formats() {
  std::vector<const WeightFormat*> formats;
  std::ranges::copy_if(weight_formats(), std::back_inserter(formats),
                       [](const WeightFormat* format) { return format->values_in({}).empty(); });
  return formats;
}

std::vector<const WeightFormat*> smallest_formats() {
  std::vector<const WeightFormat*> formats;
  std::ranges::copy_if(weight_formats(), std::back_inserter(formats),
                       [](const WeightFormat* format) { return format->for_smallest(); });
  return formats;
}

const WeightFormat* find_weight_format(std::string_view name) {
  const std::span<const WeightFormat* const> formats = weight_formats();
  const auto found = std::ranges::find(formats, name, &WeightFormat::name);
  return found == formats.end() ? nullptr : *found;
}

const WeightFormat& weight_format(std::string_view name) {
  if (const WeightFormat* const format = find_weight_format(name)) {
    return *format;
  }
  fail("the weight format {} is not known; use one of {}", name, weight_format_names());
}

std::string weight_format_names() { return names_of(weight_formats()); }

std::string exact_format_names() { return names_of(exact_formats()); }

}  // namespace sparsellm
