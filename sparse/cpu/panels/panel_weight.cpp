#include "sparse/cpu/panels/panel_weight.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/base/workspace.h"
#include "kernels/cpu/store_sums.h"
#include "sparse/cpu/product_checks.h"

namespace sparsellm {
namespace {

using panels::kRows;

// Tokens that a panel meets while it is decoded once. Their sums stay in the L1 with a piece of it.
constexpr int64_t kMaxTokens = 64;

// x [tokens, columns] of a few tokens -> [columns][tokens].
void gather_tokens(const Tensor& x, int64_t first_token, const Tensor& gathered,
                   ThreadPool& threads) {
  constexpr int64_t kColumnsPerRange = 256;
  const int64_t tokens = gathered.size(1);
  auto* const out = gathered.data<float>();
  threads.parallel_for(x.size(1), kColumnsPerRange, [&](int64_t begin, int64_t end) {
    for (int64_t t = 0; t < tokens; ++t) {
      const float* const row = x.row<float>(first_token + t);
      for (int64_t column = begin; column < end; ++column) {
        out[column * tokens + t] = row[column];
      }
    }
  });
}

}  // namespace

int64_t panel_workspace_bytes(int64_t columns, int64_t tokens) {
  return tokens > 1 ? Workspace::tensor_bytes(DType::f32, {columns, std::min(tokens, kMaxTokens)})
                    : 0;
}

int64_t PanelWeight::workspace_bytes(int64_t tokens, Sums) const {
  return panel_workspace_bytes(in(), tokens);
}

void PanelWeight::matmul(const Tensor& x, Tensor y, const Epilogue& epilogue,
                         ExecContext& ctx) const {
  check_product(format(), {.out = out(), .in = in()}, x, y, epilogue, ctx);
  const panels::Kernels& kernels = panels::kernels_for(ctx.isa);
  const panels::Multiply multiply = dtype() == DType::f16 ? kernels.f16 : kernels.bf16;
  for (int64_t first = 0; first < x.size(0); first += kMaxTokens) {
    const int64_t tokens = std::min(x.size(0) - first, kMaxTokens);
    auto scratch = ctx.workspace.scope();
    const float* xs = x.row<float>(first);
    if (tokens > 1) {
      const Tensor gathered = scratch.tensor(DType::f32, {in(), tokens});
      gather_tokens(x, first, gathered, ctx.threads);
      xs = gathered.data<float>();
    }
    ctx.threads.parallel_for(panels_.count(), 1, [&](int64_t begin, int64_t end) {
      alignas(64) float sums[kMaxTokens * kRows];
      for (int64_t i = begin; i < end; ++i) {
        multiply(panels_.panel(i), in(), xs, tokens, sums);
        store_sums(sums, kRows, first, tokens, i * kRows, std::min(kRows, out() - i * kRows),
                   epilogue, y);
      }
    });
  }
}

void PanelWeight::expand(Range rows, Tensor dense, ExecContext& ctx) const {
  check_expand({.out = out(), .in = in()}, dtype(), rows, dense, ctx);
  if (dense.bytes() == 0) {
    return;
  }
  const int64_t end_row = rows.begin + rows.count;
  const int64_t first_panel = rows.begin / kRows;
  const int64_t count = panels::panel_count(end_row) - first_panel;
  ctx.threads.parallel_for(count, 1, [&](int64_t begin, int64_t end) {
    std::vector<uint16_t> values(static_cast<size_t>(in() * kRows));
    for (int64_t i = first_panel + begin; i < first_panel + end; ++i) {
      panels_.unpack(i, values.data());
      const int64_t from = std::max(i * kRows, rows.begin);
      const int64_t to = std::min((i + 1) * kRows, end_row);
      for (int64_t row = from; row < to; ++row) {
        auto* const out_row = static_cast<uint16_t*>(dense.rows(row - rows.begin, 1).raw());
        for (int64_t column = 0; column < in(); ++column) {
          out_row[column] = values[static_cast<size_t>(column * kRows + row - i * kRows)];
        }
      }
    }
  });
}

std::unique_ptr<WeightMatrix> PanelWeight::copy() const {
  return std::make_unique<PanelWeight>(header_, panels_.copy());
}

std::string PanelWeight::plan_text(DType, int64_t, const ExecContext& ctx) const {
  return "panels, " + std::string(name_of(ctx.isa));
}

}  // namespace sparsellm
