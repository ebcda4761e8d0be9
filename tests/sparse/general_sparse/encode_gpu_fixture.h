#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/cuda_state.cuh"
#include "sparse/general_sparse/cuda/encode_cuda.h"
#include "sparse/general_sparse/cuda/row_pieces.h"
#include "sparse/general_sparse/cuda/slice_plan.h"
#include "sparse/general_sparse/format/parts.h"
#include "tests/sparse/general_sparse/slices_gpu_fixture.h"

namespace sparsellm::testing {

// The encoder of general_sparse on CUDA, against the CPU's.
class GpuGeneralSparseEncoder : public GpuGeneralSparse {
 protected:
  // Of the matrix on the GPU. Strided ones lie in rows of more elements, which are nonzeros that do
  // not belong to it, and pairs of elements are not aligned.
  enum class Rows { contiguous, strided };

  // The same bytes as an encoding of the CPU has when it is loaded.
  ::testing::AssertionResult encodes_as_the_cpu(const Tensor& w, Rows rows) {
    const EncodedWeight expected = general_sparse_format().encode(w, cpu.threads);
    const general_sparse::Parts parts(expected);
    const OwnedTensor memory = placed(w, rows);
    const std::optional<general_sparse::DeviceEncoding> made =
        general_sparse::encode_cuda(memory.view.columns(offset_of(rows), w.size(1)), *exec);
    if (!made) {
      return w.element_count() == 0 ? ::testing::AssertionSuccess()
                                    : ::testing::AssertionFailure() << "not encoded";
    }
    if (made->layout != parts.layout || made->nonzeros != expected.nonzeros ||
        made->units != parts.starts.back() || made->dtype != w.dtype() || made->rows != w.size(0) ||
        made->columns != w.size(1)) {
      return ::testing::AssertionFailure()
             << to_text(made->layout) << ", " << made->nonzeros << " nonzeros in " << made->units
             << " units, not " << to_text(parts.layout) << ", " << expected.nonzeros << " in "
             << parts.starts.back();
    }
    std::vector<uint16_t> borders;
    std::vector<uint32_t> schedules;
    general_sparse::RowPieces pieces;
    if (parts.layout.interleave == 1) {
      pieces = general_sparse::row_pieces(parts.layout, parts.grid, parts.starts, parts.row_order);
    } else {
      schedules = general_sparse::slice_schedules(
          parts.layout, parts.grid, parts.starts,
          general_sparse::scheduled_shares(cuda_state(*exec).multiprocessors, parts.grid.slices()),
          cpu.threads);
    }
    if (parts.layout.positions == general_sparse::PositionCode::i8) {
      borders = general_sparse::border_positions(parts, cpu.threads);
    }
    struct Array {
      const char* name;
      const Buffer& got;
      std::span<const std::byte> expected;
    };
    for (const Array& array :
         {Array{"starts", made->starts, std::as_bytes(parts.starts)},
          Array{"row_order", made->row_order, std::as_bytes(parts.row_order)},
          Array{"positions", made->positions, parts.positions.bytes},
          Array{"values", made->values, parts.values.bytes},
          Array{"border_positions", made->border_positions, std::as_bytes(std::span(borders))},
          Array{"schedules", made->schedules, std::as_bytes(std::span(schedules))},
          Array{"row_pieces", made->row_pieces, std::as_bytes(std::span(pieces.pieces))},
          Array{"split_rows", made->split_rows, std::as_bytes(std::span(pieces.split_rows))}}) {
      const std::vector<std::byte> got = bytes_of_buffer(array.got);
      const auto [a, b] =
          std::mismatch(got.begin(), got.end(), array.expected.begin(), array.expected.end());
      if (a != got.end() || b != array.expected.end()) {
        return ::testing::AssertionFailure()
               << array.name << " of " << got.size() << " bytes differ from "
               << array.expected.size() << " in byte " << a - got.begin() << ", "
               << to_text(parts.layout);
      }
    }
    return ::testing::AssertionSuccess();
  }

  // Blocks of rows x 1, kept or not.
  OwnedTensor kept_blocks(const Shape& shape, int64_t block_rows, double density) {
    OwnedTensor w = weight(shape, 1.0);
    auto* const elements = static_cast<uint16_t*>(w.view.raw());
    for (int64_t row = 0; row < shape.rows; row += block_rows) {
      for (int64_t column = 0; column < shape.columns; ++column) {
        if (random.uniform(0.0, 1.0) >= density) {
          for (int64_t r = row; r < std::min(row + block_rows, shape.rows); ++r) {
            elements[r * shape.columns + column] = 0;
          }
        }
      }
    }
    return w;
  }

 private:
  static constexpr int64_t offset_of(Rows rows) { return rows == Rows::strided ? 1 : 0; }

  static OwnedTensor placed(const Tensor& w, Rows rows) {
    const int64_t columns = w.size(1) + (rows == Rows::strided ? 3 : 0);
    const OwnedTensor host = allocate_tensor({}, w.dtype(), {w.size(0), columns}, "a test");
    auto* const elements = static_cast<uint16_t*>(host.view.raw());
    std::fill_n(elements, host.view.element_count(), uint16_t{0x3c3c});
    for (int64_t row = 0; row < w.size(0); ++row) {
      copy_bytes({}, elements + row * columns + offset_of(rows), {}, w.rows(row, 1).raw(),
                 w.size(1) * int64_t{sizeof(uint16_t)});
    }
    OwnedTensor on_gpu = allocate_tensor(kGpu, w.dtype(), {w.size(0), columns}, "a test");
    copy_bytes(kGpu, on_gpu.view.raw(), {}, host.view.raw(), host.view.bytes());
    return on_gpu;
  }
};

}  // namespace sparsellm::testing
