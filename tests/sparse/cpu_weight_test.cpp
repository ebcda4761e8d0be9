// What sparse weights are on the CPU: panels or compressed rows, by their number of nonzeros.

#include "sparse/cpu/cpu_weight.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sparse/registry.h"
#include "sparse/tca_bme/host/record_walker.h"
#include "sparse/tca_bme/tca_bme.h"
#include "sparse/tca_bme/v1/paper_layout.h"
#include "sparse/tiled_csl/tiled_csl.h"
#include "sparse/tiled_csl/v1/paper_parts.h"
#include "tests/testing/compare.h"
#include "tests/testing/guarded_tensor.h"
#include "tests/testing/random.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

// With exactly this many nonzeros, in random places.
OwnedTensor random_matrix(DType dtype, int64_t rows, int64_t columns, int64_t nonzeros,
                          Random& random) {
  OwnedTensor w = allocate_tensor({}, dtype, {rows, columns}, "a test");
  const int64_t elements = rows * columns;
  int64_t left = nonzeros;
  visit_half(dtype, [&]<class T>(T) {
    for (int64_t i = 0; i < elements; ++i) {
      const bool there =
          static_cast<int64_t>(random.below(static_cast<uint64_t>(elements - i))) < left;
      left -= there ? 1 : 0;
      w.view.data<T>()[i] =
          from_float<T>(there ? static_cast<float>(random.uniform(0.25, 1.0)) : 0.0f);
    }
  });
  return w;
}

GuardedTensor multiply(const WeightMatrix& weight, const Tensor& x, ThreadPool& threads) {
  Workspace workspace({}, weight.workspace_bytes(x.size(0), Sums::fastest));
  ExecContext exec{.device = {}, .workspace = workspace, .threads = threads};
  GuardedTensor y(DType::f32, {x.size(0), weight.out()});
  weight.matmul(x, y.view(), {}, exec);
  EXPECT_TRUE(y.guards_intact());
  return y;
}

// In all sparse formats that keep values, and in their older versions.
std::vector<EncodedWeight> encodings_of(const Tensor& w, ThreadPool& threads) {
  std::vector<EncodedWeight> encodings;
  for (const WeightFormat* format : exact_formats()) {
    if (format->name() != "dense") {
      encodings.push_back(format->encode(w, threads));
    }
  }
  encodings.push_back(tca_bme::encode_paper(w, threads));
  if (tiled_csl_format().holds(w.dtype())) {
    encodings.push_back(tiled_csl::encode_paper(w, threads));
  }
  return encodings;
}

