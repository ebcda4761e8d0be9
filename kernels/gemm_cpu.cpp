#include <algorithm>
#include <vector>

#include "kernels/base/simd.h"
#include "kernels/device/activate_values.h"
#include "kernels/gemm_device.h"

namespace sparsellm {
namespace {

// Every element of y is one dot product: eight partial sums over the columns i, i + 8, i + 16, ...,
// added up at the end in a fixed order. A tile shares the loads of several rows of w and tokens of
// x, and changes nothing in that order.

// Tokens from which on the rows of w are expanded to f32 once, instead of once per tile.
constexpr int64_t kMinTokensToExpand = 4;
constexpr int64_t kTileTokens = 4;
constexpr int64_t kTileRows = 3;
// A block of x that stays in the L2 while all rows of w pass by.
constexpr int64_t kBlockBytes = 512 << 10;
// Products that are worth the attention of another thread.
constexpr int64_t kMinProductsPerRange = 16 << 10;

// out[r][t] = w[r] . x[t], with rows `w_stride` and `x_stride` elements apart.
template <int kRows, int kTokens, class W>
void dot_tile(const W* w, int64_t w_stride, const float* x, int64_t x_stride, int64_t columns,
              float (&out)[kRows][kTokens]) {
  F32x8 sums[kRows][kTokens];
  for (auto& row : sums) {
    for (F32x8& element : row) {
      element = F32x8::zero();
    }
  }
  const auto step = [&](auto&& load_x, auto&& load_w) {
    F32x8 xs[kTokens];
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      xs[t] = load_x(x + t * x_stride);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const F32x8 ws = load_w(w + r * w_stride);
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        sums[r][t] = fma(ws, xs[t], sums[r][t]);
      }
    }
  };
  const int64_t whole = columns / F32x8::kWidth * F32x8::kWidth;
  for (int64_t i = 0; i < whole; i += F32x8::kWidth) {
    const auto load = [i](auto* row) { return F32x8::load(row + i); };
    step(load, load);
  }
  if (whole < columns) {
    const auto load = [&](auto* row) { return load_partial(row + whole, columns - whole); };
    step(load, load);
  }
  if constexpr (kRows % 4 == 0 && kTokens == 1) {
    for (int r = 0; r < kRows; r += 4) {
      sum4(sums[r][0], sums[r + 1][0], sums[r + 2][0], sums[r + 3][0], &out[r][0]);
    }
  } else if constexpr (kTokens == 4) {
    for (int r = 0; r < kRows; ++r) {
      sum4(sums[r][0], sums[r][1], sums[r][2], sums[r][3], out[r]);
    }
  } else {
    for (int r = 0; r < kRows; ++r) {
      for (int t = 0; t < kTokens; ++t) {
        out[r][t] = sum(sums[r][t]);
      }
    }
  }
}

struct Rows {
  int64_t begin;
  int64_t end;
};

// y[t][rows] = w[rows] . x[t] for the tokens of one block.
template <class W>
class Product {
 public:
  Product(const Tensor& x, const Tensor& w, const Tensor& y) : x_(x), w_(w), y_(y) {}

  void run(Rows rows, int64_t first_token, int64_t tokens) const {
    if (tokens >= kMinTokensToExpand) {
      run_expanded(rows, first_token, tokens);
      return;
    }
    int64_t row = rows.begin;
    for (; row + 8 <= rows.end && tokens == 1; row += 8) {
      tile<8, 1>(row, w_.row<W>(row), w_.row_stride(), first_token);
    }
    for (; row + 4 <= rows.end; row += 4) {
      token_tiles<4>(row, w_.row<W>(row), w_.row_stride(), first_token, tokens);
    }
    for (; row < rows.end; ++row) {
      token_tiles<1>(row, w_.row<W>(row), w_.row_stride(), first_token, tokens);
    }
  }

