#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "kernels/base/cpu_isa.h"
#include "sparse/cpu/compressed_rows_weight.h"
#include "sparse/cpu/panels/panel_weight.h"
#include "sparse/cpu/walked_rows.h"
#include "sparse/encoded_weight.h"

namespace sparsellm {

// What a sparse weight is on the CPU, whatever its format is in a file: panels, or compressed rows
// where there are so few nonzeros that these are multiplied faster by the best instruction set that
// this CPU has. Both have the same sums (compressed_rows_weight.h). Of `e` the fields count, it may
// have no parts.
int64_t least_elements_of_a_nonzero(CpuIsa isa);  // from there on rows
bool is_compressed_rows_on_cpu(const EncodedWeight& e);
int64_t cpu_weight_bytes(const EncodedWeight& e);
// Of the workspace that matmul() takes.
int64_t cpu_weight_workspace_bytes(const EncodedWeight& e, int64_t tokens);

// The weight of a valid encoding of 16-bit values, whose memory is freed.
template <template <class> class Walker>
std::unique_ptr<WeightMatrix> make_cpu_weight(EncodedWeight e, ThreadPool& threads) {
  if (!is_compressed_rows_on_cpu(e)) {
    return make_panel_weight<Walker>(std::move(e), threads);
  }
  CompressedRows m = walked_rows<Walker>(e, threads);
  e.parts.clear();
  return std::make_unique<CompressedRowsWeight>(e.format, std::move(m));
}

}  // namespace sparsellm
