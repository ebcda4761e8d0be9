#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <ostream>
#include <string>
#include <vector>

#include "sparse/registry.h"
#include "tests/sparse/weight_patterns.h"

namespace sparsellm::testing {

// The weights that all formats are tested with.
inline constexpr uint64_t kConformanceSeed = 71;
inline constexpr DType kConformanceDTypes[] = {DType::f16, DType::bf16};

struct WeightShape {
  int64_t rows;
  int64_t columns;
};
inline constexpr WeightShape kSmallShapes[] = {{1, 1}, {16, 16}, {64, 64}, {127, 65}, {256, 768}};

struct ShapeCase {
  WeightShape shape;
  DType dtype;
};
inline void PrintTo(const ShapeCase& c, std::ostream* out) {
  *out << fmt::format("[{}, {}] of {}", c.shape.rows, c.shape.columns, name_of(c.dtype));
}
inline std::string case_name(const ::testing::TestParamInfo<ShapeCase>& info) {
  return fmt::format("{}x{}_{}", info.param.shape.rows, info.param.shape.columns,
                     name_of(info.param.dtype));
}
inline std::vector<ShapeCase> cases_of(std::span<const WeightShape> shapes) {
  std::vector<ShapeCase> cases;
  for (const WeightShape& shape : shapes) {
    for (DType dtype : kConformanceDTypes) {
      cases.push_back({shape, dtype});
    }
  }
  return cases;
}

// Those that hold weights of this dtype, and keep their values: what is rounded is tested beside
// the other narrow values (tests/sparse/tca_bme/quantized_matrices.h).
inline std::vector<const WeightFormat*> formats_for(const Tensor& w) {
  std::vector<const WeightFormat*> formats;
  std::ranges::copy_if(exact_formats(), std::back_inserter(formats),
                       [&](const WeightFormat* format) { return format->why_not(w).empty(); });
  return formats;
}

// How weights are encoded: by the rules of all formats, and by what else the format can be told.
struct NamedLayout {
  LayoutOptions options;
  const char* name;
};
inline std::vector<NamedLayout> other_layouts_of(const WeightFormat& format) {  // than for speed
  std::vector<NamedLayout> layouts{{{.goal = LayoutFor::size}, "for size"}};
  if (format.name() == "tca_bme") {
    layouts.push_back({{.layout = "size"}, "of records for size"});
  }
  return layouts;
}
inline std::vector<NamedLayout> layouts_of(const WeightFormat& format) {
  std::vector<NamedLayout> layouts = other_layouts_of(format);
  layouts.insert(layouts.begin(), {{}, "for speed"});
  return layouts;
}

inline OwnedTensor conformance_weight(DType dtype, const WeightShape& shape, double density = 0.4) {
  return make_weight(
      {.dtype = dtype, .rows = shape.rows, .columns = shape.columns, .density = density},
      kConformanceSeed);
}

// body(w) for small weights of all dtypes that the format takes.
template <class Body>
void for_small_weights(const WeightFormat& format, const Body& body, double density = 0.4) {
  for (DType dtype : kConformanceDTypes) {
    for (const WeightShape& shape : kSmallShapes) {
      const OwnedTensor w = conformance_weight(dtype, shape, density);
      if (format.why_not(w.view).empty()) {
        SCOPED_TRACE(fmt::format("{} {} [{}, {}]", format.name(), name_of(dtype), shape.rows,
                                 shape.columns));
        body(w.view);
      }
    }
  }
}

}  // namespace sparsellm::testing
