#include "sparse/prune/block_scores.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/base/dtype.h"

namespace sparsellm {
namespace {

constexpr int64_t kMinElementsPerTask = 8 << 10;  // worth the waking of a thread

// Calls body(row of blocks, first row, end of rows) in parallel.
template <class Body>
void for_each_block_row(const Tensor& w, const BlockShape& block, ThreadPool& threads,
                        Body&& body) {
  const int64_t block_rows = (w.size(0) + block.rows - 1) / block.rows;
  const int64_t elements = std::max<int64_t>(block.rows * w.size(1), 1);
  threads.parallel_for(block_rows, kMinElementsPerTask / elements + 1,
                       [&](int64_t begin, int64_t end) {
                         for (int64_t i = begin; i < end; ++i) {
                           body(i, i * block.rows, std::min((i + 1) * block.rows, w.size(0)));
                         }
                       });
}

float score_of(double sum, int64_t elements, PruneMethod::Kind kind) {
  if (sum == 0.0 || kind == PruneMethod::Kind::random) {
    return sum == 0.0 ? 0.0f : 1.0f;
  }
  const auto mean = static_cast<float>(sum / static_cast<double>(elements));
  return std::max(mean, std::numeric_limits<float>::denorm_min());
}

}  // namespace

OwnedTensor block_scores(const Tensor& w, const BlockShape& block, PruneMethod::Kind kind,
                         ThreadPool& threads) {
  const int64_t across = (w.size(1) + block.columns - 1) / block.columns;
  OwnedTensor scores = allocate_tensor(
      {}, DType::f32, {(w.size(0) + block.rows - 1) / block.rows, across}, "scores of blocks");
  visit_float(w.dtype(), [&]<class T>(T) {
    for_each_block_row(w, block, threads, [&](int64_t i, int64_t begin, int64_t end) {
      std::vector<double> sums(static_cast<size_t>(across));
      for (int64_t row = begin; row < end; ++row) {
        const T* const values = w.row<T>(row);
        for (int64_t j = 0; j < across; ++j) {
          const int64_t stop = std::min((j + 1) * block.columns, w.size(1));
          double& sum = sums[static_cast<size_t>(j)];
          for (int64_t column = j * block.columns; column < stop; ++column) {
            sum += std::fabs(static_cast<double>(to_float(values[column])));
          }
        }
      }
      float* const of_row = scores.view.row<float>(i);
      for (int64_t j = 0; j < across; ++j) {
        const int64_t columns = std::min(block.columns, w.size(1) - j * block.columns);
        of_row[j] = score_of(sums[static_cast<size_t>(j)], (end - begin) * columns, kind);
      }
    });
  });
  return scores;
}

void zero_blocks(const Tensor& w, const BlockShape& block, const Tensor& scores,
                 ThreadPool& threads) {
  visit_float(w.dtype(), [&]<class T>(T) {
    for_each_block_row(w, block, threads, [&](int64_t i, int64_t begin, int64_t end) {
      const float* const of_row = scores.row<float>(i);
      for (int64_t j = 0; j < scores.size(1); ++j) {
        const int64_t first = j * block.columns;
        const int64_t columns = std::min(block.columns, w.size(1) - first);
        for (int64_t row = begin; of_row[j] == 0.0f && row < end; ++row) {
          std::fill_n(w.row<T>(row) + first, columns, T{});
        }
      }
    });
  });
}

}  // namespace sparsellm
