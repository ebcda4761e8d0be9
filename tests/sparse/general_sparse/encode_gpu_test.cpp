#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/sparse/general_sparse/encode_gpu_fixture.h"
#include "tests/sparse/general_sparse/naive_encoding.h"
#include "tests/sparse/uneven_weights.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

class GpuGeneralSparseEncoderCases : public GpuGeneralSparseEncoder {
 protected:
  OwnedTensor on_gpu(const Tensor& w) {
    OwnedTensor there = allocate_tensor(kGpu, w.dtype(), {w.size(0), w.size(1)}, "w");
    copy_bytes(kGpu, there.view.raw(), {}, w.raw(), w.bytes());
    return there;
  }

  // encode_on_device() makes a weight that is in all like one that is loaded.
  void check_products(const Tensor& w, const LayoutOptions& options = {}) {
    const OwnedTensor there = on_gpu(w);
    const std::unique_ptr<WeightMatrix> made =
        general_sparse_format().encode_on_device(there.view, options, load_context());
    const std::unique_ptr<WeightMatrix> loaded = general_sparse_format().load(
        general_sparse_format().encode(w, options, cpu.threads), load_context());
    const std::unique_ptr<WeightMatrix> copied = made->copy();
    EXPECT_EQ(made->bytes(), loaded->bytes());
    EXPECT_EQ(made->nonzeros(), loaded->nonzeros());
    EXPECT_EQ(copied->nonzeros(), loaded->nonzeros());
    const Shape shape{w.size(0), w.size(1)};
    for (const int64_t tokens : {1, 9, 40, 130}) {
      const GuardedTensor x = numbers(tokens, shape.columns);
      const GuardedTensor expected(GetParam(), {tokens, shape.rows}, Layout::contiguous, kGpu);
      loaded->matmul(x.view(), expected.view(), {}, *exec);
      for (const WeightMatrix* weight : {made.get(), copied.get()}) {
        EXPECT_EQ(weight->plan_text(GetParam(), tokens, *exec),
                  loaded->plan_text(GetParam(), tokens, *exec));
        const GuardedTensor y(GetParam(), {tokens, shape.rows}, Layout::contiguous, kGpu);
        weight->matmul(x.view(), y.view(), {}, *exec);
        gpu->cuda.synchronize();
        EXPECT_TRUE(same_bits(y.view(), expected.view())) << tokens << " tokens";
      }
    }
  }
};

TEST_P(GpuGeneralSparseEncoderCases, AllDensities) {
  for (const Shape& shape : {Shape{1, 1}, Shape{33, 71}, Shape{300, 520}, Shape{700, 9000},
                             Shape{40, 20000}, Shape{257, 8192}, Shape{1030, 64}}) {
    for (const double density : {0.0, 0.0005, 0.02, 0.1, 0.15, 0.3, 0.5, 1.0}) {
      const OwnedTensor w = weight(shape, density);
      for (const Rows rows : {Rows::contiguous, Rows::strided}) {
        ASSERT_TRUE(encodes_as_the_cpu(w.view, rows))
            << fmt::format("[{}, {}], density {}", shape.rows, shape.columns, density);
      }
    }
  }
}

// Uniform ones of the sizes of models are encoded there, in one panel and in several.
TEST_P(GpuGeneralSparseEncoderCases, UniformWeightsAreMadeOnTheDevice) {
  for (const Shape& shape : {Shape{1024, 1024}, Shape{300, 17000}}) {
    for (const double density : {0.02, 0.1, 0.2, 0.5, 0.9}) {
      ASSERT_TRUE(encodes_as_the_cpu(weight(shape, density).view, Rows::contiguous))
          << fmt::format("[{}, {}], density {}", shape.rows, shape.columns, density);
    }
  }
}

TEST_P(GpuGeneralSparseEncoderCases, UnevenWeights) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const OwnedTensor w = uneven_weight(seed);
    if (w.view.dtype() == GetParam()) {
      ASSERT_TRUE(encodes_as_the_cpu(w.view, seed % 3 == 0 ? Rows::strided : Rows::contiguous))
          << "seed " << seed;
    }
  }
}

