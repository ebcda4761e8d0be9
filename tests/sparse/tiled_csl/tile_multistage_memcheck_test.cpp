#include <cstddef>
#include <cstdint>

#include "tests/sparse/tiled_csl/tile_multistage_gpu_fixture.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

TEST_P(GpuTiledCslMultistage, ProductsOfAllPatterns) {
  size_t number = 0;
  for (const Shape& shape :
       {Shape{1, 1}, Shape{16, 16}, Shape{128, 64}, Shape{127, 65}, Shape{256, 768}}) {
    const GuardedTensor x = numbers(65, shape.columns);
    for (Pattern pattern : kPatterns) {
      for (double density : {0.0, 0.001, 0.1, 0.3, 0.5, 1.0}) {
        const OwnedTensor w = weight(shape, density, pattern);
        const DeviceTileMatrix loaded(tiled_csl::encode_records(w.view, cpu.threads));
        const Expected all = expected_of(x.view(), w.view);
        for (int64_t tokens : {1, 9, 65}) {
          ASSERT_TRUE(is_right(loaded.on(devices[++number % devices.size()]),
                               x.view().rows(0, tokens), first_rows(all, tokens, shape.rows), {}))
              << fmt::format("[{}, {}], density {}, {}, {} tokens", shape.rows, shape.columns,
                             density, name_of(pattern), tokens);
        }
      }
    }
  }
}

// Of rows of tiles that several warps and blocks share, and of full tiles beside empty ones.
TEST_P(GpuTiledCslMultistage, ProductsOfUnevenTiles) {
  for (const Shape& shape : {Shape{128, 9000}, Shape{900, 1024}}) {
    const OwnedTensor w = uneven_weight(shape);
    const DeviceTileMatrix loaded(tiled_csl::encode_records(w.view, cpu.threads));
    const GuardedTensor x = numbers(40, shape.columns);
    const Expected all = expected_of(x.view(), w.view);
    for (const TileMultistageDevice& device : devices) {
      for (int64_t tokens : {1, 16, 40}) {
        ASSERT_TRUE(is_right(loaded.on(device), x.view().rows(0, tokens),
                             first_rows(all, tokens, shape.rows), {.has_bias = true}))
            << fmt::format("[{}, {}], {} tokens, {} bytes of shared memory", shape.rows,
                           shape.columns, tokens, device.shared_bytes);
      }
    }
  }
}

}  // namespace
}  // namespace sparsellm
