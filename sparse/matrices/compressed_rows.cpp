#include "sparse/matrices/compressed_rows.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "sparse/count_nonzeros.h"

namespace sparsellm {
namespace {

constexpr int64_t kRowsPerRange = 16;

// With a message that says where, unlike has_ascending_columns().
void require_ascending_columns(const CompressedRows& m, int64_t row) {
  const std::span<const uint32_t> columns = m.columns_of(row);
  for (size_t i = 0; i < columns.size(); ++i) {
    require(columns[i] < m.columns(), "row {} has a nonzero in column {} of {}", row, columns[i],
            m.columns());
    require(i == 0 || columns[i - 1] < columns[i],
            "row {} has a nonzero in column {} after one in column {}", row, columns[i],
            i == 0 ? 0 : columns[i - 1]);
  }
}

bool has_ascending_columns(std::span<const uint32_t> columns, int64_t limit) {
  bool good = columns.empty() || columns.back() < limit;
  for (size_t i = 1; i < columns.size(); ++i) {
    good &= columns[i - 1] < columns[i];
  }
  return good;
}

void require_starts(const CompressedRows& m) {
  const std::span<const int64_t> starts = m.starts();
  require(starts[0] == 0, "row 0 begins with nonzero {}, not 0", starts[0]);
  for (size_t row = 1; row < starts.size(); ++row) {
    require(starts[row - 1] <= starts[row], "row {} begins with nonzero {} and ends before {}",
            row - 1, starts[row - 1], starts[row]);
  }
  require(starts.back() == m.nonzeros(), "the rows have {} nonzeros, not {}", starts.back(),
          m.nonzeros());
}

// f(column, mask of the nonzeros from there on) for each 64 columns.
template <class T, class F>
void for_each_mask(const T* elements, int64_t columns, F&& f) {
  constexpr int64_t kBits = 64;
  for (int64_t column = 0; column < columns; column += kBits) {
    f(column, nonzero_mask(elements + column, std::min(columns - column, kBits)));
  }
}

template <class T>
int64_t count_in_row(const T* elements, int64_t columns) {
  int64_t nonzeros = 0;
  for_each_mask(elements, columns,
                [&](int64_t, uint64_t mask) { nonzeros += std::popcount(mask); });
  return nonzeros;
}

// Its start and end are known.
template <class T>
void compress_row(const Tensor& w, int64_t row, CompressedRows& m) {
  const T* const elements = w.row<T>(row);
  uint32_t* const columns = m.column_indices().data();
  T* const values = m.values<T>().data();
  int64_t i = m.starts()[static_cast<size_t>(row)];
  const int64_t end = m.starts()[static_cast<size_t>(row) + 1];
  for_each_mask(elements, w.size(1), [&](int64_t first, uint64_t mask) {
    require(std::popcount(mask) <= end - i, "row {} has got more nonzeros meanwhile", row);
    for (; mask != 0; mask &= mask - 1, ++i) {
      const int64_t column = first + std::countr_zero(mask);
      columns[i] = static_cast<uint32_t>(column);
      values[i] = elements[column];
    }
  });
  require(i == end, "row {} has got fewer nonzeros meanwhile", row);
}

}  // namespace

CompressedRows::CompressedRows(DType dtype, int64_t rows, int64_t columns, int64_t nonzeros)
    : dtype_(dtype), rows_(rows), columns_(columns), nonzeros_(nonzeros) {
  require(is_floating(dtype), "compressed rows of {} values", name_of(dtype));
  require(rows >= 0 && rows <= kMaxSize && columns >= 0 && columns <= kMaxSize,
          "compressed rows of a matrix {} x {}; at most {} are possible", rows, columns, kMaxSize);
  require(nonzeros >= 0 && nonzeros <= rows * columns, "a matrix {} x {} with {} nonzeros", rows,
          columns, nonzeros);
  constexpr const char* kPurpose = "a matrix by its nonzeros";
  const auto allocate = [&](int64_t count, int64_t bytes) {
    return Buffer(Device{}, checked_mul(count, bytes, "bytes of compressed rows"), kPurpose);
  };
  starts_ = allocate(rows + 1, sizeof(int64_t));
  column_indices_ = allocate(nonzeros, sizeof(uint32_t));
  values_ = allocate(nonzeros, size_of(dtype));
}

void CompressedRows::require_type(DType dtype) const {
  require(dtype == dtype_, "compressed rows of {} are used as {}", name_of(dtype_), name_of(dtype));
}

void validate(const CompressedRows& m, ThreadPool& threads) {
  require_starts(m);
  std::atomic<int64_t> first_wrong = m.rows();
  threads.parallel_for(m.rows(), kRowsPerRange, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (has_ascending_columns(m.columns_of(row), m.columns())) {
        continue;
      }
      int64_t first = first_wrong;
      while (row < first && !first_wrong.compare_exchange_weak(first, row)) {
      }
      return;
    }
  });
  if (first_wrong < m.rows()) {
    require_ascending_columns(m, first_wrong);
  }
}

