#include "models/weights/weight_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/parallel.h"
#include "sparse/registry.h"
#include "sparse/tca_bme/quantized/quantized_parts.h"
#include "tests/models/expect_error.h"
#include "tests/models/storage/write_quantized.h"
#include "tests/models/storage/write_safetensors.h"
#include "tests/testing/temp_dir.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

// Names are whatever a file holds, and messages go to terminals.
TEST(WeightStore, QuotesNamesOfTheFile) {
  const std::vector<TestTensor> tensors = {
      {"one dimension\n\x7f", "F16", {2}, "1234"},
      {"a type\n\x1b[2J", "I16", {1, 2}, "5678"},
  };
  const TempDir folder;
  folder.write("model.safetensors", write_safetensors(tensors));
  const Checkpoint checkpoint(folder.path());
  const WeightStore store(checkpoint);
  expect_message(error_of([&] { store.get(tensors[0].name); }),
                 R"(the tensor "one dimension\n\u007f" has 1 dimensions)");
  expect_message(error_of([&] { store.get(tensors[1].name); }),
                 folder.path().string() + R"(: the tensor "a type\n\u001b[2J" has the dtype I16)");
  expect_message(error_of([&] { store.get("missing\n"); }), R"(the tensor "missing\n" is missing)");
  expect_message(error_of([&] { store.require_all_used({tensors[0].name}, {}); }),
                 R"(the tensor "a type\n\u001b[2J", which)");
  const std::vector<std::string_view> ignored{"\x7f", "[2J"};
  EXPECT_EQ(error_of([&] { store.require_all_used({}, ignored); }), "");
}

// [[0, 1, 2], [0, 0, 0], [3, 0, 4]]
std::vector<TestTensor> bitmask(const std::string& name) {
  return {{name + ".shape", "I64", {2}, bytes_of(std::vector<int64_t>{3, 3})},
          {name + ".compressed", "F32", {4}, bytes_of(std::vector<float>{1, 2, 3, 4})},
          {name + ".bitmask", "U8", {3, 1}, bytes_of(std::vector<uint8_t>{0b110, 0, 0b101})}};
}

std::vector<float> values_of(const Tensor& w) {
  const float* const values = w.data<float>();
  return {values, values + w.element_count()};
}

TEST(WeightStore, ReadsBitmasks) {
  const TempDir folder;
  folder.write("model.safetensors", write_safetensors(bitmask("a.weight")));
  const Checkpoint checkpoint(folder.path());
  const WeightStore store(checkpoint);
  const WeightStore::Stored stored = store.get("model.a.weight");
  EXPECT_EQ(stored.name, "model.a.weight");
  EXPECT_EQ(stored.form, WeightStore::Form::bitmask);
  EXPECT_EQ(stored.format, "dense");
  EXPECT_EQ(stored.dtype, DType::f32);
  EXPECT_EQ(stored.rows, 3);
  EXPECT_EQ(stored.columns, 3);
  EXPECT_EQ(stored.bytes, 16 + 16 + 3);
  EXPECT_EQ(stored.tensors.size(), 3u);
  ThreadPool threads(1);
  EXPECT_EQ(values_of(store.dense("a.weight", threads).view),
            (std::vector<float>{0, 1, 2, 0, 0, 0, 3, 0, 4}));
  expect_message(error_of([&] { store.unchecked("a.weight"); }),
                 "is not stored in a sparse format");
  expect_message(error_of([&] { store.encoded("a.weight", threads); }),
                 "is not stored in a sparse format");
}

// With 0 to 3 spaces after the header the data is aligned once.
TEST(WeightStore, CopiesWhatIsNotAligned) {
  const std::vector<float> values{1.5f, -2.0f, 0.0f, 1e30f};
  for (size_t spaces = 0; spaces < 4; ++spaces) {
    const TempDir folder;
    folder.write(
        "model.safetensors",
        write_safetensors(std::vector<TestTensor>{{"w.weight", "F32", {2, 2}, bytes_of(values)}},
                          {}, spaces));
    const Checkpoint checkpoint(folder.path());
    const WeightStore store(checkpoint);
    ThreadPool threads(1);
    EXPECT_EQ(values_of(store.dense("w.weight", threads).view), values);
  }
}

// Rows that repeat, as those of heads may: half of each period has nonzeros.
TEST(WeightStore, NoPeriodOfRowsFoolsTheDensity) {
  constexpr int64_t kRows = 8192;
  for (int64_t period = 2; period <= kRows; period *= 2) {
    SCOPED_TRACE(period);
    std::vector<float> values;
    for (int64_t row = 0; row < kRows; ++row) {
      values.insert(values.end(), 2, row % period < period / 2 ? 0.0f : 1.0f);
    }
    const TempDir folder;
    folder.write("model.safetensors", write_safetensors(std::vector<TestTensor>{
                                          {"w.weight", "F32", {kRows, 2}, bytes_of(values)}}));
    const Checkpoint checkpoint(folder.path());
    const WeightStore store(checkpoint);
    const double density = store.density("w.weight");
    EXPECT_NEAR(density, 0.5, 0.08);
    EXPECT_EQ(store.density("w.weight"), density);
  }
}

TEST(WeightStore, ReadsCodesAndScales) {
  for (const ValueType type : {ValueType::i8, ValueType::f8, ValueType::i4}) {
    SCOPED_TRACE(name_of(type));
    const QuantizedMatrix q = random_codes(type, 200, 384, 64, 0.5, 3);
    std::vector<TestTensor> tensors = quantized_tensors("a", q);
    tensors.push_back({"norm", "BF16", {1}, "ab"});
    const TempDir folder;
    folder.write("model.safetensors", write_safetensors(tensors));
    const Checkpoint checkpoint(folder.path());
    const WeightStore store(checkpoint);
    ThreadPool threads(2);
    const WeightStore::Stored stored = store.get("model.a.weight");
    EXPECT_EQ(stored.name, "model.a.weight");
    EXPECT_EQ(stored.form, WeightStore::Form::quantized);
    EXPECT_EQ(stored.format, "tca_bme");
    EXPECT_EQ(stored.dtype, DType::bf16);
    EXPECT_EQ(stored.rows, 200);
    EXPECT_EQ(stored.columns, 384);
    EXPECT_EQ(stored.bytes, checkpoint.bytes() - 2);
    EXPECT_NEAR(store.density("a.weight"), 0.5, 0.05);
    const OwnedTensor expected = dequantize(q, DType::bf16, threads);
    const OwnedTensor dense = store.dense("a.weight", threads);
    EXPECT_EQ(std::memcmp(dense.view.raw(), expected.view.raw(),
                          static_cast<size_t>(expected.view.bytes())),
              0);
    const EncodedWeight whole =
        store.encode("a.weight", weight_format("tca_bme"), DType::f16, threads);
    EXPECT_EQ(whole.dtype, DType::f16);
    EXPECT_EQ(tca_bme::quantized_of(whole, threads).codes, q.codes);
    EXPECT_EQ(tca_bme::quantized_of(whole, threads).scales, q.scales);
    const EncodedSize size = store.size(stored, {});
    EXPECT_FALSE(size.exact);
    EXPECT_NEAR(static_cast<double>(size.bytes), static_cast<double>(whole.bytes()),
                0.02 * static_cast<double>(whole.bytes()));
    // Through records, but not through groups.
    const Slice slice{.rows = {.begin = 70, .count = 33}, .columns = {.begin = 64, .count = 130}};
    const EncodedWeight part =
        store.encode("a.weight", weight_format("tca_bme"), DType::bf16, threads, slice);
    const QuantizedMatrix of_part = tca_bme::quantized_of(part, threads);
    const OwnedTensor dense_part = store.dense("a.weight", threads, slice);
    for (int64_t row = 0; row < 33; ++row) {
      const int64_t first = (70 + row) * 384 + 64;
      EXPECT_TRUE(std::equal(q.codes.begin() + first, q.codes.begin() + first + 130,
                             of_part.codes.begin() + row * 130));
      EXPECT_EQ(std::memcmp(dense_part.view.row<BFloat16>(row),
                            expected.view.row<BFloat16>(70 + row) + 64, 2 * 130),
                0);
    }
    const Slice through{.rows = {.begin = 0, .count = 200}, .columns = {.begin = 16, .count = 64}};
    const std::string error = error_of(
        [&] { store.encode("a.weight", weight_format("tca_bme"), DType::bf16, threads, through); });
    if (type == ValueType::i4) {
      expect_message(error, "\"a.weight\": columns from 16 on of a weight in which every 64 share");
    } else {
      EXPECT_EQ(error, "");
    }
    expect_message(error_of([&] { store.unchecked("a.weight"); }),
                   "is not stored in a sparse format");
    expect_message(error_of([&] { store.quantized("norm", threads); }), "is not quantised");
  }
}

// Of codes that are there alone; what else would be an infinity.
TEST(WeightStore, ValuesOfCodesAreFinite) {
  QuantizedMatrix q = random_codes(ValueType::i8, 2, 3, 0, 1.0, 4);
  q.codes = {100, 0, -1, 3, 4, -5};
  for (const auto& [scale, is_finite] : {std::pair(655.0f, true), {655.2f, false}}) {
    SCOPED_TRACE(scale);
    q.scales = {scale, 1.0f};
    const TempDir folder;
    folder.write("model.safetensors", write_safetensors(quantized_tensors("a", q)));
    const Checkpoint checkpoint(folder.path());
    const WeightStore store(checkpoint);
    ThreadPool threads(1);
    EXPECT_EQ(store.get("a.weight").dtype, DType::f16);
    const WeightFormat& to = weight_format("tca_bme");
    const std::string errors[] = {
        error_of([&] { store.dense("a.weight", threads); }),
        error_of([&] { store.encode("a.weight", to, DType::f16, threads); })};
    for (const std::string& error : errors) {
      if (is_finite) {
        EXPECT_EQ(error, "");
      } else {
        expect_message(error, folder.path().string() +
                                  ": the tensor \"a.weight\": the value in "
                                  "row 0, column 0 is too large for f16");
      }
    }
    EXPECT_EQ(error_of([&] { store.encode("a.weight", to, DType::bf16, threads); }), "");
  }
}

TEST(WeightStore, EncodesInAnotherDType) {
  const TempDir folder;
  folder.write("model.safetensors",
               write_safetensors(std::vector<TestTensor>{
                   {"good.weight", "F32", {1, 3}, bytes_of(std::vector<float>{0, 1.5f, -65504})},
                   {"large.weight", "F32", {1, 2}, bytes_of(std::vector<float>{0, 1e6f})}}));
  const Checkpoint checkpoint(folder.path());
  const WeightStore store(checkpoint);
  ThreadPool threads(1);
  const WeightFormat& tca_bme = weight_format("tca_bme");
  const EncodedWeight encoded = store.encode("good.weight", tca_bme, DType::f16, threads);
  EXPECT_EQ(encoded.dtype, DType::f16);
  EXPECT_EQ(encoded.nonzeros, 2);
  const OwnedTensor decoded = tca_bme.decode(encoded, threads);
  EXPECT_EQ(to_float(decoded.view.data<Half>()[1]), 1.5f);
  EXPECT_EQ(to_float(decoded.view.data<Half>()[2]), -65504.0f);
  expect_message(error_of([&] { store.encode("large.weight", tca_bme, DType::f16, threads); }),
                 folder.path().string() +
                     ": the tensor \"large.weight\": the value 1000000 is too large for f16");
}

}  // namespace
}  // namespace sparsellm
