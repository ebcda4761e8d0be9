#include "tests/sparse/tca_bme/record_wgmma_gpu_fixture.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <tuple>

#include "tests/testing/stream_of.h"

namespace sparsellm::testing {

void GpuRecordWgmma::SetUp() {
  GpuWarpgroupTest::SetUp();
  if (IsSkipped()) {
    return;
  }
  const RecordMatrix any{.rows = 1024, .columns = 1024, .clusters = clusters};
  int64_t bytes = 0;
  for (int tile : kTiles) {
    bytes =
        std::max(bytes, record_wgmma_workspace_bytes(any, {.tile = tile, .stream_k = true}, tile));
  }
  const int64_t words = bytes / int64_t{sizeof(float)};
  partials = allocate_tensor(kGpu, DType::f32, {words}, "a test");
}

DeviceMatrix GpuRecordWgmma::load(const Tensor& w) {
  return DeviceMatrix(tca_bme::encode_records(w, LayoutFor::speed, cpu.threads), clusters);
}

std::vector<RecordWgmmaConfig> GpuRecordWgmma::configs_of(const RecordMatrix& matrix) {
  std::vector<RecordWgmmaConfig> all;
  for (int64_t tokens : kTokens) {
    for (const RecordWgmmaConfig& config : record_wgmma_candidates(matrix, tokens)) {
      if (std::find(all.begin(), all.end(), config) == all.end()) {
        all.push_back(config);
      }
    }
  }
  std::vector<RecordWgmmaConfig> by_turns;
  for (size_t rank = 0; by_turns.size() < all.size(); ++rank) {
    for (int tile : kTiles) {
      size_t of_tile = 0;
      for (const RecordWgmmaConfig& config : all) {
        if (config.tile == tile && of_tile++ == rank) {
          by_turns.push_back(config);
        }
      }
    }
  }
  return by_turns;
}

std::vector<RecordWgmmaConfig> GpuRecordWgmma::some_configs_of(const RecordMatrix& matrix) {
  std::vector<RecordWgmmaConfig> configs = configs_of(matrix);
  std::set<std::tuple<int, bool, bool, bool>> kinds;
  std::erase_if(configs, [&](const RecordWgmmaConfig& config) {
    return !kinds.insert({config.tile, config.stream_k, config.split > 1, config.row_blocks > 1})
                .second;
  });
  return configs;
}

RecordMatrix GpuRecordWgmma::on_a_small_device(RecordMatrix matrix) {
  matrix.clusters = {6, 3, 2, 1, 1};
  return matrix;
}

void GpuRecordWgmma::multiply(const RecordMatrix& matrix, const Tensor& x, const Tensor& y,
                              const How& how) {
  const Tensor scratch = partials->view;
  if (!how.pdl) {
    EXPECT_EQ(cudaMemsetAsync(scratch.raw(), 0xff, static_cast<size_t>(scratch.bytes()),
                              stream_of(gpu->cuda)),
              cudaSuccess);
  }
  record_wgmma_cuda(matrix,
                    {.x = x.raw(),
                     .x_stride = x.row_stride(),
                     .y = y.raw(),
                     .y_stride = y.row_stride(),
                     .bias = how.epilogue.bias.raw(),
                     .relu = how.epilogue.activation.kind == Activation::Kind::relu,
                     .tokens = x.size(0),
                     .dtype = x.dtype(),
                     .workspace = scratch.raw()},
                    how.config, with_pdl(how.pdl));
}

void GpuRecordWgmma::multiply_small(const Shape& shape, double density,
                                    const std::function<bool(const RecordWgmmaConfig&)>& takes) {
  const GuardedTensor x = numbers(70, shape.columns);
  const OwnedTensor w = weight(shape, density);
  const DeviceMatrix loaded = load(w.view);
  const Expected all = expected_of(x.view(), w.view);
  bool few = false;
  for (const RecordWgmmaConfig& config : some_configs_of(loaded.matrix)) {
    if (!takes(config)) {
      continue;
    }
    few = !few;
    const int64_t tokens = few ? 31 : 70;
    SCOPED_TRACE(
        fmt::format("density {}, {}, {} tokens", density, record_wgmma_name(config), tokens));
    const GuardedTensor y(GetParam(), {tokens, shape.rows}, Layout::contiguous, kGpu);
    multiply(on_a_small_device(loaded.matrix), x.view().rows(0, tokens), y.view(),
             {.config = config, .epilogue = {}, .pdl = few});
    gpu->cuda.synchronize();
    EXPECT_TRUE(all_close(y.view(), first_rows(all, tokens, shape.rows), kTolerance));
    EXPECT_TRUE(y.guards_intact());
  }
}

GpuRecordWgmma::PaddedTensor::PaddedTensor(DType dtype, int64_t tokens, int64_t columns)
    : memory(dtype, {tokens, tca_bme::ceil_div(columns + 16, 8) * 8}, Layout::contiguous, kGpu),
      view(memory.view().columns(8, columns)) {}

GpuRecordWgmma::PaddedTensor GpuRecordWgmma::padded_numbers(int64_t tokens, int64_t columns) {
  PaddedTensor x(GetParam(), tokens, columns);
  set_values(x.view, values(tokens * columns));
  return x;
}

}  // namespace sparsellm::testing
