// Tensors of a checkpoint on their way to the first CUDA device.

#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/storage/safetensors.h"
#include "models/weights/checkpoint_loader.h"
#include "tests/testing/gpu_context.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

class GpuCheckpointLoader : public GpuTest {};

std::string one_tensor(std::span<const float> values) {
  const std::string header =
      fmt::format(R"({{"w":{{"dtype":"F32","shape":[{}],"data_offsets":[0,{}]}}}})", values.size(),
                  values.size_bytes());
  const uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof(length));
  file += header;
  file.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  return file;
}

TEST_F(GpuCheckpointLoader, ConvertsToTheRequestedDType) {
  const TempDir folder;
  const float values[] = {1.0f, 65519.0f, -1.0f / 3, 1e-7f};
  folder.write("model.safetensors", one_tensor(values));
  const Checkpoint checkpoint(folder.path());
  for (DType dtype : {DType::f16, DType::bf16}) {
    int64_t done = 0;
    CheckpointLoader loader(checkpoint, kGpu, dtype, [&](int64_t now, int64_t total) {
      EXPECT_EQ(total, 16);
      done = now;
    });
    const OwnedTensor w = loader.vector("model.w", 4);
    EXPECT_EQ(loader.loaded_bytes(), 8);
    loader.finish();
    EXPECT_EQ(done, 16);
    GuardedTensor expected(dtype, {4});
    set_values(expected.view(), std::vector<double>(std::begin(values), std::end(values)));
    EXPECT_TRUE(same_bits(w.view, expected.view()));
  }
}

TEST_F(GpuCheckpointLoader, NamesTheTensorThatIsTooLarge) {
  const TempDir folder;
  const float values[] = {1.0f, 65520.0f};
  folder.write("model.safetensors", one_tensor(values));
  const Checkpoint checkpoint(folder.path());
  CheckpointLoader to_half(checkpoint, kGpu, std::nullopt, {});
  const OwnedTensor half = to_half.vector("w", 2);
  EXPECT_TRUE(throws_error([&] { to_half.finish(); },
                           R"(the tensor "w": the value 65520 is too large for f16)"));
  CheckpointLoader to_bfloat16(checkpoint, kGpu, DType::bf16, {});
  const OwnedTensor bfloat16 = to_bfloat16.vector("w", 2);
  to_bfloat16.finish();
}

}  // namespace
}  // namespace sparsellm
