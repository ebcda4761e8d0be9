// Rows of a dense weight that stand in a list, for one instruction set; included after
// multiply_rows.inc.h, whose tiles they are multiplied in. Vec also has all(float).

constexpr int kListedRows = 4;  // that are read together

template <class W, int kRows>
struct ListedRows {
  const typename W::Stored* at[kRows];

  const typename W::Stored* row(int r) const { return at[r]; }
};

// Of as many rows as are multiplied together: the next ones of the list, in places of their own.
template <int kRows>
struct ListedAhead {
  const uint8_t* at[kRows];
  int64_t lines;

  const uint8_t* row(int r) const { return at[r]; }
  void advance(int64_t bytes) {
    for (int r = 0; r < kRows; ++r) {
      at[r] += bytes;
    }
  }
};

// Rows first, ..., first + kRows - 1 of the list, over all columns.
template <class W, int kRows>
void multiply_listed_rows(const ListedProduct& p, int64_t first) {
  using Stored = typename W::Stored;
  const auto row = [&](int64_t k) {
    return static_cast<const Stored*>(p.w) + p.rows[k] * p.w_stride;
  };
  for (int64_t begin = 0; begin < p.columns; begin += kBlockColumns) {
    const int64_t end = begin + kBlockColumns < p.columns ? begin + kBlockColumns : p.columns;
    const bool same_rows = end < p.columns;
    const int64_t last = p.count - 1;
    ListedRows<W, kRows> rows;
    ListedAhead<kRows> ahead;
    ahead.lines = (end - begin) * static_cast<int64_t>(sizeof(Stored)) / kLineBytes;
    for (int r = 0; r < kRows; ++r) {
      const int64_t next = first + r + kRows < last ? first + r + kRows : last;
      rows.at[r] = row(first + r) + begin;
      ahead.at[r] = reinterpret_cast<const uint8_t*>(same_rows ? row(first + r) + end : row(next));
    }
    const Tokens token{p.x + begin, 0, end - begin, p.sums + first, 0, begin > 0};
    multiply_tile<W, kRows, 1>(rows, token, ahead);
  }
}

template <class W, int kRows>
void multiply_few_listed(const ListedProduct& p, int64_t first) {
  if constexpr (kRows > 0) {
    if (p.count - first == kRows) {
      multiply_listed_rows<W, kRows>(p, first);
    } else {
      multiply_few_listed<W, kRows - 1>(p, first);
    }
  }
}

template <class W>
void multiply_listed(const ListedProduct& p) {
  if (p.columns == 0) {
    for (int64_t k = 0; k < p.count; ++k) {
      p.sums[k] = 0.0F;
    }
    return;
  }
  int64_t first = 0;
  for (; first + kListedRows <= p.count; first += kListedRows) {
    multiply_listed_rows<W, kListedRows>(p, first);
  }
  multiply_few_listed<W, kListedRows - 1>(p, first);
}

// Rows first, ..., first + kRows - 1 of the list, one after the other, on top of the sums of those
// before.
template <class W, int kRows>
void sum_listed_rows(const WeightedRows& p, int64_t first) {
  using Stored = typename W::Stored;
  const Stored* rows[kRows];
  const uint8_t* ahead[kRows];
  Vec factors[kRows];
  const int64_t last = p.count + p.next - 1;
  for (int r = 0; r < kRows; ++r) {
    const int64_t next = first + r + kRows < last ? first + r + kRows : last;
    rows[r] = static_cast<const Stored*>(p.w) + p.rows[first + r] * p.w_stride;
    ahead[r] = reinterpret_cast<const uint8_t*>(static_cast<const Stored*>(p.w) +
                                                p.rows[next] * p.w_stride);
    factors[r] = Vec::all(p.factors[first + r]);
  }
  const bool add = first > 0;
  constexpr int64_t kStep = kLineBytes / static_cast<int64_t>(sizeof(Stored));
  const auto add_rows = [&](Vec sum, auto&& load) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      sum = fma(load(rows[r]), factors[r], sum);
    }
    return sum;
  };
  int64_t c = 0;
  for (; c + kStep <= p.columns; c += kStep) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      __builtin_prefetch(ahead[r] + c * static_cast<int64_t>(sizeof(Stored)));
    }
#pragma GCC unroll 4
    for (int64_t at = c; at < c + kStep; at += Vec::kWidth) {
      add_rows(add ? F32::load(p.sums + at) : Vec::zero(), [at](auto* row) {
        return W::load(row + at);
      }).store(p.sums + at);
    }
  }
  for (; c < p.columns; c += Vec::kWidth) {
    const int64_t count = p.columns - c;
    alignas(64) float sums[Vec::kWidth];
    add_rows(add ? F32::load_partial(p.sums + c, count) : Vec::zero(), [c, count](auto* row) {
      return W::load_partial(row + c, count);
    }).store(sums);
    for (int64_t i = 0; i < count && i < Vec::kWidth; ++i) {
      p.sums[c + i] = sums[i];
    }
  }
}

template <class W, int kRows>
void sum_few_listed(const WeightedRows& p, int64_t first) {
  if constexpr (kRows > 0) {
    if (p.count - first == kRows) {
      sum_listed_rows<W, kRows>(p, first);
    } else {
      sum_few_listed<W, kRows - 1>(p, first);
    }
  }
}

template <class W>
void sum_listed(const WeightedRows& p) {
  if (p.count == 0) {
    for (int64_t c = 0; c < p.columns; ++c) {
      p.sums[c] = 0.0F;
    }
    return;
  }
  int64_t first = 0;
  for (; first + kListedRows <= p.count; first += kListedRows) {
    sum_listed_rows<W, kListedRows>(p, first);
  }
  sum_few_listed<W, kListedRows - 1>(p, first);
}

template <class W>
constexpr DenseKernels dense_kernels() {
  return {
      .multiply = multiply<W>, .multiply_listed = multiply_listed<W>, .sum_listed = sum_listed<W>};
}