CompressedRows compress_rows(const Tensor& w, ThreadPool& threads) {
  require(w.rank() == 2 && !w.device().is_cuda(), "a tensor {} on {} for compressed rows",
          w.shape_string(), to_string(w.device()));
  const int64_t rows = w.size(0);
  const int64_t columns = w.size(1);
  std::vector<int64_t> starts(static_cast<size_t>(rows) + 1);
  visit_float(w.dtype(), [&]<class T>(T) {
    threads.parallel_for(rows, kRowsPerRange, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        starts[static_cast<size_t>(row) + 1] = count_in_row(w.row<T>(row), columns);
      }
    });
  });
  std::partial_sum(starts.begin(), starts.end(), starts.begin());

  CompressedRows m(w.dtype(), rows, columns, starts.back());
  std::ranges::copy(starts, m.starts().begin());
  visit_float(w.dtype(), [&]<class T>(T) {
    threads.parallel_for(rows, kRowsPerRange, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        compress_row<T>(w, row, m);
      }
    });
  });
  return m;
}

CompressedRows copy_of(const CompressedRows& m) {
  CompressedRows copy(m.dtype(), m.rows(), m.columns(), m.nonzeros());
  std::ranges::copy(m.starts(), copy.starts().begin());
  std::ranges::copy(m.column_indices(), copy.column_indices().begin());
  visit_float(m.dtype(),
              [&]<class T>(T) { std::ranges::copy(m.values<T>(), copy.values<T>().begin()); });
  return copy;
}

CompressedRows with_dtype(CompressedRows m, DType dtype, ThreadPool& threads) {
  constexpr int64_t kValuesAtATime = 1 << 14;
  if (m.dtype() == dtype) {
    return m;
  }
  CompressedRows result(dtype, m.rows(), m.columns(), m.nonzeros());
  std::ranges::copy(m.starts(), result.starts().begin());
  std::ranges::copy(m.column_indices(), result.column_indices().begin());
  visit_float(m.dtype(), [&]<class From>(From) {
    visit_float(dtype, [&]<class To>(To) {
      const std::span<const From> from = std::as_const(m).values<From>();
      const std::span<To> to = result.values<To>();
      threads.parallel_for(m.nonzeros(), kValuesAtATime, [&](int64_t begin, int64_t end) {
        for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
          to[i] = from_float<To>(to_float(from[i]));
        }
      });
    });
  });
  return result;
}

OwnedTensor dense_matrix(const CompressedRows& m, ThreadPool& threads) {
  OwnedTensor dense =
      allocate_tensor({}, m.dtype(), {m.rows(), m.columns()}, "a matrix with its zeros");
  if (dense.view.bytes() == 0) {
    return dense;
  }
  visit_float(m.dtype(), [&]<class T>(T) {
    threads.parallel_for(m.rows(), kRowsPerRange, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        T* const elements = dense.view.row<T>(row);
        std::memset(static_cast<void*>(elements), 0, static_cast<size_t>(m.columns()) * sizeof(T));
        const std::span<const uint32_t> columns = m.columns_of(row);
        const std::span<const T> values = m.values_of<T>(row);
        for (size_t i = 0; i < columns.size(); ++i) {
          elements[columns[i]] = values[i];
        }
      }
    });
  });
  return dense;
}

}  // namespace sparsellm
