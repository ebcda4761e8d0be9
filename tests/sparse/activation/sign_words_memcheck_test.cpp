// Sign words packed on CUDA have the bits of those packed on the CPU.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "sparse/activation/sign_words.h"
#include "tests/testing/gpu_context.h"
#include "tests/testing/random.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

class GpuSignWords : public GpuTest {
 protected:
  // A weight on the GPU, and a copy of it on the CPU.
  struct Weight {
    GuardedTensor gpu;
    GuardedTensor cpu;
  };

  // Zeros of both signs, numbers next to them, NaN of both signs, and any other bits.
  uint32_t special_bits() {
    const int bits = 8 * static_cast<int>(size_of(GetParam()));
    const uint32_t sign = 1u << (bits - 1);
    const uint32_t either = random.below(2) == 0 ? 0u : sign;
    switch (random.below(5)) {
      case 0:
        return either;
      case 1:
        return either | static_cast<uint32_t>(1 + random.below(3));  // denormal
      case 2:
        return either | (sign - 1);  // NaN
      default:
        return static_cast<uint32_t>(random.below(int64_t{1} << bits));
    }
  }

  template <class Bits>
  Weight weight(int64_t rows, int64_t columns, Layout layout, Bits bits_of) {
    Weight w{.gpu = {GetParam(), {rows, columns}, layout, kGpu},
             .cpu = {GetParam(), {rows, columns}, layout}};
    const Tensor& view = w.cpu.view();
    const int64_t size = size_of(GetParam());
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < columns; ++column) {
        const uint32_t bits = bits_of();  // in the order of bytes of a little-endian machine
        std::memcpy(static_cast<std::byte*>(view.raw()) + (row * view.row_stride() + column) * size,
                    &bits, static_cast<size_t>(size));
      }
    }
    const std::vector<std::byte> bytes = bytes_of(view);
    copy_bytes(kGpu, w.gpu.view().raw(), {}, bytes.data(), static_cast<int64_t>(bytes.size()));
    return w;
  }

  // Returns whether there are two planes.
  bool expect_bits_of_the_cpu(const Tensor& on_gpu, const Tensor& on_cpu) {
    const OwnedSignWords expected = pack_sign_words(on_cpu, cpu.exec);
    const OwnedSignWords words = pack_sign_words(on_gpu, gpu->exec);
    EXPECT_EQ(words.columns, expected.columns);
    EXPECT_EQ(words.bytes(), expected.bytes());
    EXPECT_EQ(words.view().signs.device(), kGpu);
    EXPECT_TRUE(same_bits(words.view().signs, expected.view().signs));
    EXPECT_EQ(words.view().nonzero.empty(), expected.view().nonzero.empty());
    if (!words.view().nonzero.empty() && !expected.view().nonzero.empty()) {
      EXPECT_TRUE(same_bits(words.view().nonzero, expected.view().nonzero));
    }
    return !words.view().nonzero.empty();
  }

  Random random{87};
};

INSTANTIATE_TEST_SUITE_P(Gpu, GpuSignWords, ::testing::Values(DType::f16, DType::bf16, DType::f32),
                         [](const auto& test) { return std::string(name_of(test.param)); });

// A warp packs 1,024 columns of a row.
TEST_P(GpuSignWords, OfAnyBitsAndSizes) {
  for (const int64_t columns : {1, 31, 32, 33, 70, 256, 1000, 1024, 1025, 2100}) {
    for (const int64_t rows : {1, 3, 20}) {
      for (const Layout layout : {Layout::contiguous, Layout::strided}) {
        SCOPED_TRACE(fmt::format("[{}, {}]", rows, columns));
        const Weight w = weight(rows, columns, layout, [&] { return special_bits(); });
        expect_bits_of_the_cpu(w.gpu.view(), w.cpu.view());
        EXPECT_TRUE(w.gpu.guards_intact());
      }
    }
  }
}

// The smallest denormals, of both signs, are no zeros.
TEST_P(GpuSignWords, ASecondPlaneOnlyIfThereIsAZero) {
  for (const int64_t columns : {1, 31, 32, 70, 1024, 1030}) {
    SCOPED_TRACE(fmt::format("{} columns", columns));
    const uint32_t sign = 1u << (8 * size_of(GetParam()) - 1);
    const Weight w =
        weight(9, columns, Layout::strided, [&] { return random.below(2) == 0 ? 1u : sign | 1u; });
    EXPECT_FALSE(expect_bits_of_the_cpu(w.gpu.view(), w.cpu.view()));
    int64_t count = 0;
    const Weight last_is_zero =
        weight(9, columns, Layout::strided, [&] { return ++count == 9 * columns ? sign : 1u; });
    EXPECT_TRUE(expect_bits_of_the_cpu(last_is_zero.gpu.view(), last_is_zero.cpu.view()));
    count = 0;
    const Weight first_is_zero =
        weight(9, columns, Layout::contiguous, [&] { return ++count == 1 ? 0u : sign | 1u; });
    EXPECT_TRUE(expect_bits_of_the_cpu(first_is_zero.gpu.view(), first_is_zero.cpu.view()));
    // The other rows have none.
    EXPECT_FALSE(expect_bits_of_the_cpu(first_is_zero.gpu.view().rows(1, 8),
                                        first_is_zero.cpu.view().rows(1, 8)));
  }
}

TEST_P(GpuSignWords, OfNoElements) {
  for (const auto& [rows, columns] : {std::pair(0, 5), std::pair(5, 0)}) {
    const GuardedTensor w(GetParam(), {rows, columns}, Layout::contiguous, kGpu);
    const OwnedSignWords words = pack_sign_words(w.view(), gpu->exec);
    EXPECT_EQ(words.view().rows(), rows);
    EXPECT_EQ(words.columns, columns);
    EXPECT_EQ(words.bytes(), 0);
  }
}

TEST_P(GpuSignWords, RefusesWhatIsElsewhere) {
  const GuardedTensor w(GetParam(), {3, 5});
  EXPECT_TRUE(throws_error([&] { pack_sign_words(w.view(), gpu->exec); }, "sign words: w is"));
}

}  // namespace
}  // namespace sparsellm
