#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>

#include "sparse/tca_bme/cuda/record_matmul_cuda.h"
#include "sparse/tca_bme/cuda/record_wgmma_cuda.h"
#include "sparse/tca_bme/format/record_parts.h"
#include "sparse/tca_bme/format/record_sizes.h"
#include "tests/sparse/gpu_weight_test.h"

namespace sparsellm::testing {

// Densities of every `period`-th 64 rows and of those between, which decide on a layout.
struct Mix {
  tca_bme::RecordLayout layout;
  int64_t period;
  double density;
  double between;
};
inline constexpr tca_bme::RecordLayout kNarrow{.chunks = 4,
                                               .values = tca_bme::RecordValues::single};
inline constexpr tca_bme::RecordLayout kWide{.chunks = 8, .values = tca_bme::RecordValues::single};
inline constexpr tca_bme::RecordLayout kPairs{.chunks = 8, .values = tca_bme::RecordValues::pair};
inline constexpr Mix kMixes[] = {
    {kNarrow, 1, 1.0, 1.0}, {kNarrow, 1, 0.5, 0.5},  {kNarrow, 2, 1.0, 0.0}, {kNarrow, 2, 0.1, 0.9},
    {kWide, 1, 0.25, 0.25}, {kWide, 4, 1.0, 0.0},    {kWide, 4, 0.5, 0.15},  {kPairs, 1, 0.0, 0.0},
    {kPairs, 1, 0.1, 0.1},  {kPairs, 1, 0.01, 0.01}, {kPairs, 8, 1.0, 0.0}};

// An encoding on the GPU, for a device of this many clusters.
class DeviceMatrix {
 public:
  explicit DeviceMatrix(const EncodedWeight& e, const ClusterCounts& clusters = {}) {
    const tca_bme::RecordParts parts(e);
    const tca_bme::RecordSizes sizes = tca_bme::record_sizes(parts.starts, parts.grid);
    shares_ = std::make_unique<RecordShares>(record_shares(sizes.block_starts, clusters));
    upload(starts_, std::as_bytes(parts.starts));
    upload(records_, parts.records);
    matrix = {.records = static_cast<const uint8_t*>(records_.data()),
              .starts = static_cast<const uint32_t*>(starts_.data()),
              .rows = e.rows,
              .columns = e.columns,
              .chunks = parts.layout.chunks,
              .pair = parts.layout.pairs(),
              .largest_record = sizes.largest,
              .common_record = sizes.common,
              .clusters = clusters,
              .multistage = multistage_device(kGpu),
              .shares = shares_.get()};
  }

  RecordMatrix matrix;

 private:
  static void upload(Buffer& buffer, std::span<const std::byte> bytes) {
    buffer = Buffer(kGpu, std::ssize(bytes), "a test");
    copy_bytes(kGpu, buffer.data(), {}, bytes.data(), std::ssize(bytes));
  }

  Buffer starts_;
  Buffer records_;
  std::unique_ptr<RecordShares> shares_;
};

// Products of records by one kernel.
class GpuRecordTest : public GpuWeightTest {
 protected:
  // The context, with or without programmatic dependent launch.
  ExecContext with_pdl(bool pdl) const {
    ExecContext ctx = *exec;
    ctx.launches = pdl ? Launches::overlapping : Launches::ordinary;
    return ctx;
  }

  OwnedTensor mixed_weight(const Shape& shape, const Mix& mix) {
    OwnedTensor w = weight(shape, mix.density);
    const OwnedTensor between = weight(shape, mix.between);
    for (int64_t row = 0; row < shape.rows; ++row) {
      if (row / tca_bme::kRecordRows % mix.period != 0) {
        std::memcpy(w.view.rows(row, 1).raw(), between.view.rows(row, 1).raw(),
                    static_cast<size_t>(w.view.row_size() * size_of(w.view.dtype())));
      }
    }
    return w;
  }
};

// Skips where there are no products of warpgroups.
class GpuWarpgroupTest : public GpuRecordTest {
 protected:
  void SetUp() override {
    GpuRecordTest::SetUp();
    if (IsSkipped()) {
      return;
    }
    clusters = count_clusters(kGpu);
    if (record_wgmma_candidates({.rows = 1024, .columns = 1024, .clusters = clusters}, 64)
            .empty()) {
      GTEST_SKIP() << "the device or the build has no products of warpgroups";
    }
  }

  ClusterCounts clusters{};
};

}  // namespace sparsellm::testing
