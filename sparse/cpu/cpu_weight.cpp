#include "sparse/cpu/cpu_weight.h"

#include "kernels/base/error.h"

namespace sparsellm {

// Panels of f16 take the same time from 70 % of zeros on, since they are decoded whatever is in
// them, compressed rows a time in proportion to the nonzeros. With 90 % of zeros both take about
// as long for one to four tokens, and rows half as long for 16 and more (docs/notes/cpu.md).
bool is_compressed_rows_on_cpu(const EncodedWeight& e) {
  constexpr int64_t kElementsOfANonzero = 10;
  const int64_t elements = checked_mul(e.rows, e.columns, "elements of a weight");
  return e.dtype == DType::f32 || e.nonzeros <= elements / kElementsOfANonzero;
}

int64_t cpu_weight_bytes(const EncodedWeight& e) {
  return is_compressed_rows_on_cpu(e) ? compressed_rows_weight_bytes(e.rows, e.nonzeros, e.dtype)
                                      : panels::panels_bytes(e.rows, e.columns, e.nonzeros);
}

int64_t cpu_weight_workspace_bytes(const EncodedWeight& e, int64_t tokens) {
  return is_compressed_rows_on_cpu(e) ? compressed_rows_workspace_bytes(e.columns, tokens)
                                      : panel_workspace_bytes(e.columns, tokens);
}

}  // namespace sparsellm
