#include "kernels/embedding.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/testing/compare.h"
#include "tests/testing/cpu_context.h"
#include "tests/testing/random.h"
#include "tests/testing/tensor_values.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

constexpr DType kFloats[] = {DType::f32, DType::f16, DType::bf16};
constexpr int64_t kVocabulary = 53;
constexpr int64_t kPositions = 29;
constexpr float kTokenScale = 0.5f;  // exact products
constexpr int64_t kOffset = 2;

std::vector<int32_t> random_indices(Random& random, int64_t count, int64_t limit) {
  std::vector<int32_t> indices;
  for (int64_t i = 0; i < count; ++i) {
    indices.push_back(static_cast<int32_t>(random.below(limit)));
  }
  return indices;
}

TEST(Embedding, AnySizeStrideDtypeAndThreadCount) {
  Random random(21);
  int combination = 0;
  for (int threads : {1, 2, 5}) {
    CpuContext cpu(threads);
    for (int64_t tokens : {0, 1, 3, 17, 130}) {
      for (int64_t hidden : {1, 7, 31, 257}) {
        for (DType dtype : kFloats) {
          ++combination;
          const Layout layout = combination % 2 == 0 ? Layout::strided : Layout::contiguous;
          const DType position_dtype = kFloats[combination / 2 % 3];
          const bool learned = combination % 3 != 0;
          SCOPED_TRACE(fmt::format("{} threads, [{}, {}], {}, positions {}", threads, tokens,
                                   hidden, name_of(dtype),
                                   learned ? name_of(position_dtype) : "none"));
          const GuardedTensor table = random.tensor(dtype, {kVocabulary, hidden}, layout);
          const GuardedTensor position_table =
              random.tensor(position_dtype, {kPositions + kOffset, hidden}, layout);
          const std::vector<int32_t> ids = random_indices(random, tokens, kVocabulary);
          const std::vector<int32_t> positions = random_indices(random, tokens, kPositions);

          const std::vector<double> rows = values_of(table.view());
          const std::vector<double> position_rows = values_of(position_table.view());
          std::vector<double> expected;
          for (int64_t t = 0; t < tokens; ++t) {
            const int64_t id = ids[static_cast<size_t>(t)];
            const int64_t position = positions[static_cast<size_t>(t)] + kOffset;
            for (int64_t i = 0; i < hidden; ++i) {
              const double token = kTokenScale * rows[static_cast<size_t>(id * hidden + i)];
              const double added =
                  learned ? position_rows[static_cast<size_t>(position * hidden + i)] : 0.0;
              expected.push_back(static_cast<float>(token + added));
            }
          }
          const GuardedTensor y(DType::f32, {tokens, hidden}, layout);
          embedding(i32_tensor(ids).view(), learned ? i32_tensor(positions).view() : Tensor(),
                    {.tokens = table.view(),
                     .positions = learned ? position_table.view() : Tensor(),
                     .position_offset = learned ? kOffset : 0,
                     .token_scale = kTokenScale},
                    y.view(), cpu.exec);
          EXPECT_TRUE(all_close(y.view(), expected, std::vector<double>(expected.size(), 0.0)));
          EXPECT_TRUE(y.guards_intact());
        }
      }
    }
  }
}

class EmbeddingErrors : public ::testing::Test {
 protected:
  void embed(const Tensor& ids, const Tensor& positions) {
    embedding(ids, positions, tables_, y_.view(), cpu_.exec);
  }

  CpuContext cpu_{2};
  Random random_{22};
  GuardedTensor table_ = random_.tensor(DType::f16, {kVocabulary, 9});
  GuardedTensor position_table_ = random_.tensor(DType::f16, {kPositions + kOffset, 9});
  EmbeddingTables tables_{
      .tokens = table_.view(), .positions = position_table_.view(), .position_offset = kOffset};
  GuardedTensor y_{DType::f32, {3, 9}};
};

TEST_F(EmbeddingErrors, AnIndexOutsideItsTableIsNamed) {
  const GuardedTensor good = i32_tensor({0, 1, 2});
  EXPECT_NO_THROW(embed(i32_tensor({0, 52, 1}).view(), i32_tensor({0, 28, 1}).view()));
  for (int32_t bad :
       {53, -1, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()}) {
    EXPECT_TRUE(throws_error(
        [&] {
          embed(i32_tensor({0, 1, bad}).view(), good.view());
        },
        fmt::format("token id {} is outside [0, 53)", bad)));
  }
  for (int32_t bad : {29, -1, std::numeric_limits<int32_t>::max()}) {
    EXPECT_TRUE(throws_error(
        [&] {
          embed(good.view(), i32_tensor({bad, 1, 0}).view());
        },
        fmt::format("position {} is outside [0, 29)", bad)));
  }
  EXPECT_TRUE(y_.guards_intact());
}

TEST_F(EmbeddingErrors, RefusesMismatchedOperands) {
  const GuardedTensor ids = i32_tensor({0, 1, 2});
  const GuardedTensor four = i32_tensor({0, 1, 2, 3});
  EXPECT_TRUE(throws_error([&] { embed(four.view(), ids.view()); }, "ids is i32 [4]"));
  EXPECT_TRUE(throws_error([&] { embed(ids.view(), four.view()); }, "positions is i32 [4]"));
  EXPECT_TRUE(throws_error([&] { embed(ids.view(), Tensor()); }, "positions is missing"));
  const GuardedTensor floats(DType::f32, {3});
  EXPECT_TRUE(throws_error([&] { embed(floats.view(), ids.view()); }, "ids is f32 [3]"));

  const EmbeddingTables good = tables_;
  const GuardedTensor wide(DType::f16, {kVocabulary, 10});
  tables_.tokens = wide.view();
  EXPECT_TRUE(throws_error([&] { embed(ids.view(), ids.view()); }, "embedding: table is f16"));
  tables_ = good;
  tables_.positions = wide.view();
  EXPECT_TRUE(throws_error([&] { embed(ids.view(), ids.view()); }, "position_table is f16"));
  tables_ = good;
  tables_.tokens = GuardedTensor(DType::i32, {kVocabulary, 9}).view();
  EXPECT_TRUE(throws_error([&] { embed(ids.view(), ids.view()); }, "table is i32"));
  tables_.tokens = Tensor(table_.view().raw(), DType::u16, {kVocabulary, 9}, Device{});
  EXPECT_TRUE(throws_error([&] { embed(ids.view(), ids.view()); }, "table is u16"));
  tables_ = good;
  const GuardedTensor half(DType::f16, {3, 9});
  EXPECT_TRUE(throws_error(
      [&] { embedding(ids.view(), ids.view(), tables_, half.view(), cpu_.exec); }, "y is f16"));
}

}  // namespace
}  // namespace sparsellm
