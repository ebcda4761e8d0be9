#include "sparse/cpu/compressed_rows_weight.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/workspace.h"
#include "kernels/cpu/store_sums.h"
#include "kernels/cpu/transpose.h"
#include "sparse/cpu/product_checks.h"
#include "sparse/cpu/row_products/row_kernels.h"

namespace sparsellm {
namespace {

using row_products::kBlockRows;
using row_products::kTokensAtOnce;

// Tokens of a long row that are multiplied by one thread.
constexpr int64_t kSharedTokens = 16;

const row_products::Kernels& row_kernels_for([[maybe_unused]] CpuIsa isa) {
#if defined(SPARSELLM_X86)
  switch (isa) {
    case CpuIsa::portable:
      break;
    case CpuIsa::avx2:
      return row_products::kAvx2Kernels;
    case CpuIsa::avx512:
    case CpuIsa::avx512_vbmi2:
      return row_products::kAvx512Kernels;
  }
#endif
  return row_products::kPortableKernels;
}

row_products::Multiply row_kernel(CpuIsa isa, DType dtype) {
  const row_products::Kernels& kernels = row_kernels_for(isa);
  return dtype == DType::f16 ? kernels.f16 : dtype == DType::bf16 ? kernels.bf16 : kernels.f32;
}

const void* raw_values(const CompressedRows& m) {
  const void* values = nullptr;
  visit_float(m.dtype(), [&]<class T>(T) { values = m.values<T>().data(); });
  return values;
}

}  // namespace

// kTokensAtOnce of x at most.
struct CompressedRowsWeight::Tokens {
  int64_t first;  // in x and y
  row_products::TokenColumns columns;

