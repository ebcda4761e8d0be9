#include "kernels/cpu/transpose.h"

#include <algorithm>

#include "kernels/base/error.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace sparsellm {
namespace {

template <class T>
struct Places {
  const T* from;
  int64_t from_stride;
  T* to;
  int64_t to_stride;
};

template <class T>
void transpose_elements(const Places<T>& p, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      p.to[c * p.to_stride + r] = p.from[r * p.from_stride + c];
    }
  }
}

#if defined(__AVX2__)
// A tile has as many rows as 16 bytes hold elements, and twice as many columns: rows that are a
// power of two apart share the ways of one set of the L1, so they are few. The halves of a register
// are transposed each for itself, by interleaving neighbours, then pairs of them, and so on.
template <class T>
constexpr int kTileRows = 16 / sizeof(T);

template <class T>
__m256i load_row(const Places<T>& p, int r) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p.from + r * p.from_stride));
}

// Column c of the tile, and the one as far in its second half.
template <class T>
void store_columns(const Places<T>& p, int c, __m256i columns) {
  const auto store = [&](int column, __m128i values) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p.to + column * p.to_stride), values);
  };
  store(c, _mm256_castsi256_si128(columns));
  store(c + kTileRows<T>, _mm256_extracti128_si256(columns, 1));
}

// Columns c to c + 3, from four rows or pairs of them. Inlined, so that the rows stay in registers.
template <class T>
[[gnu::always_inline]] inline void store_four(const Places<T>& p, int c, const __m256i (&rows)[4]) {
  const __m256i low01 = _mm256_unpacklo_epi32(rows[0], rows[1]);
  const __m256i high01 = _mm256_unpackhi_epi32(rows[0], rows[1]);
  const __m256i low23 = _mm256_unpacklo_epi32(rows[2], rows[3]);
  const __m256i high23 = _mm256_unpackhi_epi32(rows[2], rows[3]);
  store_columns(p, c, _mm256_unpacklo_epi64(low01, low23));
  store_columns(p, c + 1, _mm256_unpackhi_epi64(low01, low23));
  store_columns(p, c + 2, _mm256_unpacklo_epi64(high01, high23));
  store_columns(p, c + 3, _mm256_unpackhi_epi64(high01, high23));
}

inline void transpose_tile(const Places<uint32_t>& p) {
  const __m256i rows[4] = {load_row(p, 0), load_row(p, 1), load_row(p, 2), load_row(p, 3)};
  store_four(p, 0, rows);
}

inline void transpose_tile(const Places<uint16_t>& p) {
  __m256i low[4];  // pairs of rows, the lower four columns
  __m256i high[4];
  for (int i = 0; i < 4; ++i) {
    const __m256i even = load_row(p, 2 * i);
    const __m256i odd = load_row(p, 2 * i + 1);
    low[i] = _mm256_unpacklo_epi16(even, odd);
    high[i] = _mm256_unpackhi_epi16(even, odd);
  }
  store_four(p, 0, low);
  store_four(p, 4, high);
}
#endif

template <class T>
void transpose_matrix(const Places<T>& p, int64_t rows, int64_t columns) {
  int64_t row = 0;
#if defined(__AVX2__)
  constexpr int64_t kRows = kTileRows<T>;
  constexpr int64_t kColumns = 2 * kRows;
  for (; row + kRows <= rows; row += kRows) {
    // The lines of a row are few and far from those of the next: nothing else fetches them early.
    for (int64_t ahead = row + 4 * kRows; ahead < std::min(row + 5 * kRows, rows); ++ahead) {
      for (int64_t column = 0; column < columns; column += 4 * kRows) {
        __builtin_prefetch(p.from + ahead * p.from_stride + column, 0, 2);  // into the L2
      }
    }
    int64_t column = 0;
    const auto at = [&] {
      return Places<T>{p.from + row * p.from_stride + column, p.from_stride,
                       p.to + column * p.to_stride + row, p.to_stride};
    };
    for (; column + kColumns <= columns; column += kColumns) {
      transpose_tile(at());
    }
    transpose_elements(at(), kRows, columns - column);
  }
#endif
  transpose_elements<T>({p.from + row * p.from_stride, p.from_stride, p.to + row, p.to_stride},
                        rows - row, columns);
}

}  // namespace

void transpose_part(const MatrixPart& from, int64_t element_bytes, void* to, int64_t to_stride) {
  const auto transpose_as = [&]<class T>(T) {
    transpose_matrix<T>(
        {static_cast<const T*>(from.data), from.stride, static_cast<T*>(to), to_stride}, from.rows,
        from.columns);
  };
  if (element_bytes == 2) {
    transpose_as(uint16_t{});
  } else {
    transpose_as(uint32_t{});
  }
}

void transpose(const Tensor& from, const Tensor& to, ThreadPool& threads) {
  const int64_t bytes = size_of(from.dtype());
  if (from.rank() != 2 || to.rank() != 2 || from.dtype() != to.dtype() ||
      from.size(0) != to.size(1) || from.size(1) != to.size(0) || (bytes != 2 && bytes != 4)) {
    fail("transpose: {} {} into {} {}", name_of(from.dtype()), from.shape_string(),
         name_of(to.dtype()), to.shape_string());
  }
  constexpr int64_t kRows = 64;  // of the result; as many lines of it fit the L1
  threads.parallel_for(to.size(0), kRows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row += kRows) {
      const int64_t count = std::min(end - row, kRows);
      transpose_part({.data = from.columns(row, count).raw(),
                      .stride = from.row_stride(),
                      .rows = from.size(0),
                      .columns = count},
                     bytes, to.rows(row, count).raw(), to.row_stride());
    }
  });
}

}  // namespace sparsellm
