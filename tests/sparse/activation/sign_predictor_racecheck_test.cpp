// Predictions and sums of votes on CUDA are those of the CPU, bit for bit.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "kernels/activation.h"
#include "kernels/base/cuda_graph.h"
#include "sparse/activation/sign_predictor.h"
#include "tests/testing/gpu_context.h"
#include "tests/testing/random.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class GpuSignPredictor : public GpuTest {
 protected:
  // With zeros of both signs in a third of the places, or none, and a few large elements.
  GuardedTensor random_values(int64_t rows, int64_t columns, bool has_zeros,
                              Layout layout = Layout::contiguous) {
    std::vector<double> values;
    for (int64_t i = 0; i < rows * columns; ++i) {
      const double value = std::pow(random.uniform(-1.0, 1.0), 3.0);
      const bool is_zero = has_zeros && random.below(3) == 0;
      values.push_back(is_zero ? std::copysign(0.0, value) : value + std::copysign(1e-3, value));
    }
    GuardedTensor tensor(GetParam(), {rows, columns}, layout, kGpu);
    set_values(tensor.view(), values);
    return tensor;
  }

  // The words of a weight on the GPU, and on the CPU.
  struct Words {
    OwnedSignWords gpu;
    OwnedSignWords cpu;
  };
  Words words_of_random(int64_t rows, int64_t columns, bool has_zeros) {
    const GuardedTensor w = random_values(rows, columns, has_zeros);
    const GuardedTensor twin = cpu_twin(w.view());
    Words words{.gpu = pack_sign_words(w.view(), gpu->exec),
                .cpu = pack_sign_words(twin.view(), cpu.exec)};
    EXPECT_EQ(words.gpu.view().nonzero.empty(), words.cpu.view().nonzero.empty());
    return words;
  }

  // Returns how many neurons are skipped.
  int64_t expect_what_the_cpu_says(const Tensor& x, const SignWords& w, const SignWords& cpu_w,
                                   Layout layout = Layout::contiguous) {
    const GuardedTensor twin = cpu_twin(x);
    const int64_t tokens = x.size(0);
    const int64_t rows = w.rows();
    Workspace workspace(kGpu, sign_predictor_workspace_bytes(kGpu, w.columns, tokens));
    ExecContext exec{
        .device = kGpu, .workspace = workspace, .threads = gpu->threads, .cuda = &gpu->cuda};
    int64_t skipped = 0;
    for (const Votes votes : {Votes::sign, Votes::weighted}) {
      SCOPED_TRACE(votes == Votes::sign ? "sign" : "weighted");
      const GuardedTensor negative(DType::i32, {tokens, rows}, layout, kGpu);
      const GuardedTensor positive(DType::i32, {tokens, rows}, layout, kGpu);
      const GuardedTensor expected_n(DType::i32, {tokens, rows});
      const GuardedTensor expected_p(DType::i32, {tokens, rows});
      count_votes(x, w, votes, negative.view(), positive.view(), exec);
      count_votes(twin.view(), cpu_w, votes, expected_n.view(), expected_p.view(), cpu.exec);
      EXPECT_TRUE(same_bits(negative.view(), expected_n.view()));
      EXPECT_TRUE(same_bits(positive.view(), expected_p.view()));
      EXPECT_TRUE(negative.guards_intact());
      EXPECT_TRUE(positive.guards_intact());
      for (const float alpha : {0.9f, 1.0f, 1.03f}) {
        const GuardedTensor active(DType::u8, {tokens, rows}, layout, kGpu);
        const GuardedTensor expected(DType::u8, {tokens, rows});
        predict_active(x, w, {votes, alpha}, active.view(), exec);
        predict_active(twin.view(), cpu_w, {votes, alpha}, expected.view(), cpu.exec);
        EXPECT_TRUE(same_bits(active.view(), expected.view())) << alpha;
        EXPECT_TRUE(active.guards_intact());
        const std::vector<double> flags = values_of(expected.view());
        skipped += std::ranges::count(flags, 0.0);
      }
    }
    return skipped;
  }

  Random random{91};
};

