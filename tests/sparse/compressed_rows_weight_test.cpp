// Products from compressed rows on the CPU, by every instruction set that this CPU has.

#include "sparse/cpu/compressed_rows_weight.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/cpu_isa.h"
#include "kernels/base/workspace.h"
#include "sparse/cpu/panels/panel_weight.h"
#include "sparse/registry.h"
#include "sparse/tca_bme/host/record_walker.h"
#include "tests/sparse/matrices/compressed_product.h"
#include "tests/sparse/product_reference.h"
#include "tests/testing/compare.h"
#include "tests/testing/random.h"
#include "tests/testing/tensor_values.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;
using TensorLayout = sparsellm::testing::Layout;

constexpr double kFactor = 8.0;
constexpr int64_t kTokenCounts[] = {1, 2, 3, 7, 8, 17, 64, 65, 130};

// Values between -1 and 1, finite, with the probability `density`; some are subnormal in f16.
OwnedTensor random_weight(DType dtype, int64_t rows, int64_t columns, double density,
                          Random& random) {
  OwnedTensor w = allocate_tensor({}, dtype, {rows, columns}, "a test");
  visit_float(dtype, [&]<class T>(T) {
    for (int64_t i = 0; i < w.view.element_count(); ++i) {
      const double scale = random.below(8) == 0 ? 1e-5 : 1.0;
      const double value = scale * random.uniform(-1.0, 1.0);
      const bool there = density >= 1.0 || random.uniform(0.0, 1.0) < density;
      w.view.data<T>()[i] = from_float<T>(there ? static_cast<float>(value) : 0.0f);
    }
  });
  return w;
}

std::vector<CpuIsa> isas() {
  std::vector<CpuIsa> there;
  for (const CpuIsa isa : {CpuIsa::portable, CpuIsa::avx2, CpuIsa::avx512, CpuIsa::avx512_vbmi2}) {
    if (isa <= best_cpu_isa()) {
      there.push_back(isa);
    }
  }
  return there;
}

CompressedRowsWeight weight_of(const Tensor& w) {
  ThreadPool threads(2);
  return {"general_sparse", compress_rows(w, threads)};
}

struct Setting {
  CpuIsa isa = best_cpu_isa();
  int threads = 1;
  TensorLayout layout = TensorLayout::contiguous;
  Epilogue epilogue = {};
};

GuardedTensor multiply(const WeightMatrix& weight, const Tensor& x,
                       const Setting& run = Setting()) {
  ThreadPool threads(run.threads);
  Workspace workspace({}, weight.workspace_bytes(x.size(0), Sums::fastest));
  ExecContext exec{.device = {}, .workspace = workspace, .threads = threads, .isa = run.isa};
  GuardedTensor y(DType::f32, {x.size(0), weight.out()}, run.layout);
  weight.matmul(x, y.view(), run.epilogue, exec);
  EXPECT_TRUE(y.guards_intact());
  return y;
}

// That all instruction sets and thread counts have the bits of `expected`.
void expect_bits(const WeightMatrix& weight, const Tensor& x, const Tensor& expected) {
  for (const CpuIsa isa : isas()) {
    for (const int threads : {1, 3}) {
      EXPECT_TRUE(same_bits(multiply(weight, x, {.isa = isa, .threads = threads}).view(), expected))
          << name_of(isa) << ", " << threads << " threads, " << x.size(0) << " tokens";
    }
  }
}

TEST(CompressedRowsWeights, HaveTheBitsOfPanels) {
  Random random(31);
  struct Size {
    int64_t rows;
    int64_t columns;
  };
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const auto [rows, columns] : {Size{1, 1}, Size{7, 65}, Size{77, 133}}) {
      for (const double density : {0.0, 0.01, 0.3, 1.0}) {
        SCOPED_TRACE(fmt::format("{} x {}, density {}", rows, columns, density));
        const OwnedTensor w = random_weight(dtype, rows, columns, density, random);
        const CompressedRowsWeight weight = weight_of(w.view);
        ThreadPool threads(2);
        const WeightFormat& format = weight_format("tca_bme");
        const auto panels =
            make_panel_weight<tca_bme::RecordWalker>(format.encode(w.view, threads), threads);
        ASSERT_EQ(panels->nonzeros(), weight.nonzeros());
        for (const int64_t tokens : kTokenCounts) {
          const GuardedTensor x = random.tensor(DType::f32, {tokens, columns});
          expect_bits(weight, x.view(), multiply(*panels, x.view()).view());
        }
      }
    }
  }
}

