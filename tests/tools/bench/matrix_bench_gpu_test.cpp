// Products of small sparse matrices by all contenders on a GPU.

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/device.h"
#include "tests/testing/gpu_context.h"
#include "tools/bench/matrix_bench.h"
#include "tools/bench/matrix_contender.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;
using general_sparse::Order;
using Role = MatrixContenderKind::Role;

class BenchMatrices : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) {
      GTEST_SKIP() << "there is no CUDA device";
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Gpu, BenchMatrices, ::testing::Values(DType::f32, DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

MatrixBenchOptions options_of(DType dtype) {
  MatrixBenchOptions options;
  for (const MatrixClass matrix_class : kMatrixClasses) {
    options.matrices.push_back({.name = std::string(name_of(matrix_class)),
                                .file = {},
                                .random = {.matrix_class = matrix_class,
                                           .rows = 1024,
                                           .columns = 1024,
                                           .nonzeros = 9000,
                                           .seed = 2}});
  }
  options.columns = {1, 8, 17};
  options.orders = {Order::rows, Order::columns};
  options.dtype = dtype;
  options.repeat = 2;
  options.rotation_bytes = 1 << 18;
  options.device = kGpu;
  return options;
}

TEST_P(BenchMatrices, EveryContenderIsRight) {
  const MatrixBenchOptions options = options_of(GetParam());
  const std::vector<MatrixResult> results =
      bench_matrices(options, matrix_contenders(kGpu, MatrixSearch()), [](const MatrixResult&) {});
  EXPECT_EQ(results.size(), kMatrixClasses.size() * 2 * 3 * 3);
  for (const MatrixResult& result : results) {
    SCOPED_TRACE(fmt::format("{}, N {}, {}: {} {}: {}", result.matrix, result.n,
                             name_of(result.order), result.contender, result.algorithm,
                             result.note));
    EXPECT_TRUE(result.verified);
    EXPECT_LE(result.worst_error, 1.0);
    if (GetParam() == DType::f32) {  // else cuSPARSE has some that add up in 16 bits
      EXPECT_EQ(result.note.find("wrong result"), std::string::npos);
    }
    EXPECT_GT(result.dense_speedup, 0.0);
    EXPECT_EQ(result.speedup > 0.0, result.role == Role::measured);
    EXPECT_EQ(result.baseline.starts_with("cusparse "), result.role == Role::measured);
  }
}

TEST_P(BenchMatrices, EveryStageOfASearchIsRight) {
  MatrixBenchOptions options = options_of(GetParam());
  options.matrices.resize(2);
  options.columns = {8};
  options.search = {.plans = 2, .stages = true};
  std::vector<MatrixContenderKind> kinds = matrix_contenders(kGpu, options.search);
  std::erase_if(kinds, [](const MatrixContenderKind& kind) { return kind.role != Role::measured; });
  ASSERT_EQ(kinds.size(), 5);
  const std::vector<MatrixResult> results =
      bench_matrices(options, kinds, [](const MatrixResult&) {});
  EXPECT_EQ(results.size(), 2 * 2 * kinds.size());
  for (const MatrixResult& result : results) {
    SCOPED_TRACE(fmt::format("{}, {}: {} {}: {}", result.matrix, name_of(result.order),
                             result.contender, result.algorithm, result.note));
    EXPECT_TRUE(result.verified);
    if (result.contender.starts_with("general_sparse +")) {
      EXPECT_TRUE(result.algorithm.starts_with("plan "));
    }
  }
}

// Each algorithm of cuSPARSE by itself: which are tried, and that those that cuSPARSE has for an
// order are right.
TEST_P(BenchMatrices, AlgorithmsOfCusparse) {
  class OneAlgorithm : public MatrixContender {
   public:
    OneAlgorithm(std::unique_ptr<MatrixContender> all, std::string name)
        : all_(std::move(all)), name_(std::move(name)) {}
    int64_t copies() const override { return all_->copies(); }
    std::vector<MatrixProduct> bind(const Tensor& b, const Tensor& c, Order order) override {
      std::vector<MatrixProduct> products = all_->bind(b, c, order);
      std::erase_if(products, [&](const MatrixProduct& product) {
        return product.kernel->algorithm(Launches::ordinary) != name_;
      });
      return products;
    }

   private:
    std::unique_ptr<MatrixContender> all_;
    std::string name_;
  };
  MatrixBenchOptions options = options_of(GetParam());
  std::erase_if(options.matrices,
                [](const MatrixSource& source) { return source.class_name() != "blocks"; });
  const MatrixContenderKind cusparse = matrix_contenders(kGpu, MatrixSearch()).at(1);
  ASSERT_EQ(cusparse.name, "cusparse");
  std::vector<MatrixContenderKind> kinds;
  for (const char* name :
       {"CSR_ALG1", "CSR_ALG2", "CSR_ALG3", "COO_ALG1", "COO_ALG2", "COO_ALG3", "COO_ALG4",
        "BSR_ALG1", "SpMV CSR_ALG1", "SpMV CSR_ALG2", "SpMV COO_ALG1", "SpMV COO_ALG2"}) {
    kinds.push_back(
        {.name = name, .role = Role::dense, .make = [&, name](const MatrixInput& input) {
           return std::make_unique<OneAlgorithm>(cusparse.make(input), name);
         }});
  }
  std::set<std::string> right;
  for (const MatrixResult& result : bench_matrices(options, kinds, [](const MatrixResult&) {})) {
    if (GetParam() == DType::f32) {  // others may add up in 16 bits
      EXPECT_EQ(result.note.find("wrong result"), std::string::npos)
          << result.contender << ", N " << result.n << ": " << result.note;
    }
    if (result.verified) {
      right.insert(result.contender);
      EXPECT_GT(result.bytes, 0);
    }
  }
  EXPECT_FALSE(right.empty());
  if (GetParam() == DType::f32) {
    for (const char* name : {"CSR_ALG1", "CSR_ALG2", "COO_ALG1", "COO_ALG4", "SpMV CSR_ALG1"}) {
      EXPECT_TRUE(right.contains(name)) << name;
    }
  }
}

}  // namespace
}  // namespace sparsellm
