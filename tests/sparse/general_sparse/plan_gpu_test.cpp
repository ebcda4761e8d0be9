// Products by generated kernels on a GPU.

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <vector>

#include "kernels/base/cuda_state.cuh"
#include "kernels/base/kernel_cache.h"
#include "kernels/base/run_time_compiler.h"
#include "sparse/general_sparse/cuda/plan_product_cuda.h"
#include "sparse/general_sparse/general_sparse.h"
#include "sparse/general_sparse/plan_source.h"
#include "sparse/matrices/random_matrix.h"
#include "tests/sparse/general_sparse/compiled_plans.h"
#include "tests/sparse/general_sparse/plan_matrices.h"
#include "tests/sparse/matrices/compressed_product.h"
#include "tests/testing/gpu_context.h"
#include "tests/testing/random.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;
using general_sparse::KernelPlan;
using general_sparse::PlanLimits;
using general_sparse::PlanProduct;
using general_sparse::PlanWork;
using general_sparse::XOrder;

// How many kernels each test compiles, of as many as there can be: more take
// SPARSELLM_PLAN_CASES=COUNT.
int64_t case_count(int64_t usual) {
  const char* const setting = std::getenv("SPARSELLM_PLAN_CASES");
  return setting != nullptr ? std::atoll(setting) : usual;
}

// An operand and its result.
struct Operands {
  int64_t tokens = 1;
  testing::Layout strides = testing::Layout::contiguous;
  bool c_by_columns = false;
};

// Products to check, all by the same kernel.
struct PlanCase {
  KernelPlan plan;
  const CompressedRows* matrix = nullptr;  // of f32
  std::string name;                        // of the matrix
  int shared_rows = 1;
  bool wide_positions = false;
  bool sorted = false;
  std::vector<Operands> operands;
};

// What is made of it before it runs.
struct PreparedCase {
  CompressedRows m;
  EncodedWeight encoding;
  PlanWork work;
  std::optional<general_sparse::PlanFacts> facts;
  std::span<const std::byte> code;
};

