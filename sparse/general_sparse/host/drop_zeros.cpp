#include "sparse/general_sparse/host/drop_zeros.h"

#include <algorithm>
#include <atomic>
#include <cstddef>

#include "sparse/count_nonzeros.h"

namespace sparsellm::general_sparse {
namespace {

constexpr int64_t kValuesPerRange = 1 << 16;

template <class T>
int64_t count_zero_values(std::span<const T> values, ThreadPool& threads) {
  std::atomic<int64_t> zeros = 0;
  threads.parallel_for(std::ssize(values), kValuesPerRange, [&](int64_t begin, int64_t end) {
    int64_t of_range = 0;
    for (int64_t i = begin; i < end; ++i) {
      of_range += is_zero(values[static_cast<size_t>(i)]) ? 1 : 0;
    }
    zeros += of_range;
  });
  return zeros;
}

template <class T>
void copy_nonzeros(const CompressedRows& from, CompressedRows& to) {
  int64_t copied = 0;
  to.starts()[0] = 0;
  for (int64_t row = 0; row < from.rows(); ++row) {
    const std::span<const uint32_t> columns = from.columns_of(row);
    const std::span<const T> values = from.values_of<T>(row);
    for (size_t i = 0; i < values.size(); ++i) {
      if (!is_zero(values[i])) {
        to.column_indices()[static_cast<size_t>(copied)] = columns[i];
        to.values<T>()[static_cast<size_t>(copied)] = values[i];
        ++copied;
      }
    }
    to.starts()[static_cast<size_t>(row) + 1] = copied;
  }
}

}  // namespace

std::optional<CompressedRows> drop_zeros(const CompressedRows& m, ThreadPool& threads) {
  std::optional<CompressedRows> rest;
  visit_float(m.dtype(), [&]<class T>(T) {
    const int64_t zeros = count_zero_values(m.values<T>(), threads);
    if (zeros > 0) {
      rest.emplace(m.dtype(), m.rows(), m.columns(), m.nonzeros() - zeros);
      copy_nonzeros<T>(m, *rest);
    }
  });
  return rest;
}

}  // namespace sparsellm::general_sparse
