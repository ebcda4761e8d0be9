#include "kernels/fill_random.h"

#include <cmath>

#include "kernels/base/error.h"
#include "kernels/checks.h"
#include "kernels/fill_random_device.h"

namespace sparsellm {
namespace {

void check_part(const RandomFill& fill, int64_t elements) {
  const RandomFill::Part& part = fill.part;
  const bool columns_fit = part.first_column >= 0 && part.columns > 0 &&
                           part.columns <= fill.columns - part.first_column;
  require(columns_fit && part.first_row >= 0 && part.first_row <= part.all_rows &&
              elements % part.columns == 0 &&
              elements / part.columns <= part.all_rows - part.first_row,
          "fill_random: {} elements of {} columns from row {}, column {} on of a matrix {} x {}",
          elements, part.columns, part.first_row, part.first_column, part.all_rows, fill.columns);
}

}  // namespace

uint64_t random_key(uint64_t seed, std::string_view name) {
  uint64_t key = 0xcbf29ce484222325u ^ seed;  // FNV-1a
  for (char c : name) {
    key = (key ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  }
  return key;
}

RandomFillSteps steps_of(const RandomFill& fill, const ZeroThresholds& thresholds,
                         const uint64_t* cell_zeros) {
  return {.key = fill.key,
          .zeros = static_cast<uint64_t>(std::llround(fill.sparsity * 0x1p32)),
          .centre = fill.centre,
          .step = fill.spread * 0x1p-16f,
          .grid = thresholds.grid,
          .cell_zeros = cell_zeros,
          .row_order = thresholds.counted ? random_order(thresholds.grid.columns) : RandomOrder(),
          .first = fill.part.first_row * fill.columns + fill.part.first_column,
          .width = fill.part.all_rows > 0 ? fill.part.columns : 0,
          .columns = fill.columns};
}

void fill_random(const RandomFill& fill, Tensor x, ExecContext& ctx) {
  check_tensor({"fill_random", "x"}, x, Elements::floating, {kAnySize}, ctx);
  require(x.contiguous(), "fill_random: x is not contiguous");
  require(fill.sparsity >= 0.0 && fill.sparsity <= 1.0,
          "fill_random: the sparsity is {}; it lies between 0 and 1", fill.sparsity);
  const std::string reason = why_not(fill.pattern, fill.sparsity);
  require(reason.empty(), "fill_random: the pattern {}", reason);
  const bool is_part = fill.part.all_rows > 0;
  if (is_part) {
    check_part(fill, x.size(0));
  }
  ZeroThresholds thresholds;
  if (fill.pattern.kind != ZeroPattern::Kind::uniform) {
    require(fill.columns > 0 && (is_part || x.size(0) % fill.columns == 0),
            "fill_random: {} elements are no matrix with {} columns", x.size(0), fill.columns);
    if (x.size(0) > 0) {
      const int64_t rows = is_part ? fill.part.all_rows : x.size(0) / fill.columns;
      thresholds = zero_thresholds(fill.pattern, fill.sparsity, fill.key, rows, fill.columns);
    }
  }
  if (ctx.device.is_cuda()) {
    fill_random_cuda(fill, thresholds, x, ctx);
  } else {
    fill_random_cpu(fill, thresholds, x, ctx);
  }
}

}  // namespace sparsellm
