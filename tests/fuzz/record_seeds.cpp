#include "tests/fuzz/record_seeds.h"

#include <fmt/format.h>

#include <cstdint>
#include <utility>

#include "kernels/base/parallel.h"
#include "kernels/base/tensor.h"
#include "sparse/tca_bme/tca_bme.h"
#include "tests/fuzz/record_input.h"

namespace sparsellm::fuzz {
namespace {

// An element of every `spacing` is a nonzero, and all of the first `dense_rows` rows are.
struct Shape {
  int64_t rows, columns, spacing, dense_rows;
};

OwnedTensor weight_of(DType dtype, const Shape& shape) {
  OwnedTensor weight = allocate_tensor({}, dtype, {shape.rows, shape.columns}, "a weight");
  visit_float(dtype, [&]<class T>(T) {
    for (int64_t i = 0; i < shape.rows * shape.columns; ++i) {
      const bool nonzero = i % shape.spacing == 0 || i / shape.columns < shape.dense_rows;
      weight.view.data<T>()[i] = from_float<T>(nonzero ? static_cast<float>(1 + i % 13) : 0.0f);
    }
  });
  return weight;
}

}  // namespace

std::vector<Seed> record_seeds() {
  constexpr Shape kShapes[] = {
      {3, 5, 1, 0},      {64, 64, 3, 2},  {70, 19, 2, 0},       // single values, 4 chunks
      {1, 129, 4, 0},    {66, 67, 4, 3},                        // 8 chunks
      {65, 130, 9, 0},   {7, 257, 37, 1}, {70, 140, 20000, 0},  // pairs
      {130, 3, 9999, 0}, {0, 7, 1, 0},    {5, 0, 1, 0},
  };
  ThreadPool caller(1);
  std::vector<Seed> seeds;
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const Shape& shape : kShapes) {
      for (const uint32_t most_bytes : {0U, 4000U, 2U << 20}) {
        for (const char* records : {"speed", "size"}) {
          RecordInput input{.weight = tca_bme_format().encode(weight_of(dtype, shape).view,
                                                              {.layout = records}, caller),
                            .most_bytes = most_bytes,
                            .seed = static_cast<uint8_t>(seeds.size())};
          seeds.push_back({.name = fmt::format("{}-{}x{}-{}-{}-{}", name_of(dtype), shape.rows,
                                               shape.columns, shape.spacing, most_bytes, records),
                           .input = record_input(input)});
        }
      }
    }
  }
  // Version 3: records of 64 x 128.
  constexpr Shape kQuantizedShapes[] = {
      {3, 5, 1, 0},      {64, 128, 3, 2}, {65, 130, 9, 0}, {7, 257, 37, 1},
      {130, 3, 9999, 0}, {0, 7, 1, 0},    {5, 0, 1, 0},
  };
  for (const char* values : {"i8", "f8", "i4", "i4:64", "i4:32"}) {
    for (const Shape& shape : kQuantizedShapes) {
      for (const uint32_t most_bytes : {0U, 4000U}) {
        const DType dtype = seeds.size() % 2 == 0 ? DType::f16 : DType::bf16;
        RecordInput input{.weight = tca_bme_format().encode(weight_of(dtype, shape).view,
                                                            {.layout = values}, caller),
                          .most_bytes = most_bytes,
                          .seed = static_cast<uint8_t>(seeds.size())};
        seeds.push_back({.name = fmt::format("{}-{}x{}-{}-{}-{}", name_of(dtype), shape.rows,
                                             shape.columns, shape.spacing, most_bytes, values),
                         .input = record_input(input)});
      }
    }
  }
  return seeds;
}

}  // namespace sparsellm::fuzz