INSTANTIATE_TEST_SUITE_P(Gpu, GpuSignPredictor, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(GpuSignPredictor, AnySizeAndStride) {
  int64_t combination = 0;
  for (const int64_t columns : {1, 31, 32, 33, 128, 256, 257, 1000, 4104}) {
    for (const int64_t rows : {1, 3, 70}) {
      for (const int64_t tokens : {1, 2, 7, 33}) {
        if (tokens * rows * columns > 200'000) {
          continue;
        }
        ++combination;
        const Layout layout = combination % 3 == 0 ? Layout::strided : Layout::contiguous;
        SCOPED_TRACE(
            fmt::format("{} tokens, [{}, {}], combination {}", tokens, rows, columns, combination));
        const GuardedTensor x = random_values(tokens, columns, combination % 4 == 1, layout);
        const Words words = words_of_random(rows, columns, combination % 2 == 0);
        expect_what_the_cpu_says(x.view(), words.gpu.view(), words.cpu.view(), layout);
      }
    }
  }
}

TEST_P(GpuSignPredictor, RandomShapes) {
  for (int i = 0; i < 16; ++i) {
    // As many shapes of each order of magnitude.
    const auto columns = static_cast<int64_t>(std::pow(9000.0, random.uniform(0.0, 1.0)));
    const auto tokens = 1 + static_cast<int64_t>(random.below(70));
    const auto rows = 1 + static_cast<int64_t>(random.below(40));
    SCOPED_TRACE(fmt::format("{} tokens, [{}, {}], shape {}", tokens, rows, columns, i));
    // Rows at odd addresses.
    const GuardedTensor all = random_values(tokens, columns + i % 3, i % 4 == 1);
    const Tensor x = all.view().columns(i % 3, columns);
    const Words words = words_of_random(rows, columns, i % 2 == 0);
    expect_what_the_cpu_says(x, words.gpu.view(), words.cpu.view());
  }
}

// More columns than a warp for each 512 of them has; thread blocks of many neurons, and more of
// these than there are multiprocessors.
TEST_P(GpuSignPredictor, ManyColumnsManyNeurons) {
  struct Shape {
    int64_t tokens, rows, columns;
  };
  for (const bool has_zeros : {false, true}) {
    for (const Shape& s : {Shape{3, 20, 9000}, Shape{10, 8000, 128}, Shape{3, 13'000, 128},
                           Shape{10, 15'000, 40}, Shape{9, 40'001, 5}}) {
      SCOPED_TRACE(
          fmt::format("{} tokens, [{}, {}], zeros: {}", s.tokens, s.rows, s.columns, has_zeros));
      const GuardedTensor x = random_values(s.tokens, s.columns, false);
      const Words words = words_of_random(s.rows, s.columns, has_zeros);
      expect_what_the_cpu_says(x.view(), words.gpu.view(), words.cpu.view());
    }
  }
}

// Weights of one sign, and x that are clipped: the largest sums there are.
TEST_P(GpuSignPredictor, LargestSums) {
  constexpr int64_t kColumns = 1100;
  for (const double sign : {-1.0, 1.0}) {
    const GuardedTensor x(GetParam(), {9, kColumns}, Layout::contiguous, kGpu);
    const GuardedTensor w(GetParam(), {17, kColumns}, Layout::contiguous, kGpu);
    std::vector<double> values;
    for (int64_t j = 0; j < 9 * kColumns; ++j) {
      values.push_back(j % 9 == 0 ? 1.0 : 1e-3);  // three times the RMS
    }
    set_values(x.view(), values);
    set_values(w.view(), std::vector<double>(17 * kColumns, sign));
    const GuardedTensor twin = cpu_twin(w.view());
    const OwnedSignWords words = pack_sign_words(w.view(), gpu->exec);
    const OwnedSignWords cpu_words = pack_sign_words(twin.view(), cpu.exec);
    expect_what_the_cpu_says(x.view(), words.view(), cpu_words.view());
  }
}

// Sums of squares of more than one, and more than two, levels of 32; tokens of more than one piece
// of the workspace.
TEST_P(GpuSignPredictor, ManyColumnsManyTokens) {
  for (const auto& [tokens, columns] :
       {std::pair<int64_t, int64_t>{1, 300'000}, {2, 20'000}, {300, 70}}) {
    SCOPED_TRACE(fmt::format("{} tokens, {} columns", tokens, columns));
    const GuardedTensor x = random_values(tokens, columns, true);
    const Words words = words_of_random(2, columns, true);
    expect_what_the_cpu_says(x.view(), words.gpu.view(), words.cpu.view());
  }
}

// What is predicted in one launch, and what is not: numbers of columns that are no multiple of 128,
// and more than eight tokens.
TEST_P(GpuSignPredictor, FewTokens) {
  for (const int64_t columns : {128, 640, 1664, 4096, 4100}) {
    const Words words = words_of_random(700, columns, false);
    for (const int64_t tokens : {1, 2, 3, 8, 9}) {
      SCOPED_TRACE(fmt::format("{} tokens, {} columns", tokens, columns));
      const GuardedTensor x = random_values(tokens, columns, true);
      expect_what_the_cpu_says(x.view(), words.gpu.view(), words.cpu.view());
    }
  }
}

// Halves, scaled by a c that is 1 but for its last bits: a vote turns over with them, and so with
// any other order of the sum.
TEST_P(GpuSignPredictor, TheOrderOfTheSumIsThatOfTheHeader) {
  constexpr int64_t kTokens = 30;
  for (const int64_t columns : {33, 256, 1000, 4096}) {
    SCOPED_TRACE(fmt::format("{} columns", columns));
    const GuardedTensor x(GetParam(), {kTokens, columns}, Layout::contiguous, kGpu);
    const GuardedTensor rounded(GetParam(), {1, 1});
    const auto stored = [&](double value) {
      set_values(rounded.view(), std::vector<double>{value});
      return values_of(rounded.view())[0];
    };
    std::vector<double> values;
    for (int64_t t = 0; t < kTokens; ++t) {
      double missing = 25.0 * static_cast<double>(columns);  // of squares, for an RMS of 5
      for (int64_t j = 0; j < columns; ++j) {
        const int64_t left = columns - j;
        double value = random.below(2) == 0 ? static_cast<double>(random.below(6)) + 0.5
                                            : stored(random.uniform(0.0, 6.0));
        if (left <= 8) {  // what comes close to what is missing, and closer
          value = stored(std::sqrt(missing / (left > 4 ? static_cast<double>(left) : 1.0)));
          value = value * value > missing ? stored(value * 0.99) : value;
        }
        missing -= value * value;
        values.push_back(random.below(2) == 0 ? value : -value);
      }
    }
    set_values(x.view(), values);
    const Words words = words_of_random(9, columns, false);
    expect_what_the_cpu_says(x.view(), words.gpu.view(), words.cpu.view());
  }
}

TEST_P(GpuSignPredictor, NobodyVotesWhereThereIsNoScale) {
  constexpr int64_t kColumns = 70;
  const Words words = words_of_random(17, kColumns, true);
  const double large = GetParam() == DType::bf16 ? 1e30 : 60'000.0;  // whose square is infinite
  for (const double special : {std::nan(""), kInfinity, -kInfinity, large, -0.0, 0.25}) {
    for (const size_t place : {size_t{0}, size_t{kColumns - 1}}) {
      SCOPED_TRACE(fmt::format("{} in place {}", special, place));
      std::vector<double> values(2 * kColumns, -0.25);
      values[kColumns + place] = special;
      const GuardedTensor x(GetParam(), {2, kColumns}, Layout::contiguous, kGpu);
      set_values(x.view(), values);
      EXPECT_GT(expect_what_the_cpu_says(x.view(), words.gpu.view(), words.cpu.view()), 0);
    }
  }
  for (const double all : {0.0, -0.0, 1e-30, -1e-18, 1e-7, 1e18}) {
    SCOPED_TRACE(fmt::format("all {}", all));
    const GuardedTensor x(GetParam(), {1, kColumns}, Layout::contiguous, kGpu);
    set_values(x.view(), std::vector<double>(kColumns, all));
    expect_what_the_cpu_says(x.view(), words.gpu.view(), words.cpu.view());
  }
}

// Of neurons, and of words that lie at odd addresses.
TEST_P(GpuSignPredictor, RangesAndUnalignedWords) {
  for (const int64_t columns : {100, 256}) {
    for (const bool has_zeros : {false, true}) {
      SCOPED_TRACE(fmt::format("{} columns, zeros: {}", columns, has_zeros));
      const GuardedTensor x = random_values(3, columns, false);
      const Words words = words_of_random(131, columns, has_zeros);
      const SignWords all = words.gpu.view();
      for (const Range& range : {Range{0, 65}, Range{65, 66}}) {
        expect_what_the_cpu_says(x.view(), all.slice(range), words.cpu.view().slice(range));
      }
      const auto unaligned = [&](const Tensor& from) {
        GuardedTensor to(DType::u32, {from.size(0), from.size(1)}, Layout::strided, kGpu);
        set_values(to.view(), values_of(from));
        return to;
      };
      const GuardedTensor signs = unaligned(all.signs);
      const GuardedTensor nonzero = unaligned(has_zeros ? all.nonzero : all.signs);
      const SignWords moved{columns, signs.view(), has_zeros ? nonzero.view() : Tensor()};
      expect_what_the_cpu_says(x.view(), moved, words.cpu.view());
    }
  }
}

TEST_P(GpuSignPredictor, ATokensResultDoesNotDependOnTheOthers) {
  constexpr int64_t kTokens = 19;
  constexpr int64_t kRows = 50;
  const GuardedTensor x = random_values(kTokens, 300, true);
  const Words words = words_of_random(kRows, 300, true);
  const GuardedTensor together(DType::u8, {kTokens, kRows}, Layout::contiguous, kGpu);
  predict_active(x.view(), words.gpu.view(), {}, together.view(), gpu->exec);
  for (int64_t t = 0; t < kTokens; ++t) {
    const GuardedTensor alone(DType::u8, {1, kRows}, Layout::contiguous, kGpu);
    predict_active(x.view().rows(t, 1), words.gpu.view(), {}, alone.view(), gpu->exec);
    EXPECT_TRUE(same_bits(alone.view(), together.view().rows(t, 1))) << t;
  }
}

TEST_P(GpuSignPredictor, CanBeCapturedAndTakesTheWorkspaceThatItSays) {
  for (const int64_t tokens : {1, 33, 257}) {
    SCOPED_TRACE(fmt::format("{} tokens", tokens));
    const GuardedTensor x = random_values(tokens, 70, true);
    const Words words = words_of_random(9, 70, false);
    Workspace workspace(kGpu, sign_predictor_workspace_bytes(kGpu, 70, tokens));
    ExecContext exec{
        .device = kGpu, .workspace = workspace, .threads = gpu->threads, .cuda = &gpu->cuda};
    const GuardedTensor active(DType::u8, {tokens, 9}, Layout::contiguous, kGpu);
    const GuardedTensor expected(DType::u8, {tokens, 9});
    const CudaGraph graph(
        gpu->cuda, [&] { predict_active(x.view(), words.gpu.view(), {}, active.view(), exec); });
    EXPECT_EQ(workspace.peak_bytes(), workspace.bytes());
    for (int launches = 0; launches < 2; ++launches) {
      graph.launch();
      gpu->cuda.synchronize();
    }
    predict_active(cpu_twin(x.view()).view(), words.cpu.view(), {}, expected.view(), cpu.exec);
    EXPECT_TRUE(same_bits(active.view(), expected.view()));
  }
}

// Each of a chain of launches, which may begin early, finds what those before it wrote, and leaves
// alone what they still read.
TEST_P(GpuSignPredictor, WaitsForTheLaunchesBefore) {
  constexpr int64_t kTokens = 9;
  constexpr int64_t kRows = 50;
  constexpr int64_t kColumns = 1000;
  constexpr size_t kLinks = 6;
  const Activation relu{.kind = Activation::Kind::relu};
  const Words words = words_of_random(kRows, kColumns, false);
  std::vector<GuardedTensor> xs;
  std::vector<GuardedTensor> actives;
  for (size_t i = 0; i < kLinks; ++i) {
    xs.push_back(random_values(kTokens, kColumns, false));
    actives.emplace_back(DType::u8, std::initializer_list<int64_t>{kTokens, kRows},
                         Layout::contiguous, kGpu);
  }
  std::vector<GuardedTensor> expected;
  for (const GuardedTensor& x : xs) {
    const GuardedTensor twin = cpu_twin(x.view());
    activate(relu, twin.view(), cpu.exec);
    expected.emplace_back(DType::u8, std::initializer_list<int64_t>{kTokens, kRows});
    predict_active(twin.view(), words.cpu.view(), {}, expected.back().view(), cpu.exec);
  }
  gpu->exec.launches = Launches::overlapping;
  const CudaGraph graph(gpu->cuda, [&] {
    for (size_t i = 0; i < kLinks; ++i) {
      activate(relu, xs[i].view(), gpu->exec);
      predict_active(xs[i].view(), words.gpu.view(), {}, actives[i].view(), gpu->exec);
    }
  });
  graph.launch();
  gpu->cuda.synchronize();
  for (size_t i = 0; i < kLinks; ++i) {
    EXPECT_TRUE(same_bits(actives[i].view(), expected[i].view())) << i;
  }
}

TEST_P(GpuSignPredictor, NoTokensNoRowsNoColumns) {
  const Words words = words_of_random(5, 40, true);
  const GuardedTensor x = random_values(3, 40, false);
  const GuardedTensor active(DType::u8, {3, 5}, Layout::contiguous, kGpu);
  predict_active(x.view().rows(0, 0), words.gpu.view(), {}, active.view().rows(0, 0), gpu->exec);
  predict_active(x.view(), words.gpu.view().slice({0, 0}), {}, active.view().columns(0, 0),
                 gpu->exec);
  const GuardedTensor narrow(GetParam(), {5, 0}, Layout::contiguous, kGpu);
  const OwnedSignWords none = pack_sign_words(narrow.view(), gpu->exec);
  predict_active(x.view().columns(0, 0), none.view(), {}, active.view(), gpu->exec);
  EXPECT_EQ(values_of(active.view()), std::vector<double>(15, 1.0));
}

}  // namespace
}  // namespace sparsellm
