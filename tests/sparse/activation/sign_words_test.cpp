#include "sparse/activation/sign_words.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "tests/testing/cpu_context.h"
#include "tests/testing/random.h"
#include "tests/testing/tensor_values.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

constexpr int64_t kColumns[] = {1, 31, 32, 33, 70, 256};
constexpr DType kFloats[] = {DType::f32, DType::f16, DType::bf16};

// Some zeros, of both signs.
GuardedTensor pruned(Random& random, DType dtype, int64_t rows, int64_t columns, Layout layout) {
  std::vector<double> values;
  for (int64_t i = 0; i < rows * columns; ++i) {
    const double value = random.uniform(-1.0, 1.0);
    values.push_back(random.below(3) == 0 ? std::copysign(0.0, value) : value);
  }
  GuardedTensor w(dtype, {rows, columns}, layout);
  set_values(w.view(), values);
  return w;
}

std::vector<double> word_values(const Tensor& w, bool (*bit_of)(double)) {
  const std::vector<double> values = values_of(w);
  const int64_t columns = w.size(1);
  std::vector<double> words;
  for (int64_t row = 0; row < w.size(0); ++row) {
    for (int64_t word = 0; 32 * word < columns; ++word) {
      double sum = 0.0;
      for (int64_t i = 0; i < 32 && 32 * word + i < columns; ++i) {
        const double value = values[static_cast<size_t>(row * columns + 32 * word + i)];
        sum += bit_of(value) ? std::ldexp(1.0, static_cast<int>(i)) : 0.0;
      }
      words.push_back(sum);
    }
  }
  return words;
}

bool is_negative(double value) { return std::signbit(value); }
bool is_nonzero(double value) { return value != 0.0; }

TEST(SignWords, SignsAndZerosOfEveryDtypeAndSize) {
  Random random(11);
  ThreadPool threads(3);
  for (DType dtype : kFloats) {
    for (int64_t columns : kColumns) {
      for (int64_t rows : {1, 3, 130}) {
        for (Layout layout : {Layout::contiguous, Layout::strided}) {
          SCOPED_TRACE(fmt::format("{} [{}, {}]", name_of(dtype), rows, columns));
          const GuardedTensor w = pruned(random, dtype, rows, columns, layout);
          std::vector<double> all = values_of(w.view());
          all[0] = 0.0;
          set_values(w.view(), all);
          const OwnedSignWords words = pack_sign_words(w.view(), threads);
          const SignWords view = words.view();
          EXPECT_EQ(view.columns, columns);
          EXPECT_EQ(view.rows(), rows);
          EXPECT_EQ(values_of(view.signs), word_values(w.view(), is_negative));
          EXPECT_EQ(values_of(view.nonzero), word_values(w.view(), is_nonzero));
          EXPECT_EQ(words.bytes(), 2 * rows * ((columns + 31) / 32) * 4);
        }
      }
    }
  }
}

TEST(SignWords, WithoutZerosThereIsOnePlane) {
  Random random(12);
  ThreadPool threads(2);
  for (DType dtype : kFloats) {
    for (int64_t columns : kColumns) {
      const GuardedTensor w = random.tensor(dtype, {17, columns}, Layout::contiguous, 0.5, 1.0);
      const OwnedSignWords words = pack_sign_words(w.view(), threads);
      EXPECT_TRUE(words.view().nonzero.empty());
      EXPECT_EQ(words.bytes(), 17 * ((columns + 31) / 32) * 4);
      EXPECT_TRUE(words.view().slice({.begin = 3, .count = 5}).nonzero.empty());
      // The last element alone.
      std::vector<double> values = values_of(w.view());
      values.back() = -0.0;
      set_values(w.view(), values);
      EXPECT_FALSE(pack_sign_words(w.view(), threads).view().nonzero.empty());
    }
  }
}

TEST(SignWords, SmallestAndLargestElements) {
  ThreadPool threads(1);
  const double infinity = std::numeric_limits<double>::infinity();
  const std::vector<double> values = {std::nan(""), -std::nan(""), infinity, -infinity,
                                      0.0,          -0.0,          1e-7,     -1e-7};
  for (DType dtype : kFloats) {
    const GuardedTensor w(dtype, {1, 8});
    set_values(w.view(), values);
    const OwnedSignWords words = pack_sign_words(w.view(), threads);
    EXPECT_EQ(*words.view().signs.row<uint32_t>(0) & ~3u, 0xa8u) << name_of(dtype);
    EXPECT_EQ(*words.view().nonzero.row<uint32_t>(0), 0xcfu) << name_of(dtype);
  }
}

