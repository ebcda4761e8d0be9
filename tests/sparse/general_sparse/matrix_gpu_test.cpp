// Products of sparse matrices on a GPU: rows of any lengths.

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "sparse/matrices/random_matrix.h"
#include "tests/sparse/general_sparse/matrix_products.h"
#include "tests/testing/gpu_context.h"
#include "tests/testing/random.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

class GpuGeneralMatrix : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!IsSkipped()) {
      workspace_ = std::make_unique<Workspace>(kGpu, int64_t{64} << 20);
      exec_.emplace(ExecContext{
          .device = kGpu, .workspace = *workspace_, .threads = cpu.threads, .cuda = &gpu->cuda});
    }
  }

  void check(const CompressedRows& m, std::span<const int64_t> columns = kMatrixColumns,
             std::string_view layout = {}) {
    const CompressedRows of_dtype = with_dtype(copy_of(m), GetParam(), cpu.threads);
    check_products(*general_sparse::load_matrix(of_dtype, kGpu, cpu.threads, layout), of_dtype,
                   columns, *exec_);
  }

  // f32, with rows of these lengths, some of which may be 0.
  CompressedRows with_rows(const std::vector<int64_t>& lengths, int64_t columns) {
    Random random(9);
    int64_t nonzeros = 0;
    for (const int64_t length : lengths) {
      nonzeros += length;
    }
    CompressedRows m(DType::f32, std::ssize(lengths), columns, nonzeros);
    int64_t at = 0;
    for (size_t row = 0; row < lengths.size(); ++row) {
      m.starts()[row] = at;
      const int64_t step = lengths[row] == 0 ? 1 : columns / lengths[row];
      for (int64_t i = 0; i < lengths[row]; ++i, ++at) {
        m.column_indices()[static_cast<size_t>(at)] = static_cast<uint32_t>(i * step);
        m.values<float>()[static_cast<size_t>(at)] = static_cast<float>(random.uniform(-1.0, 1.0));
      }
    }
    m.starts()[lengths.size()] = at;
    return m;
  }

  std::unique_ptr<Workspace> workspace_;
  std::optional<ExecContext> exec_;
};

TEST_P(GpuGeneralMatrix, OfAllClasses) {
  constexpr size_t kOfEach = 3;
  size_t next = 0;
  for (const MatrixClass matrix_class : kMatrixClasses) {
    for (const int64_t nonzeros : {300, 4000, 30000}) {
      next = (next + kOfEach) % (std::size(kMatrixColumns) - kOfEach);
      SCOPED_TRACE(fmt::format("{}, {} nonzeros", name_of(matrix_class), nonzeros));
      check(random_matrix({.matrix_class = matrix_class,
                           .rows = 900,
                           .columns = 900,
                           .nonzeros = nonzeros,
                           .seed = 5},
                          cpu.threads),
            std::span(kMatrixColumns).subspan(next, kOfEach));
      ASSERT_FALSE(HasFailure());
    }
  }
}

// Rows in one piece and in several, beside short ones and empty ones, with positions of 16 and of
// 32 bits.
TEST_P(GpuGeneralMatrix, OfLongRows) {
  std::vector<int64_t> lengths(300, 3);
  for (size_t row = 0; row < lengths.size(); row += 7) {
    lengths[row] = 0;
  }
  lengths[5] = 127;
  lengths[6] = 128;
  lengths[7] = 129;
  lengths[100] = 2047;
  lengths[101] = 2049;
  lengths[299] = 30000;
  check(with_rows(lengths, 60000), std::array<int64_t, 5>{1, 4, 8, 32, 65});
  check(with_rows(lengths, 70000), std::array<int64_t, 3>{1, 8, 33});
  check(with_rows(std::vector<int64_t>(40, 5000), 5000), std::array<int64_t, 2>{8, 65});  // all
  check(with_rows(std::vector<int64_t>(3, 60000), 60000), std::array<int64_t, 2>{1, 16});
  check(with_rows({0, 0, 0}, 10));
  check(with_rows({}, 10));
  check(with_rows({0, 0}, 0));
}

TEST_P(GpuGeneralMatrix, InAnyLayoutThatThereAreKernelsFor) {
  const CompressedRows m = random_matrix(
      {.matrix_class = MatrixClass::skewed, .rows = 900, .columns = 900, .nonzeros = 30000},
      cpu.threads);
  for (const std::string_view positions : {"positions=u16", "positions=u32"}) {
    for (const std::string_view shared : {"shared-rows=1", "shared-rows=2", "shared-rows=8"}) {
      for (const std::string_view sorted : {"sorted=no", "sorted=yes"}) {
        for (const std::string_view vector : {"vector=1", "vector=4"}) {
          if (vector == "vector=1" || shared == "shared-rows=1") {
            check(m, std::array<int64_t, 2>{1, 33},
                  fmt::format("{} {} panel=1024 window=512 {} interleave=1 {}", positions, shared,
                              sorted, vector));
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Gpu, GpuGeneralMatrix,
                         ::testing::Values(DType::f32, DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

}  // namespace
}  // namespace sparsellm
