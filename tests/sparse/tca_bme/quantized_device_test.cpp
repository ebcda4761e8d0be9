// The kernels that encode version 3 and dense narrow formats on a GPU, thread by thread on the
// host, against encode_quantized().

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sparse/tca_bme/quantized/quantized_parts.h"
#include "tests/sparse/host_device.h"
#include "tests/sparse/tca_bme/quantized_matrices.h"
// After host_device.h.
#include "sparse/tca_bme/quantized/cuda/dense_records.cuh"
#include "sparse/tca_bme/quantized/cuda/quantized_records.cuh"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;
using namespace tca_bme;

CodeSource source_of(const QuantizedMatrix& q) {
  return {.codes = q.codes.data(),
          .scales = q.scales.data(),
          .rows = q.rows,
          .columns = q.columns,
          .aligned = q.columns % 4 == 0,
          .signed_zeros = q.type == ValueType::f8};
}

void expect_encoded(const QuantizedShape& kind, const QuantizedMatrix& q) {
  ThreadPool threads(1);
  const EncodedWeight e = encode_as(kind, q, DType::f16, threads);
  const QuantizedParts parts(e);
  const auto count = static_cast<size_t>(parts.grid.count());
  const CodeSource source = source_of(q);

  std::vector<uint32_t> bits(count, 12345);
  unsigned long long all_bits = 0;
  run_grid({.x = static_cast<unsigned>(ceil_div(parts.grid.count(), kCountWarps)), .y = 1},
           kCountWarps * kWarpSize,
           [&] { count_quantized(source, parts.grid, bits.data(), &all_bits); });
  ASSERT_EQ(static_cast<int64_t>(all_bits), e.nonzeros);
  const std::vector<int32_t> counted(bits.begin(), bits.end());
  const std::vector<uint32_t> starts = quantized_starts(parts.layout, counted);
  ASSERT_EQ(starts, std::vector<uint32_t>(parts.starts.begin(), parts.starts.end()));

  constexpr auto kPoison = uint8_t{0xa5};
  constexpr size_t kGuard = 64;
  std::vector<uint8_t> records(parts.records.size() + kGuard, kPoison);
  run_grid({.x = static_cast<unsigned>(count), .y = 1}, kEmitThreads, [&] {
    (parts.layout.dense() ? emit_dense : emit_quantized)(source, parts.layout, parts.grid,
                                                         starts.data(), records.data());
  });
  for (size_t i = 0; i < parts.records.size(); ++i) {
    ASSERT_EQ(records[i], static_cast<uint8_t>(parts.records[i])) << "byte " << i;
  }
  for (size_t i = parts.records.size(); i < records.size(); ++i) {
    ASSERT_EQ(records[i], kPoison) << "something is written past the records";
  }
}

TEST(QuantizedDevice, MakesTheRecordsOfTheHost) {
  struct Size {
    int64_t rows;
    int64_t columns;
  };
  uint64_t seed = 1;
  for (const QuantizedShape& kind : quantized_kinds()) {
    for (const Size& size : {Size{1, 1}, Size{64, 128}, Size{65, 129}, Size{70, 300}}) {
      for (const double density : {0.0, 0.01, 0.4, 0.5, 1.0}) {
        QuantizedShape shape = kind;
        shape.rows = size.rows;
        shape.columns = size.columns;
        shape.density = density;
        SCOPED_TRACE(fmt::format("{} of {} in groups of {}, [{}, {}], density {}", kind.format,
                                 name_of(kind.type), kind.group, size.rows, size.columns, density));
        expect_encoded(kind, random_quantized(shape, ++seed));
      }
    }
  }
}

}  // namespace
}  // namespace sparsellm