 private:
  void run_expanded(Rows rows, int64_t first_token, int64_t tokens) const {
    const int64_t columns = w_.size(1);
    std::vector<float> expanded(kTileRows * columns);
    for (int64_t row = rows.begin; row < rows.end; row += kTileRows) {
      const int64_t count = std::min(kTileRows, rows.end - row);
      prefetch_rows(row + 2 * kTileRows, std::min(row + 3 * kTileRows, rows.end));
      for (int64_t r = 0; r < count; ++r) {
        expand(w_.row<W>(row + r), columns, expanded.data() + r * columns);
      }
      if (count == kTileRows) {
        token_tiles<kTileRows>(row, expanded.data(), columns, first_token, tokens);
      } else {
        for (int64_t r = 0; r < count; ++r) {
          token_tiles<1>(row + r, expanded.data() + r * columns, columns, first_token, tokens);
        }
      }
    }
  }

  // While a few rows meet all tokens, there is time to fetch the next ones.
  void prefetch_rows(int64_t begin, int64_t end) const {
    constexpr int64_t kLine = 64 / sizeof(W);
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t i = 0; i < w_.size(1); i += kLine) {
        __builtin_prefetch(w_.row<W>(row) + i);
      }
    }
  }

  static void expand(const W* row, int64_t columns, float* out) {
    int64_t i = 0;
    for (; i + F32x8::kWidth <= columns; i += F32x8::kWidth) {
      F32x8::load(row + i).store(out + i);
    }
    for (; i < columns; ++i) {
      out[i] = to_float(row[i]);
    }
  }

  template <int kRows, class V>
  void token_tiles(int64_t row, const V* w, int64_t w_stride, int64_t first, int64_t tokens) const {
    int64_t t = first;
    for (; t + kTileTokens <= first + tokens; t += kTileTokens) {
      tile<kRows, kTileTokens>(row, w, w_stride, t);
    }
    switch (first + tokens - t) {
      case 3:
        return tile<kRows, 3>(row, w, w_stride, t);
      case 2:
        return tile<kRows, 2>(row, w, w_stride, t);
      case 1:
        return tile<kRows, 1>(row, w, w_stride, t);
    }
  }

  template <int kRows, int kTokens, class V>
  void tile(int64_t row, const V* w, int64_t w_stride, int64_t token) const {
    float out[kRows][kTokens];
    dot_tile<kRows, kTokens>(w, w_stride, x_.row<float>(token), x_.row_stride(), w_.size(1), out);
    for (int t = 0; t < kTokens; ++t) {
      float* y = y_.row<float>(token + t) + row;
      for (int r = 0; r < kRows; ++r) {
        y[r] = out[r][t];
      }
    }
  }

  const Tensor& x_;
  const Tensor& w_;
  const Tensor& y_;
};

void apply_epilogue(const Epilogue& epilogue, const Tensor& y, Rows rows, int64_t first_token,
                    int64_t tokens) {
  for (int64_t t = first_token; t < first_token + tokens; ++t) {
    float* row = y.row<float>(t);
    if (!epilogue.bias.empty()) {
      visit_float(epilogue.bias.dtype(), [&]<class B>(B) {
        const B* bias = epilogue.bias.data<B>();
        for (int64_t i = rows.begin; i < rows.end; ++i) {
          row[i] += to_float(bias[i]);
        }
      });
    }
    activate_values(epilogue.activation, row + rows.begin, rows.end - rows.begin);
  }
}

}  // namespace

void gemm_cpu(const Tensor& x, const Tensor& w, const Epilogue& epilogue, Tensor y,
              ExecContext& ctx) {
  const int64_t tokens = x.size(0);
  const int64_t out = w.size(0);
  const int64_t in = w.size(1);
  const int64_t row_bytes = std::max<int64_t>(in, 1) * size_of(DType::f32);
  const int64_t block = std::max(kTileTokens, kBlockBytes / row_bytes / kTileTokens * kTileTokens);
  const int64_t products_per_row = std::max<int64_t>(in * std::min(tokens, block), 1);
  const int64_t tile_rows = 8 * kTileRows;  // a multiple of all row counts of the tiles
  const int64_t grain = (kMinProductsPerRange / products_per_row / tile_rows + 1) * tile_rows;
  visit_float(w.dtype(), [&]<class W>(W) {
    const Product<W> product(x, w, y);
    for (int64_t first = 0; first < tokens; first += block) {
      const int64_t count = std::min(block, tokens - first);
      ctx.threads.parallel_for(out, grain, [&](int64_t begin, int64_t end) {
        product.run({begin, end}, first, count);
        apply_epilogue(epilogue, y, {begin, end}, first, count);
      });
    }
  });
}

}  // namespace sparsellm
