#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "sparse/tiled_csl/v1/paper_parts.h"
#include "tests/sparse/tiled_csl/tile_gpu_fixture.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

// Tokens for each kernel, and for several launches of it.
TEST_P(GpuTiledCsl, ProductsOfAllPatterns) {
  constexpr int64_t kTokens[] = {1, 3, 8, 9, 17, 33, 64, 65, 100, 128, 130, 300};
  for (const Shape& shape :
       {Shape{1, 1}, Shape{16, 16}, Shape{128, 64}, Shape{127, 65}, Shape{256, 768}, {520, 130}}) {
    const GuardedTensor x = numbers(300, shape.columns);
    const GuardedTensor strided = numbers(300, shape.columns, Layout::strided);
    size_t number = 0;
    for (Pattern pattern : kPatterns) {
      for (double density : {0.0, 0.001, 0.1, 0.3, 0.5, 1.0}) {
        SCOPED_TRACE(fmt::format("[{}, {}], density {}, {}", shape.rows, shape.columns, density,
                                 name_of(pattern)));
        const OwnedTensor w = weight(shape, density, pattern);
        const std::unique_ptr<WeightMatrix> loaded = load(w.view);
        const Tensor& all_x = ++number % 2 == 0 ? strided.view() : x.view();
        const Expected all = expected_of(all_x, w.view);
        for (int64_t tokens : kTokens) {
          ++number;
          // For many tokens there may be another rounding before the bias, and a NaN may pass.
          const bool one_rounding = tokens <= 128;
          ASSERT_TRUE(
              is_right(*loaded, all_x.rows(0, tokens), first_rows(all, tokens, shape.rows),
                       {.layout = number % 3 == 0 ? Layout::strided : Layout::contiguous,
                        .has_bias = one_rounding && number % 4 < 2,
                        .activation = one_rounding && number % 5 == 0 ? Activation::Kind::relu
                                                                      : Activation::Kind::none}))
              << tokens << " tokens";
        }
      }
    }
  }
}

// Records of many lengths: the largest decides how large the slots in shared memory are.
TEST_P(GpuTiledCsl, ProductsOfAllDensities) {
  const Shape shape{256, 704};
  const GuardedTensor x = numbers(256, shape.columns);
  for (int percent = 1; percent <= 40; ++percent) {
    const OwnedTensor w = weight(shape, percent / 100.0);
    const std::unique_ptr<WeightMatrix> loaded = load(w.view);
    const Expected all = expected_of(x.view(), w.view);
    for (int64_t tokens : {8, 40, 100, 256}) {
      ASSERT_TRUE(is_right(*loaded, x.view().rows(0, tokens), first_rows(all, tokens, shape.rows),
                           {.has_bias = true}))
          << percent << " % nonzeros, " << tokens << " tokens";
    }
  }
}

// Of rows of tiles that several warps and blocks share, and of full tiles beside empty ones.
TEST_P(GpuTiledCsl, ProductsOfUnevenTiles) {
  for (const Shape& shape : {Shape{128, 9000}, Shape{900, 1024}, Shape{3000, 320}}) {
    const OwnedTensor w = uneven_weight(shape);
    const std::unique_ptr<WeightMatrix> loaded = load(w.view);
    const GuardedTensor x = numbers(130, shape.columns);
    const Expected all = expected_of(x.view(), w.view);
    for (int64_t tokens : {1, 8, 16, 24, 48, 64, 65, 128, 130}) {
      ASSERT_TRUE(is_right(*loaded, x.view().rows(0, tokens), first_rows(all, tokens, shape.rows),
                           {.has_bias = tokens <= 128}))
          << fmt::format("[{}, {}], {} tokens", shape.rows, shape.columns, tokens);
    }
  }
}

TEST_P(GpuTiledCsl, ExpandsAnyRows) {
  for (const Shape& shape : {Shape{1, 1}, Shape{128, 64}, Shape{127, 65}, Shape{600, 136},
                             Shape{1100, 130}, Shape{65, 40}}) {
    for (double density : {0.0, 0.01, 0.1, 0.2, 0.4, 0.6, 1.0}) {
      const OwnedTensor w = weight(shape, density, Pattern::negative_zeros);
      const std::unique_ptr<WeightMatrix> loaded = load(w.view);
      clear_negative_zeros(w.view);
      for (const Range& range :
           {Range{0, shape.rows}, Range{shape.rows - 1, 1}, Range{shape.rows, 0}, Range{3, 11},
            Range{61, 66}, Range{127, 2}, Range{500, 100}, Range{512, 512}}) {
        if (range.begin + range.count > shape.rows) {
          continue;
        }
        const GuardedTensor dense(GetParam(), {range.count, shape.columns}, Layout::contiguous,
                                  kGpu);
        loaded->expand(range, dense.view(), *exec);
        gpu->cuda.synchronize();
        EXPECT_TRUE(same_bits(dense.view(), w.view.rows(range.begin, range.count)))
            << fmt::format("[{}, {}], density {}: {} rows from {}", shape.rows, shape.columns,
                           density, range.count, range.begin);
        EXPECT_TRUE(dense.guards_intact());
      }
    }
  }
}

// What is stored as in the paper is encoded anew.
TEST_P(GpuTiledCsl, LoadsThePapersLayout) {
  const OwnedTensor w = weight({300, 200}, 0.3);
  std::vector<EncodedWeight> parts;
  parts.push_back(tiled_csl::encode_paper(w.view.rows(0, 128), cpu.threads));
  parts.push_back(tiled_csl_format().encode(w.view.rows(128, 172), cpu.threads));
  const std::unique_ptr<WeightMatrix> loaded = GpuWeightTest::load(tiled_csl_format(), parts);
  const GuardedTensor x = numbers(5, 200);
  EXPECT_TRUE(is_right(*loaded, x.view(), expected_of(x.view(), w.view), {}));
}

}  // namespace
}  // namespace sparsellm
