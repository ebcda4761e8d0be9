// The product of a block of rows, for one instruction set. The file of each includes it inside its
// unnamed namespace, after
//   struct One;  // one float, for x of stride 1: kWidth = 1; all, load, store, fma
//   struct Vec;  // kWidth floats likewise
// and calls multiply() with a Source, which has
//   using Value = ...;                                 // as it is stored
//   static void one(const Value* from, float* to);     // the value from[0]
//   static void eight(const Value* from, float* to);   // eight of them
//
// A chain has to wait for each of its sums, so several rows are multiplied at the same time: as
// many as are left are halved each time that the shortest of them ends. Blocks have their rows by
// length, which makes that rare.

constexpr int kPiece = 8;  // values of a row that are converted together

// Where the rows are that are multiplied at the same time.
template <class Source>
struct Rows {
  const uint32_t* columns;
  const typename Source::Value* values;
  const float* x;
  int64_t stride;
};

// acc [kRows][kVectors * width] += nonzeros [begin, end) of kRows rows, each counted from the first
// one of its row, times x.
template <class V, class Source, int kRows, int kVectors>
inline void add_nonzeros(const Rows<Source>& rows, const int64_t* firsts, int64_t begin,
                         int64_t end, float* acc) {
  V sums[kRows][kVectors];
  int64_t at[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    at[r] = firsts[r] + begin;
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      sums[r][v] = V::load(acc + (r * kVectors + v) * V::kWidth);
    }
  }
  const auto add = [&](int r, const float* value, uint32_t column) {
    const V w = V::all(value);
    const float* const xs = rows.x + (V::kWidth == 1 ? column : column * rows.stride);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      sums[r][v] = fma(w, V::load(xs + v * V::kWidth), sums[r][v]);
    }
  };
  for (; end - begin >= kPiece; begin += kPiece) {
    float piece[kRows][kPiece];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      Source::eight(rows.values + at[r], piece[r]);
    }
    asm("" : "+m"(piece));  // a load for each value takes less time than moves between registers
#pragma GCC unroll 8
    for (int i = 0; i < kPiece; ++i) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        add(r, &piece[r][i], rows.columns[at[r] + i]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      at[r] += kPiece;
    }
  }
  for (; begin < end; ++begin) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      float value;
      Source::one(rows.values + at[r], &value);
      add(r, &value, rows.columns[at[r]]);
      ++at[r];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      sums[r][v].store(acc + (r * kVectors + v) * V::kWidth);
    }
  }
}

// The same from `begin` on to the end of each row; lengths ascend.
template <class V, class Source, int kRows, int kVectors>
void add_rest(const Rows<Source>& rows, const int64_t* firsts, const int64_t* lengths,
              int64_t begin, float* acc) {
  if (begin < lengths[0]) {
    add_nonzeros<V, Source, kRows, kVectors>(rows, firsts, begin, lengths[0], acc);
  }
  if constexpr (kRows > 1) {
    constexpr int kHalf = kRows / 2;
    if (lengths[kRows - 1] > lengths[0]) {
      add_rest<V, Source, kHalf, kVectors>(rows, firsts, lengths, lengths[0], acc);
      add_rest<V, Source, kHalf, kVectors>(rows, firsts + kHalf, lengths + kHalf, lengths[0],
                                           acc + kHalf * kVectors * V::kWidth);
    }
  }
}

template <class V, class Source, int kVectors>
void multiply_block(const RowBlock& block, const TokenColumns& x, float* sums) {
  // The sums of kRows rows, and one value, fit 16 registers.
  constexpr int kRows = kVectors == 1 ? 8 : kVectors == 2 ? 4 : kVectors <= 4 ? 2 : 1;
  constexpr int kRowSums = kVectors * V::kWidth;
  const Rows<Source> rows{block.columns, static_cast<const typename Source::Value*>(block.values),
                          x.x, x.stride};
  // Rows that the first ones lack are empty.
  for (int place = -((kRows - block.count % kRows) % kRows); place < block.count; place += kRows) {
    int64_t firsts[kRows] = {};
    int64_t lengths[kRows] = {};
    for (int r = 0; r < kRows; ++r) {
      if (place + r >= 0) {
        const int64_t* const start = block.starts + block.order[place + r];
        firsts[r] = start[0];
        lengths[r] = start[1] - start[0];
      }
    }
    float acc[kRows * kRowSums];
    for (float& sum : acc) {
      sum = 0.0f;
    }
    add_rest<V, Source, kRows, kVectors>(rows, firsts, lengths, 0, acc);
    for (int r = 0; r < kRows; ++r) {
      if (place + r >= 0) {
        float* const to = sums + block.order[place + r];
        for (int64_t t = 0; t < x.tokens; ++t) {
          to[t * kBlockRows] = acc[r * kRowSums + t];
        }
      }
    }
  }
}

template <class Source, int kVectors = kTokensAtOnce / Vec::kWidth>
void multiply_vectors(const RowBlock& block, const TokenColumns& x, float* sums) {
  if constexpr (kVectors > 0) {
    if (x.tokens > (kVectors - 1) * Vec::kWidth) {
      multiply_block<Vec, Source, kVectors>(block, x, sums);
    } else {
      multiply_vectors<Source, kVectors - 1>(block, x, sums);
    }
  }
}

template <class Source>
void multiply(const RowBlock& block, const TokenColumns& x, float* sums) {
  if (x.stride == 1) {
    multiply_block<One, Source, 1>(block, x, sums);
  } else {
    multiply_vectors<Source>(block, x, sums);
  }
}