class GpuGeneralPlan : public GpuTest {
 protected:
  // Skips where kernels cannot be compiled.
  void check(const std::vector<PlanCase>& cases) {
    if (const std::string problem = compiler_.why_not(); !problem.empty()) {
      GTEST_SKIP() << problem;
    }
    // Some at a time, as their encodings take memory. Compilation takes most of the time.
    constexpr size_t kAtOnce = 256;
    ThreadPool compilers;
    for (size_t first = 0; first < cases.size(); first += kAtOnce) {
      const size_t count = std::min(kAtOnce, cases.size() - first);
      std::vector<std::optional<PreparedCase>> prepared(count);
      compilers.parallel_for(static_cast<int64_t>(count), 1, [&](int64_t begin, int64_t end) {
        for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
          prepared[i].emplace(prepare(cases[first + i]));
        }
      });
      for (size_t i = 0; i < count; ++i) {
        SCOPED_TRACE(text_of(cases[first + i]));
        const PreparedCase& p = *prepared[i];
        const DeviceArrays arrays(p.encoding);
        check_products(PlanProduct(arrays.matrix(cases[first + i].shared_rows),
                                   cases[first + i].plan, p.work, *p.facts, p.code, gpu->cuda),
                       cases[first + i], p.m);
        if (HasFailure()) {
          return;
        }
      }
    }
  }

  PreparedCase prepare(const PlanCase& c) {
    ThreadPool one(1);
    CompressedRows m = with_dtype(copy_of(*c.matrix), GetParam(), one);
    EncodedWeight e = general_sparse::encode(
        m, plan_layout(c.plan, c.shared_rows, c.wide_positions, c.sorted), one);
    const general_sparse::Parts parts(e);
    PlanWork work = plan_work(parts, c.plan);
    general_sparse::PlanFacts facts = plan_facts(parts.layout, e.dtype, work);
    const std::span<const std::byte> code =
        cache_.get(plan_source(c.plan, facts, gpu->cuda.state().compute_capability));
    return {.m = std::move(m),
            .encoding = std::move(e),
            .work = std::move(work),
            .facts = std::move(facts),
            .code = code};
  }

  struct DeviceArrays {
    explicit DeviceArrays(const EncodedWeight& e)
        : dtype(e.dtype),
          rows(e.rows),
          positions(on_device(e.part(general_sparse::kPositions))),
          values(on_device(e.part(general_sparse::kValues))) {}

    static Buffer on_device(const EncodedPart& part) {
      Buffer buffer(kGpu, std::ssize(part.bytes), "a part");
      copy_bytes(kGpu, buffer.data(), {}, part.bytes.data(), buffer.bytes());
      return buffer;
    }
    general_sparse::PlanMatrix matrix(int shared_rows) const {
      return {.positions = positions.data(),
              .values = values.data(),
              .dtype = dtype,
              .rows = rows,
              .shared_rows = shared_rows};
    }

    DType dtype;
    int64_t rows;
    Buffer positions;
    Buffer values;
  };

  static std::string text_of(const PlanCase& c) {
    return fmt::format("{}, {}, {} rows share positions{}{}", c.name, to_text(c.plan),
                       c.shared_rows, c.wide_positions ? ", u32" : "", c.sorted ? ", sorted" : "");
  }

  void check_products(const PlanProduct& product, const PlanCase& c, const CompressedRows& m) {
    for (const Operands& operands : c.operands) {
      SCOPED_TRACE(fmt::format("{} tokens{}{}", operands.tokens,
                               operands.strides == testing::Layout::strided ? ", strided" : "",
                               operands.c_by_columns ? ", C by columns" : ""));
      check_product(product, c.plan.x_order, operands, m);
      if (HasFailure()) {
        return;
      }
    }
  }

  // Against products in double; nothing else is written; the same bits once more.
  void check_product(const PlanProduct& product, XOrder x_order, const Operands& c,
                     const CompressedRows& m) {
    constexpr double kTolerance = 8.0;  // epsilons of sum |a||b|
    const DType dtype = GetParam();
    Random random(static_cast<uint64_t>(c.tokens) + 1);
    const bool by_token = x_order == XOrder::by_token;
    const GuardedTensor x(dtype, {c.tokens, m.columns()}, c.strides, kGpu);
    std::vector<double> numbers(static_cast<size_t>(c.tokens * m.columns()));
    for (double& number : numbers) {
      number = random.uniform(-1.0, 1.0);
    }
    set_values(x.view(), numbers);
    const GuardedTensor x_rows(dtype, {m.columns(), c.tokens}, c.strides, kGpu);
    set_values(x_rows.view(), transposed(values_of(x.view()), c.tokens, m.columns()));
    const Tensor& b = by_token ? x.view() : x_rows.view();
    Expected expected = compressed_product(x.view(), m, cpu.threads);
    if (!c.c_by_columns) {
      expected = {transposed(expected.values, c.tokens, m.rows()),
                  transposed(expected.magnitudes, c.tokens, m.rows())};
    }
    std::vector<GuardedTensor> results;
    for (int run = 0; run < 2; ++run) {
      results.push_back(c.c_by_columns
                            ? GuardedTensor(dtype, {c.tokens, m.rows()}, c.strides, kGpu)
                            : GuardedTensor(dtype, {m.rows(), c.tokens}, c.strides, kGpu));
      const Tensor& result = results.back().view();
      const int64_t bytes = product.workspace_bytes(c.tokens);
      const GuardedTensor partials(DType::f32, {1, std::max<int64_t>(bytes / 4, 1)},
                                   testing::Layout::contiguous, kGpu);
      product.multiply({.b = b.raw(),
                        .b_stride = b.row_stride(),
                        .c = result.raw(),
                        .c_row = c.c_by_columns ? 1 : result.row_stride(),
                        .c_token = c.c_by_columns ? result.row_stride() : 1,
                        .tokens = c.tokens},
                       bytes > 0 ? partials.view().raw() : nullptr, gpu->exec);
      gpu->cuda.synchronize();
      ASSERT_TRUE(all_close(result, expected, kTolerance));
      ASSERT_TRUE(results.back().guards_intact());
      ASSERT_TRUE(partials.guards_intact());
    }
    ASSERT_TRUE(same_bits(results[1].view(), results[0].view()));
  }

  static std::vector<double> transposed(const std::vector<double>& values, int64_t rows,
                                        int64_t columns) {
    std::vector<double> result(values.size());
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        result[static_cast<size_t>(c * rows + r)] = values[static_cast<size_t>(r * columns + c)];
      }
    }
    return result;
  }

  // `plan`, the matrix, the rows that share positions and the first product's number of tokens are
  // given, with all else at random.
  static PlanCase random_case(const KernelPlan& plan, const PlanMatrixCase& matrix, int shared_rows,
                              int64_t tokens, Random& random) {
    constexpr int kProducts = 6;
    const auto yes = [&] { return random.below(2) == 0; };
    PlanCase result{.plan = plan,
                    .matrix = &matrix.m,
                    .name = matrix.name,
                    .shared_rows = shared_rows,
                    .wide_positions = yes(),
                    .sorted = yes(),
                    .operands = {}};
    for (int i = 0; i < kProducts; ++i) {
      result.operands.push_back(
          {.tokens = i == 0 ? tokens : random_tokens(random),
           .strides = yes() ? testing::Layout::contiguous : testing::Layout::strided,
           .c_by_columns = yes()});
    }
    return result;
  }

  static int64_t random_tokens(Random& random) {
    return 1 + random.below(random.below(2) == 0 ? 8 : 70);
  }

  // All that are valid, of few values of each field.
  std::vector<KernelPlan> plans_for(int64_t tokens) const {
    return general_sparse::enumerate_plans({.tokens = tokens,
                                            .value_bytes = GetParam() == DType::f32 ? 4 : 2,
                                            .threads = {64, 256},
                                            .thread_nonzeros = {0, 1, 4, 16},
                                            .steps = {1, 4}});
  }

  RunTimeCompiler compiler_;
  KernelCache cache_{compiler_, {}};
};

