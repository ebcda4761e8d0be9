// Products of the rows of a dense weight, for one instruction set. The file of each includes it
// inside its unnamed namespace, after
//   struct Vec;               // kWidth floats: zero()
//   Vec fma(Vec a, Vec b, Vec c);
//   struct F32, F16, Bf16;    // what a weight consists of: the type Stored, and static functions
//     Vec load(const Stored*);
//     Vec load_partial(const Stored*, int64_t count);  // the rest is 0; count may be 0 or less
//   using Partial = Vec[kLanes / Vec::kWidth];         // the partial sums of a block
//   void sum4(const Partial&, const Partial&, const Partial&, const Partial&, float* sums);
//   constexpr int kTileRows, kTileTokens;  // whose partial sums stay in registers
//   constexpr int kTileRowsOfOneToken;

#include "kernels/cpu/prefetch.inc.h"

constexpr int kVectors = kLanes / Vec::kWidth;

// The tokens that rows are multiplied by, in one block of columns.
struct Tokens {
  const float* x;
  int64_t x_stride;
  int64_t columns;
  float* sums;
  int64_t sums_stride;
  bool add;
};

inline Tokens tokens_from(const Tokens& tokens, int64_t first) {
  Tokens from = tokens;
  from.x += first * tokens.x_stride;
  from.sums += first * tokens.sums_stride;
  return from;
}

// Rows of w, from the block's first column on.
template <class W>
struct Rows {
  const typename W::Stored* w;
  int64_t stride;

  const typename W::Stored* row(int r) const { return w + r * stride; }
};

// The partial sums of kVectors vectors of lanes are taken one vector after the other, so that those
// of more rows and tokens stay in registers; of one token all at once, since w is read from memory.
// row(r) says where a row is, and where its prefetching begins: of rows at equal distances (Rows,
// Ahead) or of rows in a list (listed_rows.inc.h).
template <class W, int kRows, int kTokens, class RowsOf, class AheadOf>
inline void multiply_tile(const RowsOf& rows, const Tokens& tokens, AheadOf ahead) {
  constexpr int kSums = kRows * kTokens;
  constexpr int kPadded = (kSums + 3) / 4 * 4;
  constexpr int kAtOnce = kTokens == 1 ? kVectors : 1;
  constexpr int64_t kStep = kTokens == 1 ? 2 * kLanes : kLanes;
  constexpr int64_t kLines = (kStep * sizeof(typename W::Stored) + kLineBytes - 1) / kLineBytes;
  // The lines are fetched at equal distances over all passes.
  constexpr int64_t kPasses = kVectors / kAtOnce;
  const int64_t fetch_step = ahead.lines > 0 ? kPasses * tokens.columns * kLines / ahead.lines : 0;
  int64_t fetch_at = ahead.lines > 0 ? 0 : kPasses * tokens.columns;
  Partial parts[kPadded];
#pragma GCC unroll 2
  for (int v = 0; v < kVectors; v += kAtOnce) {
    Vec sums[kAtOnce][kSums];
#pragma GCC unroll 2
    for (int i = 0; i < kAtOnce; ++i) {
#pragma GCC unroll 32
      for (int s = 0; s < kSums; ++s) {
        sums[i][s] = Vec::zero();
      }
    }
    const auto multiply = [&](int i, auto&& load_w, auto&& load_x) {
      Vec ws[kRows];
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        ws[r] = load_w(rows.row(r));
      }
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        const Vec xs = load_x(tokens.x + t * tokens.x_stride);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          Vec& sum = sums[i][t * kRows + r];
          sum = fma(ws[r], xs, sum);
        }
      }
    };
    const int64_t passed = v / kAtOnce * tokens.columns;
    int64_t c = 0;
    for (; c + kStep <= tokens.columns; c += kStep) {
      if (passed + c >= fetch_at) {
#pragma GCC unroll 2
        for (int64_t line = 0; line < kLines; ++line) {
#pragma GCC unroll 8
          for (int r = 0; r < kRows; ++r) {
            __builtin_prefetch(ahead.row(r) + line * kLineBytes);
          }
        }
        ahead.advance(kLines * kLineBytes);
        fetch_at += fetch_step;
      }
#pragma GCC unroll 2
      for (int64_t lanes = c; lanes < c + kStep; lanes += kLanes) {
#pragma GCC unroll 2
        for (int i = 0; i < kAtOnce; ++i) {
          const auto from = lanes + (v + i) * Vec::kWidth;
          multiply(
              i, [from](auto* row) { return W::load(row + from); },
              [from](auto* row) { return F32::load(row + from); });
        }
      }
    }
    for (; c < tokens.columns; c += kLanes) {
#pragma GCC unroll 2
      for (int i = 0; i < kAtOnce; ++i) {
        const auto from = c + (v + i) * Vec::kWidth;
        const auto count = tokens.columns - from;
        multiply(
            i, [=](auto* row) { return W::load_partial(row + from, count); },
            [=](auto* row) { return F32::load_partial(row + from, count); });
      }
    }
