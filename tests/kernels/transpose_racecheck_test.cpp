#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/base/cuda_graph.h"
#include "kernels/transpose.h"
#include "tests/testing/gpu_context.h"
#include "tests/testing/random.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

class GpuTranspose : public GpuTest {
 protected:
  // Any bits, those of every NaN among them; what is between the rows stays.
  void fill_with_bits(const Tensor& x) {
    if (x.element_count() == 0) {
      return;
    }
    std::vector<std::byte> bytes = bytes_of(x);
    const int64_t size = size_of(x.dtype());
    for (int64_t row = 0; row < x.size(0); ++row) {
      for (int64_t i = 0; i < x.size(1) * size; ++i) {
        bytes[static_cast<size_t>(row * x.row_stride() * size + i)] =
            static_cast<std::byte>(random.below(256));
      }
    }
    copy_bytes(x.device(), x.raw(), {}, bytes.data(), static_cast<int64_t>(bytes.size()));
  }

  // By a loop of its own, on the CPU.
  static GuardedTensor transpose_of(const Tensor& x) {
    const std::vector<std::byte> bytes = bytes_of(x);
    GuardedTensor y(x.dtype(), {x.size(1), x.size(0)});
    const int64_t size = size_of(x.dtype());
    auto* to = static_cast<std::byte*>(y.view().raw());
    for (int64_t column = 0; column < x.size(1); ++column) {
      for (int64_t row = 0; row < x.size(0); ++row) {
        std::memcpy(to, bytes.data() + (row * x.row_stride() + column) * size,
                    static_cast<size_t>(size));
        to += size;
      }
    }
    return y;
  }

  void run_and_expect_right(const Tensor& x, const Tensor& y) {
    SCOPED_TRACE(
        fmt::format("{} with strides {} and {}", x.shape_string(), x.row_stride(), y.row_stride()));
    fill_with_bits(x);
    transpose(x, y, gpu->exec);
    EXPECT_TRUE(same_bits(y, transpose_of(x).view()));
  }

  Random random{86};
};

INSTANTIATE_TEST_SUITE_P(Gpu, GpuTranspose, ::testing::Values(DType::f16, DType::bf16, DType::f32),
                         [](const auto& test) { return std::string(name_of(test.param)); });

// Tiles are squares of 64 or 32 elements.
TEST_P(GpuTranspose, AnySizeAndStride) {
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{0, 5},
                                      {5, 0},
                                      {1, 1},
                                      {3, 7},
                                      {8, 16},
                                      {64, 64},
                                      {65, 63},
                                      {72, 200},
                                      {130, 67},
                                      {200, 328}}) {
    for (const Layout x_layout : {Layout::contiguous, Layout::strided}) {
      for (const Layout y_layout : {Layout::contiguous, Layout::strided}) {
        const GuardedTensor x(GetParam(), {rows, columns}, x_layout, kGpu);
        const GuardedTensor y(GetParam(), {columns, rows}, y_layout, kGpu);
        run_and_expect_right(x.view(), y.view());
        EXPECT_TRUE(x.guards_intact());
        EXPECT_TRUE(y.guards_intact());
      }
    }
  }
}

// Rows of wider matrices, all of which begin at multiples of 16 bytes: parts of a down projection.
TEST_P(GpuTranspose, AlignedPartsOfWiderMatrices) {
  const GuardedTensor x(GetParam(), {136, 192}, Layout::contiguous, kGpu);
  const GuardedTensor poisoned(GetParam(), {96, 160});
  const auto expect_right_in_y = [&](const Tensor& part, int64_t first_column) {
    const GuardedTensor y(GetParam(), {96, 160}, Layout::contiguous, kGpu);
    const int64_t rows = part.size(1);
    const int64_t end = first_column + part.size(0);
    run_and_expect_right(part, y.view().rows(0, rows).columns(first_column, part.size(0)));
    const auto expect_untouched = [&](const auto& part_of) {
      EXPECT_TRUE(same_bits(part_of(y.view()), part_of(poisoned.view())));
    };
    expect_untouched([&](const Tensor& all) { return all.columns(0, first_column); });
    expect_untouched([&](const Tensor& all) { return all.columns(end, 160 - end); });
    expect_untouched([&](const Tensor& all) { return all.rows(rows, 96 - rows); });
    EXPECT_TRUE(y.guards_intact());
  };
  expect_right_in_y(x.view().columns(80, 96), 8);
  expect_right_in_y(x.view().columns(80, 91), 16);
  expect_right_in_y(x.view().rows(3, 101).columns(80, 91), 16);
}

TEST_P(GpuTranspose, CanBeCaptured) {
  const GuardedTensor x(GetParam(), {40, 72}, Layout::contiguous, kGpu);
  const GuardedTensor y(GetParam(), {72, 40}, Layout::contiguous, kGpu);
  fill_with_bits(x.view());
  const CudaGraph graph(gpu->cuda, [&] { transpose(x.view(), y.view(), gpu->exec); });
  graph.launch();
  gpu->cuda.synchronize();
  EXPECT_TRUE(same_bits(y.view(), transpose_of(x.view()).view()));
}

TEST_P(GpuTranspose, RefusesWhatIsElsewhere) {
  const GuardedTensor x(GetParam(), {3, 5}, Layout::contiguous, kGpu);
  const GuardedTensor y(GetParam(), {5, 3});
  EXPECT_TRUE(throws_error([&] { transpose(x.view(), y.view(), gpu->exec); }, "on cpu; expected"));
}

}  // namespace
}  // namespace sparsellm
