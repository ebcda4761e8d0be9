#include <cstdint>
#include <memory>
#include <variant>

#include "tests/sparse/general_sparse/naive_encoding.h"
#include "tests/sparse/general_sparse/slices_gpu_fixture.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

TEST_P(GpuGeneralSparse, ProductsInEveryLayoutWithKernels) {
  constexpr int64_t kTokens[] = {1, 2, 3, 5, 8, 9, 17, 33, 64};
  for (const Shape& shape : {Shape{1, 1}, Shape{33, 71}, Shape{300, 520}}) {
    const GuardedTensor x = numbers(64, shape.columns);
    const GuardedTensor strided = numbers(64, shape.columns, Layout::strided);
    size_t number = 0;
    for (const double density : {0.0, 0.02, 0.3, 1.0}) {
      const OwnedTensor w = weight(shape, density);
      for (const general_sparse::Layout& layout : layouts_with_kernels()) {
        SCOPED_TRACE(fmt::format("[{}, {}], density {}, {}", shape.rows, shape.columns, density,
                                 to_text(layout)));
        const std::unique_ptr<WeightMatrix> loaded = load(w.view, layout);
        const Tensor& all_x = ++number % 2 == 0 ? strided.view() : x.view();
        const Expected all = expected_of(all_x, w.view);
        const int64_t tokens = kTokens[number % std::size(kTokens)];
        ASSERT_TRUE(multiplies(
            *loaded, all_x.rows(0, tokens), first_rows(all, tokens, shape.rows),
            {.layout = number % 3 == 0 ? Layout::strided : Layout::contiguous,
             .has_bias = number % 4 < 2,
             .activation = number % 5 == 0 ? Activation::Kind::relu : Activation::Kind::none}))
            << tokens << " tokens";
      }
    }
  }
}

TEST_P(GpuGeneralSparse, EveryCandidateIsRight) {
  for (const Shape& shape : {Shape{700, 516}, Shape{40, 9000}}) {
    const GuardedTensor x = numbers(64, shape.columns);
    const OwnedTensor w = weight(shape, 0.1);
    const Expected all = expected_of(x.view(), w.view);
    for (const general_sparse::Layout& layout : layouts_with_kernels()) {
      const std::unique_ptr<WeightMatrix> loaded = load(w.view, layout);
      const auto& weight = on_cuda(*loaded);
      for (const int64_t tokens : {1, 8, 20, 64}) {
        for (const general_sparse::ProductPlan& plan :
             weight.candidates({.y = GetParam(), .tokens = tokens}, [](const auto& candidate) {
               return !std::holds_alternative<Expansion>(candidate);
             })) {
          ASSERT_TRUE(gives(tokens, shape.rows, first_rows(all, tokens, shape.rows),
                            {.has_bias = true},
                            [&](const Tensor& y, const Epilogue& epilogue) {
                              weight.run(plan, x.view().rows(0, tokens), y, epilogue, *exec);
                            }))
              << to_text(layout) << ", " << tokens << " tokens, " << to_text(plan);
        }
      }
    }
  }
}

// Not only those with kernels.
TEST_P(GpuGeneralSparse, ExpandsAnyRowsOfEveryLayout) {
  for (const Shape& shape : {Shape{1, 1}, Shape{150, 330}}) {
    const OwnedTensor w = weight(shape, 0.2);
    for (const general_sparse::Layout& layout : layout_grid()) {
      const std::unique_ptr<WeightMatrix> loaded = load(w.view, layout);
      for (const Range& rows : {Range{0, shape.rows}, Range{shape.rows / 3, shape.rows / 2},
                                Range{shape.rows - 1, 1}}) {
        const GuardedTensor dense(GetParam(), {rows.count, shape.columns}, Layout::contiguous,
                                  kGpu);
        loaded->expand(rows, dense.view(), *exec);
        gpu->cuda.synchronize();
        ASSERT_TRUE(dense.guards_intact());
        ASSERT_TRUE(same_bits(dense.view(), w.view.rows(rows.begin, rows.count)))
            << to_text(layout) << ", rows from " << rows.begin;
      }
    }
  }
}

}  // namespace
}  // namespace sparsellm