#pragma GCC unroll 2
    for (int i = 0; i < kAtOnce; ++i) {
#pragma GCC unroll 32
      for (int s = 0; s < kPadded; ++s) {
        parts[s][v + i] = s < kSums ? sums[i][s < kSums ? s : 0] : Vec::zero();
      }
    }
  }

  alignas(16) float sums[kPadded];
#pragma GCC unroll 8
  for (int i = 0; i < kPadded; i += 4) {
    sum4(parts[i], parts[i + 1], parts[i + 2], parts[i + 3], sums + i);
  }
#pragma GCC unroll 8
  for (int t = 0; t < kTokens; ++t) {
    float* const to = tokens.sums + t * tokens.sums_stride;
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      to[r] = tokens.add ? to[r] + sums[t * kRows + r] : sums[t * kRows + r];
    }
  }
}

// multiply_tile() for up to kTokens tokens.
template <class W, int kRows, int kTokens>
void multiply_few(const Rows<W>& rows, const Tokens& tokens, int64_t count, const Ahead& ahead) {
  if constexpr (kTokens > 0) {
    if (count == kTokens) {
      multiply_tile<W, kRows, kTokens>(rows, tokens, ahead);
    } else {
      multiply_few<W, kRows, kTokens - 1>(rows, tokens, count, ahead);
    }
  }
}

// In tiles of about the same number of tokens, up to kTokens.
template <class W, int kRows, int kTokens>
void multiply_all(const Rows<W>& rows, const Tokens& tokens, int64_t count, const Ahead& ahead) {
  const int64_t tiles = (count + kTokens - 1) / kTokens;
  int64_t first = 0;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t end = count * (tile + 1) / tiles;
    multiply_few<W, kRows, kTokens>(rows, tokens_from(tokens, first), end - first,
                                    share_of(ahead, tile, tiles));
    first = end;
  }
}

// With many tokens rows are converted once, into the L1.
template <class W, int kRows>
void convert_and_multiply(const Rows<W>& rows, const Tokens& tokens, int64_t count,
                          const Ahead& ahead) {
  alignas(64) float converted[kRows * kBlockColumns];
  for (int r = 0; r < kRows; ++r) {
    const auto* const row = rows.w + r * rows.stride;
    float* const to = converted + r * kBlockColumns;
    int64_t c = 0;
    for (; c + Vec::kWidth <= tokens.columns; c += Vec::kWidth) {
      W::load(row + c).store(to + c);
    }
    for (; c < tokens.columns; c += Vec::kWidth) {  // whole vectors: a block is a multiple of them
      W::load_partial(row + c, tokens.columns - c).store(to + c);
    }
  }
  multiply_all<F32, kRows, kTileTokens>({converted, kBlockColumns}, tokens, count, ahead);
}

// Rows that are multiplied together, over all columns.
template <class W, int kRows, int kTokens, bool kConvert>
void multiply_rows(const Product& p, int64_t row) {
  using Stored = typename W::Stored;
  const auto* const w = static_cast<const Stored*>(p.w) + row * p.w_stride;
  const bool is_last = row + 2 * kRows > p.rows;
  const float* x = p.x;
  for (int64_t first = 0; first < p.columns; first += kBlockColumns, x += p.x_block) {
    const int64_t end = first + kBlockColumns < p.columns ? first + kBlockColumns : p.columns;
    const auto* const next = end < p.columns ? w + end : is_last ? w : w + kRows * p.w_stride;
    const int64_t stored = sizeof(Stored);
    const Ahead ahead{reinterpret_cast<const uint8_t*>(next), p.w_stride * stored,
                      (end - first) * stored / kLineBytes};
    const Tokens tokens{
        x, p.x_stride, end - first, p.sums + row, p.sums_stride, p.add || first > 0};
    if constexpr (kConvert) {
      convert_and_multiply<W, kRows>({w + first, p.w_stride}, tokens, p.tokens, ahead);
    } else {
      multiply_all<W, kRows, kTokens>({w + first, p.w_stride}, tokens, p.tokens, ahead);
    }
  }
}

template <class W, int kRows, int kTokens, bool kConvert>
void multiply_in_groups(const Product& p) {
  int64_t row = 0;
  for (; row + kRows <= p.rows; row += kRows) {
    multiply_rows<W, kRows, kTokens, kConvert>(p, row);
  }
  for (; row < p.rows; ++row) {
    multiply_rows<W, 1, kTokens, kConvert>(p, row);
  }
}

template <class W>
void multiply(const Product& p) {
  constexpr bool kIsF32 = sizeof(typename W::Stored) == sizeof(float);
  if (p.columns == 0) {  // no block has sums
    for (int64_t t = 0; t < (p.add ? 0 : p.tokens); ++t) {
      for (int64_t r = 0; r < p.rows; ++r) {
        p.sums[t * p.sums_stride + r] = 0.0F;
      }
    }
  } else if (p.tokens == 1) {
    multiply_in_groups<W, kTileRowsOfOneToken, 1, false>(p);
  } else if (kIsF32 || p.tokens <= 2 * kTileTokens) {
    multiply_in_groups<W, kTileRows, kTileTokens, false>(p);
  } else {
    multiply_in_groups<W, kTileRows, kTileTokens, !kIsF32>(p);
  }
}
