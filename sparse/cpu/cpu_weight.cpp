#include "sparse/cpu/cpu_weight.h"

#include "kernels/base/error.h"

namespace sparsellm {

// From 70 % of zeros on panels take about the same time, since they are decoded whole, while that
// of compressed rows falls with the nonzeros, each of which takes three times the bytes. At these
// shares both take about as long for one to four tokens, and rows about half as long for 8 and more
// (docs/notes/cpu.md).
int64_t least_elements_of_a_nonzero(CpuIsa isa) {
  constexpr int64_t kWithExpansion = 12;  // of 16-bit values by one instruction
  constexpr int64_t kWithout = 8;
  return isa == CpuIsa::avx512_vbmi2 ? kWithExpansion : kWithout;
}

bool is_compressed_rows_on_cpu(const EncodedWeight& e) {
  const int64_t elements = checked_mul(e.rows, e.columns, "elements of a weight");
  return e.dtype == DType::f32 ||
         e.nonzeros <= elements / least_elements_of_a_nonzero(best_cpu_isa());
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
