#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "sparse/tiled_csl/cuda/tile_encode_cuda.h"
#include "sparse/tiled_csl/format/tile_record.h"
#include "sparse/tiled_csl/host/record_view.h"
#include "sparse/tiled_csl/tiled_csl.h"
#include "tests/sparse/gpu_weight_test.h"

namespace sparsellm::testing {

// Where a matrix on the GPU begins in rows of more elements, which are nonzeros that do not belong
// to it.
struct Placement {
  int64_t offset = 0;
  int64_t more = 0;  // elements of a row
};
inline constexpr Placement kContiguous{};
inline constexpr Placement kStrided{.offset = 2, .more = 6};
inline constexpr Placement kUnaligned{.offset = 1, .more = 3};

// The encoder of tiled_csl on CUDA, against the CPU's.
class GpuTileEncoder : public GpuWeightTest {
 protected:
  ::testing::AssertionResult encodes_as_the_cpu(const Tensor& w, const Placement& placement) {
    const OwnedTensor memory = placed(w, placement);
    const EncodedWeight expected = tiled_csl_format().encode(w, cpu.threads);
    const tiled_csl::DeviceTiles made =
        tiled_csl::encode_tiles_cuda(memory.view.columns(placement.offset, w.size(1)), *exec);
    const EncodedPart& starts = expected.part(tiled_csl::kStarts);
    const EncodedPart& records = expected.part(tiled_csl::kRecords);
    int64_t largest = 0;
    const std::span<const uint32_t> numbers = starts.values<uint32_t>();
    for (size_t i = 0; i + 1 < numbers.size(); ++i) {
      largest =
          std::max(largest, int64_t{numbers[i + 1] - numbers[i]} * tiled_csl::kRecordAlignment);
    }
    if (made.nonzeros != expected.nonzeros || made.largest_record != largest) {
      return ::testing::AssertionFailure()
             << made.nonzeros << " nonzeros and a record of " << made.largest_record
             << " bytes, not " << expected.nonzeros << " and " << largest;
    }
    if (const auto same = same_bytes("starts", bytes_of_buffer(made.starts), starts.bytes); !same) {
      return same;
    }
    return same_bytes("records", bytes_of_buffer(made.records), records.bytes);
  }

 private:
  static OwnedTensor placed(const Tensor& w, const Placement& placement) {
    const int64_t columns = w.size(1) + placement.more;
    const OwnedTensor host = allocate_tensor({}, w.dtype(), {w.size(0), columns}, "a test");
    auto* const elements = static_cast<uint16_t*>(host.view.raw());
    std::fill_n(elements, host.view.element_count(), uint16_t{0x3c3c});
    for (int64_t row = 0; row < w.size(0); ++row) {
      copy_bytes({}, elements + row * columns + placement.offset, {}, w.rows(row, 1).raw(),
                 w.size(1) * int64_t{sizeof(uint16_t)});
    }
    OwnedTensor on_gpu = allocate_tensor(kGpu, w.dtype(), {w.size(0), columns}, "a test");
    copy_bytes(kGpu, on_gpu.view.raw(), {}, host.view.raw(), host.view.bytes());
    return on_gpu;
  }

  static ::testing::AssertionResult same_bytes(const char* part, const std::vector<std::byte>& got,
                                               std::span<const std::byte> expected) {
    const auto [a, b] = std::mismatch(got.begin(), got.end(), expected.begin(), expected.end());
    return a == got.end() && b == expected.end() ? ::testing::AssertionSuccess()
                                                 : ::testing::AssertionFailure()
                                                       << part << " of " << got.size()
                                                       << " bytes differ from " << expected.size()
                                                       << " in byte " << a - got.begin();
  }
};

}  // namespace sparsellm::testing
