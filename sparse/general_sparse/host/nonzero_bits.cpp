#include "sparse/general_sparse/host/nonzero_bits.h"

#include <algorithm>
#include <mutex>

#include "sparse/count_nonzeros.h"
#include "sparse/general_sparse/bits/row_counts.h"
#include "sparse/general_sparse/host/word_bits.h"

namespace sparsellm::general_sparse {
namespace {

constexpr int64_t kBlocksOfRange = 8;  // of kMostBlockRows rows

}  // namespace

NonzeroBits::NonzeroBits(const Tensor& w, ThreadPool& threads)
    : rows_{
          .rows = w.size(0), .columns = w.size(1), .row_words = ceil_div(w.size(1), kBitsOfWord)} {
  words_ = Buffer(Device{}, rows_.rows * rows_.row_words * int64_t{sizeof(uint64_t)},
                  "the bits of a matrix");
  auto* const words = static_cast<uint64_t*>(words_.data());
  rows_.words = words;
  visit_float(w.dtype(), [&]<class T>(T) {
    threads.parallel_for(
        rows_.rows, kBlocksOfRange * kMostBlockRows, [&](int64_t begin, int64_t end) {
          uint64_t* next = words + begin * rows_.row_words;
          for (int64_t row = begin; row < end; ++row) {
            for (int64_t column = 0; column < rows_.columns; column += kBitsOfWord) {
              *next++ = nonzero_mask(w.row<T>(row) + column,
                                     std::min<int64_t>(rows_.columns - column, kBitsOfWord));
            }
          }
        });
  });
}

RowStatistics NonzeroBits::statistics(ThreadPool& threads) const {
  NonzeroSums sums;
  std::mutex mutex;
  threads.parallel_for(
      ceil_div(rows_.rows, kMostBlockRows), kBlocksOfRange, [&](int64_t begin, int64_t end) {
        NonzeroSums of_range;
        for (int64_t block = begin; block < end; ++block) {
          const int64_t first = block * kMostBlockRows;
          for (int64_t row = first; row < std::min(first + kMostBlockRows, rows_.rows); ++row) {
            add_row<HostWordBits>(rows_, row, of_range);
          }
          add_blocks<HostWordBits>(rows_, first, of_range);
        }
        const std::lock_guard lock(mutex);
        sums.add(of_range);
      });
  return statistics_of(sums);
}

}  // namespace sparsellm::general_sparse
