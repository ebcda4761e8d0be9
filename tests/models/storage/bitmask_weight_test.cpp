#include "models/storage/bitmask_weight.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "kernels/base/error.h"
#include "tests/models/expect_error.h"
#include "tests/models/storage/write_safetensors.h"
#include "tests/testing/random.h"
#include "tests/testing/resident_pages.h"
#include "tests/testing/temp_dir.h"

namespace sparsellm {
namespace {

using testing::bytes_of;
using testing::error_of;
using testing::expect_message;
using testing::resident_pages;
using testing::TempDir;
using testing::TestTensor;
using testing::write_safetensors;

// The tensors of a matrix [rows, columns] with half of its elements.
template <class T>
std::vector<TestTensor> compress(const std::vector<T>& dense, int64_t columns, const char* dtype,
                                 const std::string& base) {
  const int64_t rows = std::ssize(dense) / columns;
  const int64_t mask_bytes = (columns + 7) / 8;
  std::vector<uint8_t> mask(static_cast<size_t>(rows * mask_bytes));
  std::vector<T> values;
  std::vector<int64_t> offsets;
  for (int64_t row = 0; row < rows; ++row) {
    offsets.push_back(std::ssize(values));
    for (int64_t column = 0; column < columns; ++column) {
      const T value = dense[static_cast<size_t>(row * columns + column)];
      if (value != T{}) {
        values.push_back(value);
        mask[static_cast<size_t>(row * mask_bytes + column / 8)] |=
            static_cast<uint8_t>(1u << column % 8);
      }
    }
  }
  return {{base + ".shape", "I64", {2}, bytes_of(std::vector<int64_t>{rows, columns})},
          {base + ".bitmask", "U8", {rows, mask_bytes}, bytes_of(mask)},
          {base + ".compressed", dtype, {std::ssize(values)}, bytes_of(values)},
          {base + ".row_offsets", "I64", {rows}, bytes_of(offsets)}};
}

template <class T>
std::vector<T> random_matrix(int64_t rows, int64_t columns, double density, uint64_t seed) {
  testing::Random random(seed);
  std::vector<T> dense(static_cast<size_t>(rows * columns));
  for (T& value : dense) {
    value = random.uniform(0, 1) < density ? static_cast<T>(1 + random.below(30'000)) : T{};
  }
  return dense;
}

template <class T>
void expect_equal(const OwnedTensor& tensor, const std::vector<T>& expected) {
  ASSERT_EQ(tensor.view.bytes(), std::ssize(expected) * int64_t{sizeof(T)});
  EXPECT_EQ(std::memcmp(tensor.view.raw(), expected.data(), expected.size() * sizeof(T)), 0);
}

// An example by hand: [[0, 1, 2], [0, 0, 0], [3, 0, 4]] and its bits from the lowest one.
TEST(BitmaskWeight, ReadsTheLayoutOfTheLibrary) {
  const TempDir dir;
  const TestTensor tensors[] = {
      {"a.weight.shape", "I64", {2}, bytes_of(std::vector<int64_t>{3, 3})},
      {"a.weight.bitmask", "U8", {3, 1}, bytes_of(std::vector<uint8_t>{0b110, 0, 0b101})},
      {"a.weight.compressed", "F32", {4}, bytes_of(std::vector<float>{1, 2, 3, 4})},
      {"a.weight.row_offsets", "I64", {3}, bytes_of(std::vector<int64_t>{0, 2, 2})}};
  dir.write("model.safetensors", write_safetensors(tensors));
  const Checkpoint checkpoint(dir.path());
  const auto weight = BitmaskWeight::find(checkpoint, "model.decoder.a.weight");
  ASSERT_TRUE(weight.has_value());
  EXPECT_EQ(weight->rows(), 3);
  EXPECT_EQ(weight->columns(), 3);
  EXPECT_EQ(weight->stored_values(), 4);
  EXPECT_EQ(weight->dtype(), DType::f32);
  EXPECT_EQ(weight->bytes(), 16 + 3 + 16 + 24);
  std::vector<std::string> names = weight->tensor_names();
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, checkpoint.names());
  expect_equal(weight->dense(), std::vector<float>{0, 1, 2, 0, 0, 0, 3, 0, 4});
  EXPECT_FALSE(BitmaskWeight::find(checkpoint, "b.weight").has_value());
}

TEST(BitmaskWeight, ReadsAllSizesAndDensities) {
  for (int64_t columns : {1, 7, 8, 9, 64, 130}) {
    for (double density : {0.0, 0.1, 0.5, 1.0}) {
      for (size_t spaces : {0, 1, 2, 5}) {
        SCOPED_TRACE(fmt::format("{} columns, density {}, {} spaces", columns, density, spaces));
        const auto dense = random_matrix<uint16_t>(17, columns, density, 3);
        const TempDir dir;
        dir.write("model.safetensors",
                  write_safetensors(compress(dense, columns, "BF16", "m.weight"), {}, spaces));
        const Checkpoint checkpoint(dir.path());
        const auto weight = BitmaskWeight::find(checkpoint, "m.weight");
        ASSERT_TRUE(weight.has_value());
        const OwnedTensor result = weight->dense();
        EXPECT_EQ(result.view.dtype(), DType::bf16);
        expect_equal(result, dense);
      }
    }
  }
}

// "sparse-24-bitmask", and names without ".weight" of newer releases.
TEST(BitmaskWeight, ReadsOtherSpellings) {
  const auto dense = random_matrix<uint16_t>(5, 16, 0.5, 4);
  auto tensors = compress(dense, 16, "F16", "model.layers.0.mlp");
  tensors.pop_back();
  tensors[0].shape = {2, 1};
  tensors[2].shape.push_back(1);
  const TempDir dir;
  dir.write("model.safetensors", write_safetensors(tensors));
  const Checkpoint checkpoint(dir.path());
  const auto weight = BitmaskWeight::find(checkpoint, "model.layers.0.mlp.weight");
  ASSERT_TRUE(weight.has_value());
  EXPECT_EQ(weight->tensor_names().size(), 3u);
  expect_equal(weight->dense(), dense);
}

TEST(BitmaskWeight, NoPagesOfTheFileStayInMemory) {
  const auto dense = random_matrix<uint16_t>(1024, 256, 0.5, 6);
  const TempDir dir;
  dir.write("model.safetensors", write_safetensors(compress(dense, 256, "F16", "m.weight")));
  const Checkpoint checkpoint(dir.path());
  const auto resident = [&](const char* part) {
    return resident_pages(checkpoint.find(std::string("m.weight.") + part)->bytes);
  };
  if (!resident("bitmask")) {
    GTEST_SKIP() << "the system does not say which pages are in memory";
  }
  expect_equal(BitmaskWeight::find(checkpoint, "m.weight")->dense(), dense);
  for (const char* part : {"bitmask", "compressed", "row_offsets"}) {
    EXPECT_EQ(resident(part), 0) << part;
  }
}

using Tensors = std::vector<TestTensor>;

std::string error_after(const std::function<void(Tensors&)>& change) {
  auto tensors = compress(random_matrix<uint16_t>(4, 12, 1.0, 5), 12, "F16", "m.weight");
  change(tensors);
  const TempDir dir;
  dir.write("model.safetensors", write_safetensors(tensors));
  const Checkpoint checkpoint(dir.path());
  std::string error = error_of([&] {
    if (const auto weight = BitmaskWeight::find(checkpoint, "m.weight")) {
      weight->dense();
    }
  });
  expect_message(error, dir.path().string());
  return error;
}

void set_shape(Tensors& tensors, int64_t rows, int64_t columns) {
  tensors[0].bytes = bytes_of(std::vector<int64_t>{rows, columns});
}

TEST(BitmaskWeight, RefusesMismatchedOperands) {
  struct Case {
    std::function<void(Tensors&)> change;
    const char* fragment;
  };
  constexpr int64_t kHuge = int64_t{1} << 62;
  const Case cases[] = {
      {[](Tensors& t) { t.erase(t.begin()); }, R"("m.weight.shape" is missing)"},
      {[](Tensors& t) { t.erase(t.begin() + 1); }, R"("m.weight.bitmask" is missing)"},
      {[](Tensors& t) { t.erase(t.begin() + 2); }, R"("m.weight.compressed" is missing)"},
      {[](Tensors& t) { t.erase(t.begin(), t.begin() + 3); }, "is missing"},
      {[](Tensors& t) { t[0].dtype = "U64"; }, "is U64 [2], but expected is I64 [2]"},
      {[](Tensors& t) {
         t[0].shape = {1, 2};
       },
       "is I64 [1, 2]"},
      {[](Tensors& t) { set_shape(t, 0, 12); }, "says 0 x 12; expected positive"},
      {[](Tensors& t) { set_shape(t, 4, -1); }, "says 4 x -1; expected positive"},
      {[](Tensors& t) { set_shape(t, 5, 12); }, "is U8 [4, 2], but expected is U8 [5, 2]"},
      {[](Tensors& t) { set_shape(t, 4, 17); }, "is U8 [4, 2], but expected is U8 [4, 3]"},
      {[](Tensors& t) { set_shape(t, 4, 11); }, "has 48 values, but the weight 4 x 11"},
      {[](Tensors& t) { t[1].dtype = "I8"; }, "is I8 [4, 2], but expected is U8 [4, 2]"},
      {[](Tensors& t) { t[1].shape = {8}; }, "is U8 [8]"},
      {[](Tensors& t) { t[1].bytes[7] = '\x1f'; }, "after the last column in row 3"},
      {[](Tensors& t) { t[1].bytes[7] = '\x07'; }, "has 48 values, but the bitmask 47 bits"},
      {[](Tensors& t) {
         t[2].shape = {47};
         t[2].bytes.resize(94);
       },
       "more bits up to row 3 than there are values, 47"},
      {[](Tensors& t) { t[2].dtype = "I16"; }, "has the dtype I16; supported are F32, F16"},
      {[](Tensors& t) {
         t[2].dtype = "F8_E4M3";
         t[2].shape = {96};
       },
       "has 96 values, but the weight 4 x 12 elements"},
      {[](Tensors& t) {
         t[2].dtype = "F8_E4M3";
         t[2].shape = {48};
         t[2].bytes.resize(48);
       },
       "has the dtype F8_E4M3"},
      {[](Tensors& t) { t[3].dtype = "F64"; }, "is F64 [4], but expected is I64 [4]"},
      {[](Tensors& t) {
         t[3].shape = {3};
         t[3].bytes.resize(24);
       },
       "is I64 [3], but expected is I64 [4]"},
      {[](Tensors& t) {
         t[3].bytes = bytes_of(std::vector<int64_t>{0, 12, 25, 36});
       },
       "is 25 in row 2, but the rows above have 24 values"},
      {[](Tensors& t) {
         t[3].bytes = bytes_of(std::vector<int64_t>{-1, 12, 24, 36});
       },
       "is -1 in row 0"},
      {[](Tensors& t) {
         t.push_back({"m.weight", "F16", {0}, ""});
       },
       "is stored twice, plainly"},
      {[](Tensors& t) {
         t.push_back({"m.bitmask", "F16", {0}, ""});
       },
       "is stored twice, as"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.fragment);
    expect_message(error_after(c.change), c.fragment);
  }
  for (const auto& shape : {std::pair(kHuge, int64_t{1}), {int64_t{1}, kHuge}, {kHuge, kHuge}}) {
    expect_message(error_after([&](Tensors& t) { set_shape(t, shape.first, shape.second); }),
                   "does not fit 64 bits");
  }
}

}  // namespace
}  // namespace sparsellm
