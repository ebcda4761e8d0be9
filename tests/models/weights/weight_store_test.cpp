#include "models/weights/weight_store.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/parallel.h"
#include "sparse/registry.h"
#include "tests/models/expect_error.h"
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