TEST(CpuWeights, AreCompressedRowsWhereFewElementsAreNotZero) {
  EXPECT_LT(least_elements_of_a_nonzero(CpuIsa::avx2),
            least_elements_of_a_nonzero(CpuIsa::avx512_vbmi2));
  const int64_t least = least_elements_of_a_nonzero(best_cpu_isa());
  struct Case {
    int64_t rows;
    int64_t columns;
    int64_t nonzeros;
    bool is_rows;
  };
  Random random(51);
  ThreadPool threads(3);
  for (const auto& [rows, columns, nonzeros, is_rows] :
       {Case{77, 130, 0, true}, Case{77, 130, 1, true}, Case{77, 130, 77 * 130 / least, true},
        Case{77, 130, 77 * 130 / least + 1, false}, Case{77, 130, 77 * 130, false},
        Case{1, 1, 0, true}, Case{1, 1, 1, false}, Case{1, 300, 20, true}, Case{300, 1, 50, false},
        Case{520, 200, 8000, true}}) {
    for (const DType dtype : {DType::f16, DType::bf16}) {
      const OwnedTensor w = random_matrix(dtype, rows, columns, nonzeros, random);
      const auto panels = make_panel_weight<tca_bme::RecordWalker>(
          tca_bme_format().encode(w.view, threads), threads);
      for (EncodedWeight& e : encodings_of(w.view, threads)) {
        SCOPED_TRACE(fmt::format("{} {}, {}, {} x {}, {} nonzeros", e.format, e.version,
                                 name_of(dtype), rows, columns, nonzeros));
        const WeightFormat& format = weight_format(e.format);
        ASSERT_EQ(e.nonzeros, nonzeros);
        const int64_t bytes = format.bytes_on_cpu(e);
        const std::string name = e.format;
        const int64_t workspace_bytes = format.workspace_bytes(e, {}, 5, Sums::fastest);
        const auto weight = format.load(std::move(e), {.threads = threads});
        EXPECT_EQ(dynamic_cast<const CompressedRowsWeight*>(weight.get()) != nullptr, is_rows);
        EXPECT_EQ(dynamic_cast<const PanelWeight*>(weight.get()) != nullptr, !is_rows);
        EXPECT_EQ(weight->format(), name);
        EXPECT_EQ(weight->nonzeros(), nonzeros);
        EXPECT_EQ(weight->bytes(), bytes);
        EXPECT_EQ(weight->workspace_bytes(5, Sums::fastest), workspace_bytes);
        Workspace workspace({}, 0);
        ExecContext exec{.device = {}, .workspace = workspace, .threads = threads};
        const GuardedTensor dense(dtype, {rows, columns});
        weight->expand({.begin = 0, .count = rows}, dense.view(), exec);
        EXPECT_TRUE(same_bits(dense.view(), w.view));
        for (const int64_t tokens : {1, 3, 17}) {
          const GuardedTensor x = random.tensor(DType::f32, {tokens, columns});
          EXPECT_TRUE(same_bits(multiply(*weight, x.view(), threads).view(),
                                multiply(*panels, x.view(), threads).view()))
              << tokens << " tokens";
        }
      }
    }
  }
}

// A walker of any order, with zeros among the nonzeros.
template <class T>
class BackwardsWalker {
 public:
  static constexpr int64_t kBlockRows = 64;
  explicit BackwardsWalker(const EncodedWeight& e) : rows_(e.rows), columns_(e.columns) {}

  template <class F>
  void walk(int64_t block, F&& f) const {
    for (int64_t column = columns_ - 1; column >= 0; --column) {
      for (int64_t row = 0; row < std::min(kBlockRows, rows_ - block * kBlockRows); ++row) {
        f(row, column, from_float<T>(value(block * kBlockRows + row, column)));
      }
    }
  }
  static float value(int64_t row, int64_t column) {
    const int64_t number = row * 3 + column;
    return number % 4 == 1 ? -0.0f : static_cast<float>(number % 4);
  }

 private:
  int64_t rows_;
  int64_t columns_;
};

TEST(CpuWeights, RowsAscendWhateverTheOrderOfTheWalker) {
  constexpr int64_t kRows = 150;
  constexpr int64_t kColumns = 33;
  for (const int thread_count : {1, 3}) {
    ThreadPool threads(thread_count);
    const EncodedWeight e{.format = "backwards",
                          .version = 1,
                          .dtype = DType::bf16,
                          .rows = kRows,
                          .columns = kColumns,
                          .nonzeros = kRows * kColumns,
                          .parts = {}};
    const CompressedRows m = walked_rows<BackwardsWalker>(e, threads);
    validate(m, threads);
    int64_t nonzeros = 0;
    for (int64_t row = 0; row < kRows; ++row) {
      std::vector<uint32_t> columns;
      std::vector<float> values;
      for (int64_t column = 0; column < kColumns; ++column) {
        if (BackwardsWalker<BFloat16>::value(row, column) != 0.0f) {
          columns.push_back(static_cast<uint32_t>(column));
          values.push_back(BackwardsWalker<BFloat16>::value(row, column));
        }
      }
      nonzeros += std::ssize(columns);
      const auto got = m.columns_of(row);
      ASSERT_EQ(std::vector(got.begin(), got.end()), columns) << row;
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_EQ(to_float(m.values_of<BFloat16>(row)[i]), values[i]) << row;
      }
    }
    EXPECT_EQ(m.nonzeros(), nonzeros);
  }
}

}  // namespace
}  // namespace sparsellm
