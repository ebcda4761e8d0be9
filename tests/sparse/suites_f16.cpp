// The suites of the programs for sanitizers; sparse_bf16_gpu_test has them in bf16.

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

INSTANTIATE_TEST_SUITE_P(Gpu, GpuGeneralSparse, ::testing::Values(DType::f16),
                         [](const auto& test) { return std::string(name_of(test.param)); });
INSTANTIATE_TEST_SUITE_P(Gpu, GpuGeneralSparseEncoder, ::testing::Values(DType::f16),
                         [](const auto& test) { return std::string(name_of(test.param)); });
INSTANTIATE_TEST_SUITE_P(Gpu, GpuTcaBme, ::testing::Values(DType::f16),
                         [](const auto& test) { return std::string(name_of(test.param)); });
INSTANTIATE_TEST_SUITE_P(Gpu, GpuRecordMultistage, ::testing::Values(DType::f16),
                         [](const auto& test) { return std::string(name_of(test.param)); });
INSTANTIATE_TEST_SUITE_P(Gpu, GpuRecordWgmma, ::testing::Values(DType::f16),
                         [](const auto& test) { return std::string(name_of(test.param)); });
INSTANTIATE_TEST_SUITE_P(Gpu, GpuUnevenRecords, ::testing::Values(DType::f16),
                         [](const auto& test) { return std::string(name_of(test.param)); });
INSTANTIATE_TEST_SUITE_P(Gpu, GpuTiledCslMultistage, ::testing::Values(DType::f16),
                         [](const auto& test) { return std::string(name_of(test.param)); });
INSTANTIATE_TEST_SUITE_P(Gpu, GpuTiledCsl, ::testing::Values(DType::f16),
                         [](const auto& test) { return std::string(name_of(test.param)); });
INSTANTIATE_TEST_SUITE_P(Gpu, GpuTileEncoder, ::testing::Values(DType::f16),
                         [](const auto& test) { return std::string(name_of(test.param)); });
// Of the programs with this file only sparse_racecheck_test has such tests.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GpuGeneralSparseEncoder);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GpuTileEncoder);

}  // namespace sparsellm::testing