// NaN, infinities, subnormals and -0.
TEST_P(GpuGeneralSparseEncoderCases, SpecialValues) {
  for (const double density : {0.02, 0.1, 0.3, 1.0}) {
    const OwnedTensor w = special_matrix(GetParam(), 300, 1500, density, random);
    ASSERT_TRUE(encodes_as_the_cpu(w.view, Rows::contiguous)) << density;
  }
  for (const NamedMatrix& matrix : small_matrices(GetParam(), cpu.threads)) {
    ASSERT_TRUE(encodes_as_the_cpu(matrix.w.view, Rows::contiguous)) << matrix.name;
  }
  for (const Pattern pattern : kPatterns) {
    ASSERT_TRUE(encodes_as_the_cpu(weight({300, 1500}, 0.2, pattern).view, Rows::strided))
        << name_of(pattern);
  }
}

// Rows that share their positions.
TEST_P(GpuGeneralSparseEncoderCases, KeptBlocks) {
  for (const int64_t block_rows : {2, 4, 8}) {
    for (const double density : {0.02, 0.1, 0.3, 0.5}) {
      for (const Shape& shape : {Shape{515, 700}, Shape{4100, 300}, Shape{90, 9000}}) {
        ASSERT_TRUE(
            encodes_as_the_cpu(kept_blocks(shape, block_rows, density).view, Rows::contiguous))
            << fmt::format("[{}, {}], {} rows, density {}", shape.rows, shape.columns, block_rows,
                           density);
      }
    }
  }
}

// In windows of more rows than a block has threads.
TEST_P(GpuGeneralSparseEncoderCases, RowsOfDifferentDensities) {
  const Shape shape{5000, 1030};
  const OwnedTensor w = weight(shape, 0.3);
  std::vector<double> values = values_of(w.view);
  for (size_t i = 0; i < values.size(); ++i) {
    const auto row = static_cast<int64_t>(i) / shape.columns;
    const double kept = 0.1 + 0.9 * static_cast<double>(row * 37 % 100) / 100.0;
    values[i] = random.uniform(0.0, 1.0) < kept ? values[i] : 0.0;
  }
  set_values(w.view, values);
  const EncodedWeight encoding = general_sparse_format().encode(w.view, cpu.threads);
  EXPECT_EQ(general_sparse::read_layout(encoding).window_rows, 4096);
  EXPECT_TRUE(encodes_as_the_cpu(w.view, Rows::contiguous));
}

TEST_P(GpuGeneralSparseEncoderCases, LargeWeights) {
  for (const double density : {0.5, 0.1}) {
    EXPECT_TRUE(encodes_as_the_cpu(weight({9000, 5001}, density).view, Rows::contiguous))
        << density;
  }
}

TEST_P(GpuGeneralSparseEncoderCases, AnEncodingMadeOnTheDeviceMultiplies) {
  for (const double density : {0.05, 0.4}) {
    check_products(weight({700, 520}, density).view);
    check_products(weight({100, 9000}, density).view);
  }
}

// The device's encoder makes others: the host's does.
TEST_P(GpuGeneralSparseEncoderCases, AnEncodingInALayoutMultiplies) {
  const OwnedTensor w = weight({700, 520}, 0.3);
  for (const char* layout :
       {"positions=bits shared-rows=1 panel=128 window=64 sorted=no interleave=1 vector=1",
        "positions=u32 shared-rows=2 panel=0 window=256 sorted=no interleave=1 vector=1"}) {
    check_products(w.view, {.layout = layout});
  }
  check_products(w.view, {.goal = LayoutFor::size});
}

// Whose groups are apart, with rows that warps have and such that blocks have.
TEST_P(GpuGeneralSparseEncoderCases, UnevenRows) {
  const OwnedTensor w = weight({1200, 520}, 1.0);
  auto* const elements = static_cast<uint16_t*>(w.view.raw());
  for (int64_t row = 0; row < 1200; ++row) {
    const int64_t kept = row % 256 == 3 ? 520 : 1;
    std::fill(elements + row * 520 + kept, elements + (row + 1) * 520, uint16_t{0});
  }
  EXPECT_TRUE(encodes_as_the_cpu(w.view, Rows::contiguous));
  check_products(w.view);
  check_products(weight({700, 5200}, 0.001).view);
  check_products(weight({30, 70000}, 0.0001).view);
}

INSTANTIATE_TEST_SUITE_P(Gpu, GpuGeneralSparseEncoderCases,
                         ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

}  // namespace
}  // namespace sparsellm