TEST(CompressedRowsWeights, MultiplyWithEpiloguesAndStridedTensors) {
  Random random(32);
  constexpr int64_t kOut = 131;
  constexpr int64_t kIn = 150;
  ThreadPool threads(2);
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const double density : {0.02, 0.3, 1.0}) {
      const OwnedTensor w = random_weight(dtype, kOut, kIn, density, random);
      const CompressedRowsWeight weight = weight_of(w.view);
      const GuardedTensor bias = random.tensor(DType::f16, {kOut});
      for (const int64_t tokens : kTokenCounts) {
        SCOPED_TRACE(fmt::format("{}, density {}, {} tokens", name_of(dtype), density, tokens));
        const GuardedTensor x = random.tensor(DType::f32, {tokens, kIn}, TensorLayout::strided);
        const Expected expected = product(x.view(), w.view, threads);
        EXPECT_TRUE(all_close(multiply(weight, x.view()).view(), expected, kFactor));
        const Setting run{
            .threads = 3,
            .layout = TensorLayout::strided,
            .epilogue = {.bias = bias.view(), .activation = {Activation::Kind::relu}}};
        EXPECT_TRUE(all_close(
            multiply(weight, x.view(), run).view(),
            with_epilogue(expected, values_of(bias.view()), Activation::Kind::relu), kFactor));
      }
    }
  }
}

// A row that is shared out by tokens, among short and empty ones.
TEST(CompressedRowsWeights, ShareOutLongRows) {
  Random random(33);
  constexpr int64_t kRows = 67;
  constexpr int64_t kColumns = 70000;
  ThreadPool threads(2);
  for (const bool others : {false, true}) {
    CompressedRows m(DType::f32, kRows, kColumns, 2 * kColumns + (others ? 3 * (kRows - 2) : 0));
    int64_t i = 0;
    for (int64_t row = 0; row < kRows; ++row) {
      m.starts()[static_cast<size_t>(row)] = i;
      const bool is_long = row == 5 || row == 66;
      const int64_t count = is_long ? kColumns : others ? 3 : 0;
      for (int64_t n = 0; n < count; ++n, ++i) {
        m.column_indices()[static_cast<size_t>(i)] =
            static_cast<uint32_t>(is_long ? n : (row * 1000 + n * 111));
        m.values<float>()[static_cast<size_t>(i)] = static_cast<float>(random.uniform(-1.0, 1.0));
      }
    }
    m.starts()[kRows] = i;
    validate(m, threads);
    for (const int64_t tokens : {1, 2, 17, 33}) {
      const GuardedTensor x = random.tensor(DType::f32, {tokens, kColumns});
      const Expected expected = compressed_product(x.view(), m, threads);
      const CompressedRowsWeight weight("general_sparse", [&] {
        CompressedRows copy(DType::f32, kRows, kColumns, m.nonzeros());
        std::ranges::copy(m.starts(), copy.starts().begin());
        std::ranges::copy(m.column_indices(), copy.column_indices().begin());
        std::ranges::copy(m.values<float>(), copy.values<float>().begin());
        return copy;
      }());
      const GuardedTensor y = multiply(weight, x.view(), {.isa = CpuIsa::portable});
      // The worst case of a chain would be its length.
      EXPECT_TRUE(all_close(y.view(), expected, 64.0));
      expect_bits(weight, x.view(), y.view());
    }
  }
}

// Of lengths of which no two in a block are alike.
TEST(CompressedRowsWeights, MultiplyRowsOfAnyLength) {
  Random random(34);
  constexpr int64_t kSize = 150;
  ThreadPool threads(2);
  OwnedTensor w = random_weight(DType::f32, kSize, kSize, 1.0, random);
  const std::vector<int32_t> lengths = random.permutation(kSize);
  for (int64_t row = 0; row < kSize; ++row) {
    const auto length = lengths[static_cast<size_t>(row)];
    std::fill(w.view.row<float>(row) + length, w.view.row<float>(row) + kSize, 0.0f);
  }
  const CompressedRowsWeight weight = weight_of(w.view);
  for (const int64_t tokens : kTokenCounts) {
    const GuardedTensor x = random.tensor(DType::f32, {tokens, kSize});
    const GuardedTensor y = multiply(weight, x.view(), {.isa = CpuIsa::portable});
    EXPECT_TRUE(all_close(y.view(), product(x.view(), w.view, threads), kFactor));
    expect_bits(weight, x.view(), y.view());
  }
}

TEST(CompressedRowsWeights, TokensHaveTheSameBitsInAnyCompany) {
  Random random(35);
  const OwnedTensor w = random_weight(DType::f32, 90, 200, 0.2, random);
  const CompressedRowsWeight weight = weight_of(w.view);
  const GuardedTensor x = random.tensor(DType::f32, {130, 200});
  const GuardedTensor all = multiply(weight, x.view());
  for (const int64_t tokens : kTokenCounts) {
    const int64_t first = 130 - tokens;
    expect_bits(weight, x.view().rows(first, tokens), all.view().rows(first, tokens));
  }
}

TEST(CompressedRowsWeights, MayBeEmpty) {
  Random random(36);
  for (const DType dtype : {DType::f32, DType::f16}) {
    for (const int64_t rows : {0, 3}) {
      for (const int64_t columns : {0, 5}) {
        const CompressedRowsWeight weight = weight_of(
            random_weight(dtype, rows, columns, rows * columns == 0 ? 1.0 : 0.0, random).view);
        EXPECT_EQ(weight.nonzeros(), 0);
        const GuardedTensor bias = random.tensor(DType::f32, {rows});
        for (const int64_t tokens : {0, 1, 2, 65}) {
          const GuardedTensor x = random.tensor(DType::f32, {tokens, columns});
          const GuardedTensor y =
              multiply(weight, x.view(),
                       {.threads = 3, .epilogue = {.bias = bias.view(), .activation = {}}});
          for (int64_t t = 0; t < tokens; ++t) {
            for (int64_t row = 0; row < rows; ++row) {
              EXPECT_EQ(y.view().row<float>(t)[row], bias.view().data<float>()[row]);
            }
          }
        }
      }
    }
  }
}

