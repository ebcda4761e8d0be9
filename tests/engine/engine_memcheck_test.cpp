#include <cstdint>
#include <span>

#include "engine/engine.h"
#include "tests/engine/engine_gpu_fixture.h"
#include "tests/testing/reference.h"

namespace sparsellm {
namespace {

using testing::expect_near_host;
using testing::GpuEngine;
using testing::on_gpu;
using testing::requests_of;

INSTANTIATE_TEST_SUITE_P(Checkpoints, GpuEngine, ::testing::ValuesIn(testing::all_checkpoints()),
                         testing::checkpoint_name);

// A request whose logits the host looks at gets the tokens that the device samples, with penalties,
// biases and log-probabilities.
TEST_P(GpuEngine, HostAndDeviceSampleTheSame) {
  EngineOptions options = on_gpu();
  options.deterministic = true;
  options.context_size = 140;
  Engine engine = Engine::load(GetParam(), options);
  for (Request request : requests_of(engine, 10)) {
    const Completion on_device = engine.generate({request}).front();
    request.on_logits = [](int64_t, std::span<const float>) {};
    expect_near_host(on_device, engine.generate({request}).front());
  }
}

}  // namespace
}  // namespace sparsellm