TEST(SignWords, InPiecesAndSlices) {
  Random random(13);
  ThreadPool threads(2);
  const GuardedTensor w = pruned(random, DType::f16, 130, 70, Layout::contiguous);
  const OwnedSignWords whole = pack_sign_words(w.view(), threads);
  SignPacker packer(130, 70);
  packer.pack(w.view().rows(100, 30), 100, threads);
  packer.pack(w.view().rows(0, 100), 0, threads);
  const OwnedSignWords pieces = std::move(packer).finish();
  EXPECT_EQ(values_of(pieces.view().signs), values_of(whole.view().signs));
  EXPECT_EQ(values_of(pieces.view().nonzero), values_of(whole.view().nonzero));

  const OwnedSignWords half = pack_sign_words(w.view().rows(65, 65), threads);
  const SignWords slice = whole.view().slice({.begin = 65, .count = 65});
  EXPECT_EQ(slice.columns, 70);
  EXPECT_EQ(slice.bytes(), half.bytes());
  EXPECT_EQ(values_of(slice.signs), values_of(half.view().signs));
  EXPECT_EQ(values_of(slice.nonzero), values_of(half.view().nonzero));
}

TEST(SignWords, OfAWeightOnTheDeviceOfAContext) {
  Random random(14);
  CpuContext cpu(2);
  const GuardedTensor w = pruned(random, DType::bf16, 17, 70, Layout::strided);
  const OwnedSignWords expected = pack_sign_words(w.view(), cpu.threads);
  const OwnedSignWords words = pack_sign_words(w.view(), cpu.exec);
  EXPECT_EQ(words.columns, 70);
  EXPECT_EQ(values_of(words.view().signs), values_of(expected.view().signs));
  EXPECT_EQ(values_of(words.view().nonzero), values_of(expected.view().nonzero));
}

TEST(SignWords, OfNoColumnsOrRows) {
  ThreadPool threads(2);
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{3, 0}, {0, 40}, {0, 0}}) {
    const GuardedTensor w(DType::f16, {rows, columns});
    const OwnedSignWords words = pack_sign_words(w.view(), threads);
    EXPECT_EQ(words.columns, columns);
    EXPECT_EQ(words.view().rows(), rows);
    EXPECT_EQ(words.bytes(), 0);
    EXPECT_TRUE(words.view().nonzero.empty());
    EXPECT_TRUE(throws_error(
        [&, rows = rows, columns = columns] {
          SignPacker(rows, columns)
              .pack(GuardedTensor(DType::f16, {4, columns}).view(), 0, threads);
        },
        "4 rows"));
  }
}

TEST(SignWords, ErrorsNameWhatDoesNotFit) {
  ThreadPool threads(1);
  CpuContext cpu;
  const GuardedTensor w(DType::f16, {3, 40});
  const GuardedTensor numbers(DType::i32, {3, 40});
  EXPECT_TRUE(throws_error([] { SignPacker(-1, 3); }, "sign words of a weight [-1, 3]"));
  EXPECT_TRUE(throws_error([&] { pack_sign_words(numbers.view(), threads); },
                           "sign words of i32 [3, 40] on cpu; expected a floating dtype"));
  EXPECT_TRUE(throws_error([&] { pack_sign_words({}, threads); }, "sign words of a tensor []"));
  EXPECT_TRUE(throws_error([&] { pack_sign_words(numbers.view(), cpu.exec); },
                           "sign words: w is i32 [3, 40] on cpu; expected f32, f16 or bf16"));
  EXPECT_TRUE(throws_error([&] { SignPacker(3, 41).pack(w.view(), 0, threads); },
                           "expected a floating dtype and 41 columns"));
  EXPECT_TRUE(throws_error([&] { SignPacker(4, 40).pack(w.view(), 2, threads); }, "3 rows"));
  EXPECT_TRUE(throws_error(
      [&] {
        SignPacker packer(5, 40);
        packer.pack(w.view(), 0, threads);
        std::move(packer).finish();
      },
      "sign words of 3 rows of 5"));
}

}  // namespace
}  // namespace sparsellm