TEST(CompressedRowsWeights, InfinityReachesTheRowsThatHaveANonzeroThere) {
  Random random(37);
  OwnedTensor w = random_weight(DType::f16, 30, 40, 0.3, random);
  const CompressedRowsWeight weight = weight_of(w.view);
  for (const int64_t tokens : {1, 3, 9}) {
    const GuardedTensor x = random.tensor(DType::f32, {tokens, 40});
    x.view().row<float>(tokens - 1)[11] = std::numeric_limits<float>::infinity();
    for (const CpuIsa isa : isas()) {
      const GuardedTensor y = multiply(weight, x.view(), {.isa = isa});
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t row = 0; row < 30; ++row) {
          const bool reached = t == tokens - 1 && to_float(w.view.row<Half>(row)[11]) != 0.0f;
          EXPECT_EQ(std::isfinite(y.view().row<float>(t)[row]), !reached);
        }
      }
    }
  }
}

TEST(CompressedRowsWeights, ExpandAndCopyEveryBit) {
  Random random(38);
  ThreadPool threads(3);
  Workspace workspace({}, 0);
  ExecContext exec{.device = {}, .workspace = workspace, .threads = threads};
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const OwnedTensor w = random_weight(dtype, 70, 33, 0.2, random);
    const CompressedRowsWeight weight = weight_of(w.view);
    EXPECT_EQ(weight.format(), "general_sparse");
    EXPECT_EQ(weight.dtype(), dtype);
    EXPECT_EQ(weight.bytes(), 71 * 9 + *weight.nonzeros() * (4 + size_of(dtype)));
    const std::unique_ptr<WeightMatrix> copy = weight.copy();
    EXPECT_EQ(copy->bytes(), weight.bytes());
    for (const auto& rows : {Range{0, 70}, Range{13, 50}, Range{69, 1}, Range{70, 0}}) {
      for (const WeightMatrix* const from : {static_cast<const WeightMatrix*>(&weight),
                                             static_cast<const WeightMatrix*>(copy.get())}) {
        const GuardedTensor dense(dtype, {rows.count, 33});
        from->expand(rows, dense.view(), exec);
        EXPECT_TRUE(same_bits(dense.view(), w.view.rows(rows.begin, rows.count)));
        EXPECT_TRUE(dense.guards_intact());
      }
    }
    const GuardedTensor x = random.tensor(DType::f32, {5, 33});
    EXPECT_TRUE(same_bits(multiply(*copy, x.view()).view(), multiply(weight, x.view()).view()));
    exec.isa = CpuIsa::portable;
    EXPECT_EQ(weight.plan_text(DType::f32, 1, exec), "compressed rows, portable");
  }
}

TEST(CompressedRowsWeights, RefuseWrongTensors) {
  Random random(39);
  ThreadPool threads(1);
  const CompressedRowsWeight weight =
      weight_of(random_weight(DType::f32, 10, 20, 0.5, random).view);
  Workspace workspace({}, weight.workspace_bytes(3, Sums::fastest));
  ExecContext exec{.device = {}, .workspace = workspace, .threads = threads};
  const GuardedTensor x = random.tensor(DType::f32, {3, 20});
  const GuardedTensor y(DType::f32, {3, 10});
  const auto refuses = [&](const Tensor& from, const Tensor& to) {
    return throws_error([&] { weight.matmul(from, to, {}, exec); }, "general_sparse");
  };
  EXPECT_TRUE(refuses(x.view().columns(0, 19), y.view()));
  EXPECT_TRUE(refuses(x.view(), y.view().columns(0, 9)));
  EXPECT_TRUE(refuses(x.view(), y.view().rows(0, 2)));
  EXPECT_TRUE(refuses(GuardedTensor(DType::f16, {3, 20}).view(), y.view()));
  const GuardedTensor dense(DType::f16, {10, 20});
  EXPECT_TRUE(throws_error([&] { weight.expand({0, 10}, dense.view(), exec); }, "expand"));
}

TEST(CompressedRowsWeightBytes, AreChecked) {
  EXPECT_EQ(compressed_rows_weight_bytes(0, 0, DType::f16), 9);
  EXPECT_EQ(compressed_rows_weight_bytes(10, 7, DType::f32), 11 * 9 + 7 * 8);
  EXPECT_TRUE(throws_error([] { compressed_rows_weight_bytes(INT64_MAX, 0, DType::f32); },
                           "bytes of a weight"));
  EXPECT_TRUE(throws_error([] { compressed_rows_weight_bytes(0, INT64_MAX / 2, DType::f32); },
                           "bytes of a weight"));
}

}  // namespace
}  // namespace sparsellm
