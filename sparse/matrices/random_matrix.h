#pragma once

#include <cstdint>

#include "kernels/base/parallel.h"
#include "sparse/matrices/compressed_rows.h"
#include "sparse/matrices/matrix_class.h"

namespace sparsellm {

// A matrix to test and to measure with, of one of these classes:
//   banded      Each row has nonzeros / rows of them, at random places of a band around the
//               diagonal that is 1 / band_density times as wide. Of a matrix that is not square the
//               line from corner to corner is the diagonal; near these the band stays inside.
//   stencil     A row is a point of a grid, whose nonzeros are the point and its neighbours: 5 or 9
//               points of a square grid, 7 or 27 of a cubic one, whichever is next to
//               nonzeros / rows. Square matrices only; points of the grid that are left over at its
//               end are no rows.
//   power-law   Zipf's law: the n-th longest row has a length in proportion to 1 / n, but is not
//               longer than the matrix is wide; the n-th most popular column is drawn in proportion
//               to 1 / 2^floor(log2 n). Which rows and columns these are is random. In rows of many
//               columns the last to be drawn are any.
//   blocks      Dense blocks of block_rows x block_columns at random multiples of these, none of
//               which sticks out on the right.
//   uniform     Each nonzero in any row, and there in any column.
//   skewed      The lengths of rows are log-normal: the standard deviation of their logarithms is
//               length_deviation. Any columns.
//   arrow       The first rows and equally many of the first columns, at least one, and the
//               diagonal.
//   empty-rows  As uniform, but a share empty_rows of the rows have none, or fewer rows if the
//               others would be too short.
struct RandomMatrix {
  MatrixClass matrix_class = MatrixClass::uniform;
  int64_t rows = 0;
  int64_t columns = 0;
  // Within some percent where rows and columns have room for them; what a stencil and an arrow come
  // nearest to.
  int64_t nonzeros = 0;
  uint64_t seed = 0;

  double band_density = 0.5;  // above 0, at most 1
  int64_t block_rows = 8;     // at least 1, not larger than the matrix
  int64_t block_columns = 8;
  double length_deviation = 1.0;  // from 0 to 8
  double empty_rows = 0.9;        // at least 0, below 1
};

// Of f32. Values are uniform among 2^16 numbers between -1 and 1, none of which is 0. The same bits
// for the same arguments, on every machine and at any number of threads: of the mathematical
// functions none is used whose last bit depends on a library. Throws Error for arguments out of
// range and for more nonzeros than elements, OutOfMemory where there is not enough memory.
CompressedRows random_matrix(const RandomMatrix& what, ThreadPool& threads);

// Throws Error for arguments that random_matrix() refuses.
void check_random_matrix(const RandomMatrix& what);

}  // namespace sparsellm
