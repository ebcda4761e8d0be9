#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "kernels/base/dtype.h"
#include "kernels/base/parallel.h"
#include "sparse/format.h"
#include "sparse/general_sparse/format/layout.h"
#include "sparse/matrices/compressed_rows.h"
#include "sparse/matrices/row_statistics.h"

namespace sparsellm::general_sparse {

struct MatrixShape {
  int64_t rows = 0;
  int64_t columns = 0;
  DType dtype = DType::f16;
};
// A layout for a matrix on any device, whose statistics these are. For speed by a rule:
//   interleave   32 groups, sorted, with 16 bytes of values for each load, if that takes at most
//                1.5 times the bytes of none: the others of a slice wait for its longest row. Not
//                where rows are so short and so long apart that panels would be nearly empty, nor
//                for few nonzeros.
// Interleaved groups have
//   positions    i8 from 15 % of nonzeros on, where products of one token wait for bytes, if few
//                gaps are longer than 255; else u16, whose order is free (bank_order.h). Bits,
//                which are smaller from 25 % of nonzeros on, take products longer to find than they
//                save.
//   panels       of 8192 columns: x of 8 tokens fits into the shared memory of a multiprocessor.
//                One panel up to 11264 columns, where it still fits.
//   shared_rows  with the fewest bytes
//   windows      of 256 groups, or of 4096 where slices of the former would have many fillers
// Others are those of choose_row_layout(), sorted.
// For size the one with the fewest bytes among that, and many more that the statistics do not rule
// out. Bytes are counted, not estimated: bytes_in(layout) returns what encoded_size()
// (host/arrange.h) does. For speed it is called for at most three layouts, all sorted: groups apart
// in one panel, and 32 interleaved groups, with windows of 256 groups; the latter with 4096. The
// statistics that count are nonzeros, bridges, blocks and the mean gap.
Layout choose_layout(const MatrixShape& m, const RowStatistics& statistics, LayoutFor goal,
                     const std::function<int64_t(const Layout&)>& bytes_in);

// A layout for products that gather rows of B (cuda/row_product.cuh), of matrices of any field: one
// panel with groups apart, sorted where rows differ by much, with shared rows in blocks that
// are mostly full, four entries at a time where rows are long. At most 65536 columns have u16
// positions.
Layout choose_row_layout(const CompressedRows& m, const RowStatistics& statistics);
// Why there are no kernels for such products in a valid layout, of a matrix with this number of
// columns; nothing if there are.
std::optional<std::string> why_no_row_kernels(const Layout& layout, int64_t columns);

// One of those for speed, for estimates without a matrix: none of them has more panels.
Layout usual_layout();

struct UniformMatrix {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t nonzeros = 0;
};

// The bytes to be expected in the layout for speed if nonzeros may be anywhere: the rule of
// choose_layout() for the statistics to be expected, with lengths of groups that are normally
// distributed, of which the longest are what slices are filled up to. Within some percent; within
// 15 where interleaved groups are about to take too much. At most CompressedRows::kMaxSize rows and
// columns.
int64_t expected_uniform_bytes(const UniformMatrix& matrix, DType dtype);

}  // namespace sparsellm::general_sparse
