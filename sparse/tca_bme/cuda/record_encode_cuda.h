#pragma once

#include <cstdint>
#include <variant>

#include "kernels/base/buffer.h"
#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"
#include "sparse/tca_bme/format/record_layout.h"
#include "sparse/tca_bme/format/record_sizes.h"
#include "sparse/tca_bme/format/records_for.h"

namespace sparsellm::tca_bme {

// What encode_records() makes, the same bytes, in the memory of a CUDA device.
struct DeviceRecords {
  RecordLayout layout;
  int64_t nonzeros = 0;
  RecordSizes sizes;
  Buffer starts;
  Buffer records;
};

// Encodes w [rows, columns], f16 or bf16, on the CUDA device of ctx; its rows may be strided. The
// layout is this one, or that of record_layout_for(). Takes a two-thousandth of its memory besides
// what it returns; synchronises. Throws Error for more nonzeros than starts hold.
DeviceRecords encode_records_cuda(const Tensor& w, std::variant<RecordsFor, RecordLayout> layout,
                                  ExecContext& ctx);

}  // namespace sparsellm::tca_bme