TEST_P(GpuGeneralPlan, OfAllKinds) {
  constexpr int64_t kTokens[] = {1, 3, 8, 33};
  const std::vector<PlanMatrixCase> matrices = plan_matrices();
  constexpr uint64_t kSeed = 93;
  SCOPED_TRACE(kSeed);
  Random random(kSeed);
  std::vector<PlanCase> cases;
  const int64_t wanted = case_count(200);
  for (const int64_t tokens : kTokens) {
    const std::vector<KernelPlan> plans = plans_for(tokens);
    // One at random of every `step`, or all where there are few.
    const auto step = std::max<int64_t>(std::ssize(plans) * std::ssize(kTokens) / wanted, 1);
    for (int64_t first = 0; first < std::ssize(plans); first += step) {
      const int64_t i = std::min(first + random.below(step), std::ssize(plans) - 1);
      const PlanMatrixCase& matrix = matrices[cases.size() % matrices.size()];
      const int shared_rows = matrix.name == "blocks" ? 4 : 1 << random.below(2);
      cases.push_back(
          random_case(plans[static_cast<size_t>(i)], matrix, shared_rows, tokens, random));
    }
  }
  check(cases);
}

TEST_P(GpuGeneralPlan, OfRandomMatrices) {
  constexpr uint64_t kSeed = 94;
  SCOPED_TRACE(kSeed);
  Random random(kSeed);
  constexpr int64_t kMatrices = 24;
  std::vector<PlanMatrixCase> matrices;
  for (int64_t i = 0; i < kMatrices; ++i) {
    const MatrixClass matrix_class =
        kMatrixClasses[static_cast<size_t>(i) % std::size(kMatrixClasses)];
    const int64_t rows = 16 + random.below(3000);
    const int64_t columns = matrix_class == MatrixClass::stencil ? rows : 16 + random.below(2000);
    const int64_t nonzeros = std::min(rows * columns / 4, rows + random.below(40000));
    matrices.push_back(
        {std::string(name_of(matrix_class)), random_matrix({.matrix_class = matrix_class,
                                                            .rows = rows,
                                                            .columns = columns,
                                                            .nonzeros = nonzeros,
                                                            .seed = static_cast<uint64_t>(i)},
                                                           cpu.threads)});
  }
  std::vector<PlanCase> cases;
  for (int64_t i = 0; i < case_count(100); ++i) {
    const int64_t tokens = random_tokens(random);
    const std::vector<KernelPlan> plans = plans_for(tokens);
    const PlanMatrixCase& matrix = matrices[static_cast<size_t>(random.below(kMatrices))];
    const KernelPlan& plan = plans[static_cast<size_t>(random.below(std::ssize(plans)))];
    cases.push_back(random_case(plan, matrix, 1 << random.below(4), tokens, random));
  }
  check(cases);
}

// By nvcc, with the test.
TEST_P(GpuGeneralPlan, OfCompiledKernels) {
  const std::vector<PlanMatrixCase> matrices = plan_matrices();
  for (const CompiledPlan& compiled : compiled_plans()) {
    if (compiled.dtype != GetParam()) {
      continue;
    }
    for (const PlanMatrixCase& matrix : matrices) {
      const PlanCase c{.plan = compiled.plan,
                       .matrix = &matrix.m,
                       .name = matrix.name,
                       .sorted = true,
                       .operands = {{.tokens = 1}, {.tokens = 8}, {.tokens = 33}}};
      SCOPED_TRACE(text_of(c));
      const CompressedRows m = with_dtype(copy_of(matrix.m), GetParam(), cpu.threads);
      const EncodedWeight e =
          general_sparse::encode(m, plan_layout(c.plan, 1, false, true), cpu.threads);
      const PlanWork work = plan_work(general_sparse::Parts(e), c.plan);
      const DeviceArrays arrays(e);
      check_products(PlanProduct(arrays.matrix(1), c.plan, work, compiled.kernels, gpu->cuda), c,
                     m);
      ASSERT_FALSE(HasFailure());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Gpu, GpuGeneralPlan,
                         ::testing::Values(DType::f32, DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

}  // namespace
}  // namespace sparsellm
