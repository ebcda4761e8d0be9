// The product of a panel, for one instruction set. The file of each includes it inside its unnamed
// namespace, after
//   struct Vec;                  // kWidth floats: zero, all, load, store, fma
//   constexpr int kTileVectors;  // rows of a tile in registers: so many vectors,
//   constexpr int kTileTokens;   // for so many tokens
// and calls multiply() with a Decoder, which has
//   static constexpr int kTokensInRegisters;  // up to here sums of all 64 rows stay in registers
//   template <class F>
//   static const uint8_t* column(uint64_t mask, const uint8_t* values, F&& f);
//     // Calls f(Index<i>, Vec) for each vector of a column's 64 rows; returns the values' end.

#include "kernels/cpu/prefetch.inc.h"

constexpr int kVectors = kRows / Vec::kWidth;

// The place of a vector, known at compile time: sums are arrays in registers.
template <int I>
struct Index {
  static constexpr int value = I;
};

// Fetched ahead by the bytes that were read: a column without zeros has two lines.
inline void prefetch(const uint8_t* values) {
  constexpr int64_t kAhead = 8192;
  __builtin_prefetch(values + kAhead);
  __builtin_prefetch(values + kAhead + 64);
}

// Calls body(first column, columns, masks, values) for each group; it returns the values' end.
template <class Body>
inline void for_each_group(const uint8_t* panel, int64_t columns, Body&& body) {
  for (int64_t first = 0; first < columns; first += kGroupColumns) {
    const int64_t count = columns - first < kGroupColumns ? columns - first : kGroupColumns;
    for (int64_t at = 0; at < count * 8; at += 128) {
      prefetch(panel + at);
    }
    panel = body(first, count, panel, panel + count * 8);
  }
}

inline uint64_t mask_of(const uint8_t* masks, int64_t column) {
  uint64_t mask;
  __builtin_memcpy(&mask, masks + column * 8, sizeof(mask));
  return mask;
}

template <class Decoder, int kTokens>
void multiply_in_registers(const uint8_t* panel, int64_t columns, const float* x, float* sums) {
  Vec all[kVectors][kTokens];
  for (auto& row : all) {
    for (Vec& sum : row) {
      sum = Vec::zero();
    }
  }
  for_each_group(panel, columns,
                 [&](int64_t first, int64_t count, const uint8_t* masks, const uint8_t* values) {
                   const float* at = x + first * kTokens;
                   for (int64_t c = 0; c < count; ++c, at += kTokens) {
                     prefetch(values);
                     Vec xs[kTokens];
#pragma GCC unroll 8
                     for (int t = 0; t < kTokens; ++t) {
                       xs[t] = Vec::all(at[t]);
                     }
                     values =
                         Decoder::column(mask_of(masks, c), values, [&]<int I>(Index<I>, Vec w) {
#pragma GCC unroll 8
                           for (int t = 0; t < kTokens; ++t) {
                             all[I][t] = fma(w, xs[t], all[I][t]);
                           }
                         });
                   }
                   return values;
                 });
#pragma GCC unroll 8
  for (int i = 0; i < kVectors; ++i) {
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      all[i][t].store(sums + t * kRows + i * Vec::kWidth);
    }
  }
}

// A piece of so many columns, decoded, for some tokens: sums += piece * x, with x
// [columns][stride].
template <int kTokens>
void multiply_piece(const float* piece, int64_t columns, const float* x, int64_t stride,
                    float* sums, Ahead ahead) {
  for (int block = 0; block < kVectors; block += kTileVectors) {
    float* const out = sums + block * Vec::kWidth;
    Vec all[kTileVectors][kTokens];
#pragma GCC unroll 8
    for (int i = 0; i < kTileVectors; ++i) {
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        all[i][t] = Vec::load(out + t * kRows + i * Vec::kWidth);
      }
    }
    const float* w = piece + block * Vec::kWidth;
    const float* at = x;
    for (int64_t c = 0; c < columns; ++c, w += kRows, at += stride) {
      if (ahead.lines > 0) {
        __builtin_prefetch(ahead.from);
        ahead.from += kLineBytes;
        --ahead.lines;
      }
      Vec ws[kTileVectors];
#pragma GCC unroll 8
      for (int i = 0; i < kTileVectors; ++i) {
        ws[i] = Vec::load(w + i * Vec::kWidth);
      }
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        const Vec xs = Vec::all(at[t]);
#pragma GCC unroll 8
        for (int i = 0; i < kTileVectors; ++i) {
          all[i][t] = fma(ws[i], xs, all[i][t]);
        }
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kTileVectors; ++i) {
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        all[i][t].store(out + t * kRows + i * Vec::kWidth);
      }
    }
  }
}

// multiply_piece() for up to kTokens tokens.
template <int kTokens>
void multiply_few(int64_t tokens, const float* piece, int64_t columns, const float* x,
                  int64_t stride, float* sums, const Ahead& ahead) {
  if constexpr (kTokens > 0) {
    if (tokens == kTokens) {
      multiply_piece<kTokens>(piece, columns, x, stride, sums, ahead);
    } else {
      multiply_few<kTokens - 1>(tokens, piece, columns, x, stride, sums, ahead);
    }
  }
}

// Each group of columns is decoded once, into the L1, and meets all tokens there.
template <class Decoder>
void multiply_by_pieces(const uint8_t* panel, int64_t columns, const float* x, int64_t tokens,
                        float* sums) {
  alignas(64) float piece[kGroupColumns * kRows];
  __builtin_memset(sums, 0, sizeof(float) * static_cast<size_t>(tokens * kRows));
  const int64_t tiles = (tokens + kTileTokens - 1) / kTileTokens;
  for (int64_t first = 0; first < columns; first += kGroupColumns) {
    const int64_t count = columns - first < kGroupColumns ? columns - first : kGroupColumns;
    const uint8_t* const masks = panel;
    const uint8_t* values = panel + count * 8;
    for (int64_t c = 0; c < count; ++c) {
      float* const to = piece + c * kRows;
      values = Decoder::column(mask_of(masks, c), values,
                               [&]<int I>(Index<I>, Vec w) { w.store(to + I * Vec::kWidth); });
    }
    // The next group has about as many values.
    const Ahead ahead{values, 0, (values - panel) / kLineBytes + 1};
    panel = values;
    const float* const at = x + first * tokens;
    int64_t t = 0;
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t end = tokens * (tile + 1) / tiles;
      multiply_few<kTileTokens>(end - t, piece, count, at + t, tokens, sums + t * kRows,
                                share_of(ahead, tile, tiles));
      t = end;
    }
  }
}

template <class Decoder, int kTokens = Decoder::kTokensInRegisters>
void multiply(const uint8_t* panel, int64_t columns, const float* x, int64_t tokens, float* sums) {
  if constexpr (kTokens == 0) {
    multiply_by_pieces<Decoder>(panel, columns, x, tokens, sums);
  } else if (tokens == kTokens) {
    multiply_in_registers<Decoder, kTokens>(panel, columns, x, sums);
  } else {
    multiply<Decoder, kTokens - 1>(panel, columns, x, tokens, sums);
  }
}
