#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "sparse/expand_matmul.h"

namespace sparsellm {
namespace {

struct Shape {
  int64_t out = 0;
  int64_t in = 0;
};

// A piece whose tiles of a product fill 132 multiprocessors about once.
TEST(ExpandPieces, FillTheDevice) {
  EXPECT_EQ(expand_piece_rows(28672, 7168, 1024), 4096);
  EXPECT_EQ(expand_piece_rows(28672, 7168, 2048), 2048);
  EXPECT_EQ(expand_piece_rows(28672, 7168, 4096), 2048);
  EXPECT_EQ(expand_piece_rows(7168, 28672, 2048), 2048);
}

TEST(ExpandPieces, AreOfTheWeightAndOfWhatTheWorkspaceHolds) {
  for (const Shape& shape : std::vector<Shape>{{1, 1},
                                               {1, 1 << 20},
                                               {63, 7},
                                               {511, 4096},
                                               {513, 4096},
                                               {4096, 4096},
                                               {28672, 7168},
                                               {7168, 28672},
                                               {128256, 4096},
                                               {1 << 20, 1}}) {
    for (int64_t tokens : {1, 17, 128, 1023, 1024, 4096, 1 << 20}) {
      const std::vector<int64_t> choices = expand_piece_choices(shape.out, shape.in, tokens);
      EXPECT_EQ(choices.front(), expand_piece_rows(shape.out, shape.in, tokens));
      for (int64_t rows : choices) {
        EXPECT_GT(rows, 0) << shape.out << " x " << shape.in << ", " << tokens;
        EXPECT_LE(rows, shape.out) << shape.out << " x " << shape.in << ", " << tokens;
        EXPECT_LE(2 * rows * shape.in * 2, expand_matmul_workspace_bytes(shape.out, shape.in));
        EXPECT_EQ(std::count(choices.begin(), choices.end(), rows), 1);
      }
    }
  }
}

// No larger than 16 MiB, or of one row.
TEST(ExpandPieces, SingleOnesTakeLess) {
  constexpr int64_t kBytes = int64_t{16} << 20;
  for (const Shape& shape :
       std::vector<Shape>{{1, 1}, {64, 1 << 24}, {4096, 4096}, {7168, 28672}}) {
    const int64_t rows = expand_single_piece_rows(shape.out, shape.in);
    EXPECT_GT(rows, 0);
    EXPECT_LE(rows, shape.out);
    EXPECT_TRUE(rows == 1 || rows * shape.in * 2 <= kBytes) << rows;
    EXPECT_GE(expand_single_piece_workspace_bytes(shape.out, shape.in), rows * shape.in * 2);
  }
}

}  // namespace
}  // namespace sparsellm
