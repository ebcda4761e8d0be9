#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "sparse/tiled_csl/cuda/tile_matmul_cuda.h"
#include "sparse/tiled_csl/host/tile_records.h"
#include "tests/sparse/tiled_csl/tile_gpu_fixture.h"

namespace sparsellm::testing {

// An encoding on the GPU, for a device that runs the multistage kernel alone.
class DeviceTileMatrix {
 public:
  explicit DeviceTileMatrix(const EncodedWeight& e) {
    const tiled_csl::TileRecords parts(e);
    upload(starts_, std::as_bytes(parts.starts));
    upload(records_, parts.records);
    matrix = {.records = static_cast<const uint8_t*>(records_.data()),
              .starts = static_cast<const uint32_t*>(starts_.data()),
              .rows = e.rows,
              .columns = e.columns,
              .multistage = tile_multistage_device(kGpu)};
    for (int64_t tile = 0; tile < parts.grid.count(); ++tile) {
      matrix.largest_record = std::max(matrix.largest_record, std::ssize(parts.run(tile, 1)));
    }
  }

  TileMatrix on(const TileMultistageDevice& device) const {
    TileMatrix other = matrix;
    other.multistage = device;
    return other;
  }

  TileMatrix matrix;

 private:
  static void upload(Buffer& buffer, std::span<const std::byte> bytes) {
    buffer = Buffer(kGpu, std::ssize(bytes), "a test");
    copy_bytes(kGpu, buffer.data(), {}, bytes.data(), std::ssize(bytes));
  }

  Buffer starts_;
  Buffer records_;
};

// By the multistage kernel.
class GpuTiledCslMultistage : public GpuTileTest {
 protected:
  void SetUp() override {
    GpuTileTest::SetUp();
    if (IsSkipped()) {
      return;
    }
    const TileMultistageDevice whole = tile_multistage_device(kGpu);
    if (whole.multiprocessors == 0) {
      GTEST_SKIP() << "the device has no compute capability 8.0";
    }
    // Other shares of shared memory have other numbers of warps and slots: those of compute
    // capability 8.0 and 8.6, and as little as is enough for one warp.
    const auto part = [&](int multiprocessors, int shared_kib) {
      return TileMultistageDevice{.multiprocessors = multiprocessors,
                                  .shared_bytes = std::min(whole.shared_bytes, shared_kib << 10)};
    };
    devices = {whole, part(108, 163), part(84, 99), part(3, 163), part(1, 99), part(5, 23)};
  }

  void multiply(const TileMatrix& matrix, const Tensor& x, const Tensor& y,
                const Epilogue& epilogue = {}) {
    tile_matmul_cuda(matrix,
                     {.x = x.raw(),
                      .x_stride = x.row_stride(),
                      .y = y.raw(),
                      .y_stride = y.row_stride(),
                      .bias = epilogue.bias.raw(),
                      .relu = epilogue.activation.kind == Activation::Kind::relu,
                      .tokens = x.size(0),
                      .dtype = x.dtype()},
                     {.multistage = true}, *exec);
  }

  ::testing::AssertionResult is_right(const TileMatrix& matrix, const Tensor& x,
                                      const Expected& expected, const Product& product) {
    return gives(
        x.size(0), matrix.rows, expected, product,
        [&](const Tensor& y, const Epilogue& epilogue) { multiply(matrix, x, y, epilogue); });
  }

  std::vector<TileMultistageDevice> devices;  // the first has all of the GPU
};

}  // namespace sparsellm::testing
