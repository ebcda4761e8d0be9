// The suites of sparse_bf16_gpu_test; the programs for sanitizers have them in f16.

#include <string>

#include "tests/sparse/general_sparse/encode_gpu_fixture.h"
#include "tests/sparse/general_sparse/slices_gpu_fixture.h"
#include "tests/sparse/tca_bme/record_multistage_gpu_fixture.h"
#include "tests/sparse/tca_bme/record_uneven_gpu_fixture.h"
#include "tests/sparse/tca_bme/record_wgmma_gpu_fixture.h"
#include "tests/sparse/tca_bme/tca_bme_gpu_fixture.h"
#include "tests/sparse/tiled_csl/tile_encode_gpu_fixture.h"
#include "tests/sparse/tiled_csl/tile_gpu_fixture.h"
#include "tests/sparse/tiled_csl/tile_multistage_gpu_fixture.h"

namespace sparsellm::testing {

INSTANTIATE_TEST_SUITE_P(Gpu, GpuGeneralSparse, ::testing::Values(DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });
INSTANTIATE_TEST_SUITE_P(Gpu, GpuGeneralSparseEncoder, ::testing::Values(DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });
INSTANTIATE_TEST_SUITE_P(Gpu, GpuTcaBme, ::testing::Values(DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });
INSTANTIATE_TEST_SUITE_P(Gpu, GpuRecordMultistage, ::testing::Values(DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });
INSTANTIATE_TEST_SUITE_P(Gpu, GpuRecordWgmma, ::testing::Values(DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });
INSTANTIATE_TEST_SUITE_P(Gpu, GpuUnevenRecords, ::testing::Values(DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });
INSTANTIATE_TEST_SUITE_P(Gpu, GpuTiledCslMultistage, ::testing::Values(DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });
INSTANTIATE_TEST_SUITE_P(Gpu, GpuTiledCsl, ::testing::Values(DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });
INSTANTIATE_TEST_SUITE_P(Gpu, GpuTileEncoder, ::testing::Values(DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

}  // namespace sparsellm::testing