  Tokens part(Range range) const {
    return {first + range.begin, {columns.x + range.begin, columns.stride, range.count}};
  }
};

int64_t compressed_rows_weight_bytes(int64_t rows, int64_t nonzeros, DType dtype) {
  constexpr const char* kWhat = "bytes of a weight";
  const int64_t of_rows =
      checked_mul(checked_add(rows, 1, kWhat), int64_t{sizeof(int64_t) + sizeof(uint8_t)}, kWhat);
  return checked_add(
      of_rows, checked_mul(nonzeros, int64_t{sizeof(uint32_t)} + size_of(dtype), kWhat), kWhat);
}

int64_t compressed_rows_workspace_bytes(int64_t columns, int64_t tokens) {
  return tokens > 1
             ? Workspace::tensor_bytes(DType::f32, {columns + row_products::kPadding,
                                                    std::min<int64_t>(tokens, kTokensAtOnce)})
             : 0;
}

CompressedRowsWeight::CompressedRowsWeight(std::string_view format, CompressedRows m)
    : format_(format), matrix_(std::move(m)), order_(static_cast<size_t>(matrix_.rows())) {
  share_out_rows();
  for (const Rows& rows : shares_) {
    sort_rows(rows);
  }
}

// By what rows cost, in nonzeros. Shares are many, so that few threads and many come out about
// equal, but have several rows where they can: these are multiplied at the same time.
void CompressedRowsWeight::share_out_rows() {
  constexpr int64_t kRowCost = 16;
  constexpr int64_t kShares = 256;
  constexpr int64_t kLeastCost = 8192;
  constexpr int64_t kFewRows = 4;
  const int64_t* const starts = std::as_const(matrix_).starts().data();
  const int64_t wanted = std::max((matrix_.nonzeros() + out() * kRowCost) / kShares, kLeastCost);
  Rows share;
  int64_t cost = 0;
  const auto end_share = [&](int64_t row) {
    if (share.count > 0) {
      shares_.push_back(share);
    }
    share = {.begin = row, .count = 0};
    cost = 0;
  };
  for (int64_t row = 0; row < out(); ++row) {
    const int64_t nonzeros = starts[row + 1] - starts[row];
    if (nonzeros >= kFewRows * wanted) {
      end_share(row + 1);
      long_rows_.push_back({.begin = row, .count = 1});
      continue;
    }
    ++share.count;
    cost += nonzeros + kRowCost;
    if (cost >= kFewRows * wanted || (cost >= wanted && share.count >= kFewRows)) {
      end_share(row + 1);
    }
  }
  end_share(out());
}

void CompressedRowsWeight::sort_rows(const Rows& rows) {
  const int64_t* const starts = std::as_const(matrix_).starts().data();
  for (int64_t begin = 0; begin < rows.count; begin += kBlockRows) {
    const int64_t first = rows.begin + begin;
    const auto order = order_.begin() + first;
    const auto end = order + std::min<int64_t>(rows.count - begin, kBlockRows);
    std::iota(order, end, uint8_t{0});
    std::stable_sort(order, end, [&](uint8_t a, uint8_t b) {
      const int64_t* const block = starts + first;
      return block[a + 1] - block[a] < block[b + 1] - block[b];
    });
  }
}

int64_t CompressedRowsWeight::bytes() const {
  return compressed_rows_weight_bytes(out(), matrix_.nonzeros(), dtype());
}

int64_t CompressedRowsWeight::workspace_bytes(int64_t tokens, Sums) const {
  return compressed_rows_workspace_bytes(in(), tokens);
}

void CompressedRowsWeight::multiply_rows(const Rows& rows, const Tokens& tokens,
                                         const Epilogue& epilogue, const Tensor& y,
                                         CpuIsa isa) const {
  alignas(64) float sums[kTokensAtOnce * kBlockRows];
  const row_products::Multiply multiply = row_kernel(isa, dtype());
  for (int64_t begin = 0; begin < rows.count; begin += kBlockRows) {
    const int64_t first = rows.begin + begin;
    const int64_t count = std::min<int64_t>(rows.count - begin, kBlockRows);
    multiply({.columns = matrix_.column_indices().data(),
              .values = raw_values(matrix_),
              .starts = matrix_.starts().data() + first,
              .order = order_.data() + first,
              .count = static_cast<int>(count)},
             tokens.columns, sums);
    store_sums(sums, kBlockRows, tokens.first, tokens.columns.tokens, first, count, epilogue, y);
  }
}

void CompressedRowsWeight::matmul(const Tensor& x, Tensor y, const Epilogue& epilogue,
                                  ExecContext& ctx) const {
  check_product(format(), {.out = out(), .in = in()}, x, y, epilogue, ctx);
  for (int64_t first = 0; first < x.size(0); first += kTokensAtOnce) {
    const int64_t count = std::min<int64_t>(x.size(0) - first, kTokensAtOnce);
    auto scratch = ctx.workspace.scope();
    Tokens tokens{first, {x.row<float>(first), 1, count}};
    if (count > 1) {
      const Tensor columns = scratch.tensor(DType::f32, {in() + row_products::kPadding, count});
      transpose(x.rows(first, count), columns.rows(0, in()), ctx.threads);
      const Tensor padding = columns.rows(in(), row_products::kPadding);
      std::memset(padding.raw(), 0, static_cast<size_t>(padding.bytes()));
      tokens.columns = {columns.data<float>(), count, count};
    }
    const int64_t token_parts = (count + kSharedTokens - 1) / kSharedTokens;
    const int64_t long_items = std::ssize(long_rows_) * token_parts;
    const int64_t items = std::ssize(shares_) + long_items;
    ctx.threads.parallel_for(items, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        // Parts of long rows, which may take longer, are spread out among the others.
        const int64_t part = i * long_items / items;
        if ((i + 1) * long_items / items == part) {
          const Rows& rows = shares_[static_cast<size_t>(i - part)];
          multiply_rows(rows, tokens, epilogue, y, ctx.isa);
          continue;
        }
        const Rows& row = long_rows_[static_cast<size_t>(part / token_parts)];
        const int64_t token = part % token_parts * kSharedTokens;
        multiply_rows(
            row, tokens.part({.begin = token, .count = std::min(count - token, kSharedTokens)}),
            epilogue, y, ctx.isa);
      }
    });
  }
}

void CompressedRowsWeight::expand(Range rows, Tensor dense, ExecContext& ctx) const {
  constexpr int64_t kRowsPerRange = 16;
  check_expand({.out = out(), .in = in()}, dtype(), rows, dense, ctx);
  if (dense.bytes() == 0) {
    return;
  }
  visit_float(dtype(), [&]<class T>(T) {
    ctx.threads.parallel_for(rows.count, kRowsPerRange, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        T* const to = dense.row<T>(row);
        std::memset(static_cast<void*>(to), 0, static_cast<size_t>(in()) * sizeof(T));
        const std::span<const uint32_t> columns = matrix_.columns_of(rows.begin + row);
        const std::span<const T> values = matrix_.values_of<T>(rows.begin + row);
        for (size_t i = 0; i < columns.size(); ++i) {
          to[columns[i]] = values[i];
        }
      }
    });
  });
}

std::unique_ptr<WeightMatrix> CompressedRowsWeight::copy() const {
  return std::make_unique<CompressedRowsWeight>(format_, copy_of(matrix_));
}

std::string CompressedRowsWeight::plan_text(DType, int64_t, const ExecContext& ctx) const {
  // Those of VBMI2 have no kernels of their own.
  return "compressed rows, " + std::string(name_of(std::min(ctx.isa, CpuIsa::avx512)));
}

}  // namespace sparsellm
