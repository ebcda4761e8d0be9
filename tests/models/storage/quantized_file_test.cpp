// Quantised weights, version 3 of tca_bme, dense_i8 and dense_i4, in model files.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "models/storage/model_file.h"
#include "models/storage/model_writer.h"
#include "sparse/registry.h"
#include "sparse/tca_bme/quantized/quantized_parts.h"
#include "tests/sparse/encodings.h"
#include "tests/sparse/tca_bme/quantized_matrices.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

TEST(QuantizedFile, ReadsWhatWasWritten) {
  ThreadPool threads(2);
  const TempDir dir;
  ModelWriter writer(dir.path() / "out", {});
  writer.write_text("config.json", "{}");
  std::vector<QuantizedMatrix> matrices;
  std::vector<EncodedWeight> written;
  const auto name = [](size_t i) { return fmt::format("layers.{}.weight", i); };
  for (QuantizedShape shape : quantized_kinds()) {
    shape.rows = 201;
    shape.columns = 300;
    const size_t i = matrices.size();
    matrices.push_back(random_quantized(shape, 351 + i));
    written.push_back(
        encode_as(shape, matrices.back(), i % 2 == 0 ? DType::f16 : DType::bf16, threads));
    writer.add(name(i), written.back());
  }
  writer.finish();

  const Checkpoint checkpoint(dir.path() / "out");
  const ModelFile model(checkpoint);
  model.verify({});
  for (size_t i = 0; i < matrices.size(); ++i) {
    const std::optional<EncodedWeight> e = model.encoded(name(i), threads);
    ASSERT_TRUE(e.has_value());
    EXPECT_TRUE(same_encoding(*e, written[i]));
    EXPECT_TRUE(
        same_quantized(tca_bme::quantized_of(*e, threads), without_negative_zeros(matrices[i])));
    for (const Slice& cut : {Slice{.rows = {64, 137}, .columns = {128, 172}},
                             Slice{.rows = {3, 70}, .columns = {128, 130}}}) {
      std::optional<EncodedWeight> view = model.unchecked(name(i));
      const WeightPart part{
          .weight = &*view, .name = name(i), .file = model.find(name(i))->file, .slice = cut};
      const WeightFormat& format = weight_format(e->format);
      const EncodedWeight read = format.read_slice(part, threads);
      ASSERT_NO_THROW(format.validate(read));
      EXPECT_EQ(read.version, e->version);
      EXPECT_TRUE(
          same_quantized(tca_bme::quantized_of(read, threads), naive_slice(matrices[i], cut)));
    }
  }
}

TEST(QuantizedFile, WhatIsWrongHasTheNameOfTheWeight) {
  ThreadPool threads(1);
  const TempDir dir;
  ModelWriter writer(dir.path() / "out", {});
  writer.write_text("config.json", "{}");
  EncodedWeight e = tca_bme::encode_quantized(
      random_quantized({.type = ValueType::f8, .rows = 70, .columns = 30}, 352), DType::f16,
      threads);
  static_cast<float*>(e.parts.back().memory.data())[69] = -2.0f;
  writer.add("layers.0.weight", e);
  writer.finish();
  const Checkpoint checkpoint(dir.path() / "out");
  const ModelFile model(checkpoint);
  EXPECT_TRUE(throws_error([&] { model.encoded("layers.0.weight", threads); },
                           "the scale of row 69 is -2"));
  EXPECT_TRUE(throws_error([&] { model.encoded("layers.0.weight", threads); }, "layers.0.weight"));
}

}  // namespace
}  // namespace sparsellm
