#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/step_runner.h"
#include "engine/step_tables.h"
#include "kernels/base/error.h"
#include "kernels/paged_kv.h"
#include "models/build_decoder.h"
#include "models/storage/safetensors.h"
#include "models/weights/checkpoint_loader.h"
#include "tests/testing/gpu_context.h"
#include "tests/testing/paths.h"
#include "tests/testing/reference.h"

namespace sparsellm {
namespace {

std::unique_ptr<Sequence> sequence_of(const Request& request) {
  auto sequence = std::make_unique<Sequence>();
  sequence->submission =
      std::make_shared<const Submission>(Submission{.id = 0, .request = request, .on_token = {}});
  sequence->max_length = std::ssize(request.prompt) + request.max_tokens;
  sequence->looks_ahead = true;
  return sequence;
}

// Returns its number.
int launch(StepRunner& runner, const Scheduler::Plan& plan, const KvCache& kv) {
  PlannedStep planned;
  planned.set(plan, {}, SampledOn::device);
  const int number = runner.launch(planned.step(), kv);
  EXPECT_FALSE(runner.next_logits()) << "logits that nobody looks at";
  return number;
}

// A step that cannot be launched leaves those before and after it as they are, also when they are
// in flight together.
TEST(CudaRunner, AStepThatIsNotLaunched) {
  if (cuda_device_count() == 0) {
    GTEST_SKIP() << "there is no CUDA device";
  }
  const std::filesystem::path directory = testing::data("models/fable-llama-relu-8m");
  const Request request{.prompt = {1, 40, 50, 60, 70}, .max_tokens = 10};
  EngineOptions options;
  options.device = testing::kGpu;
  options.with_tokenizer = false;
  options.max_requests = 4;
  options.step_tokens = 64;
  options.context_size = 64;
  const std::vector<int32_t> expected =
      Engine::load(directory, options).generate({request}).front().tokens;
  ASSERT_GE(expected.size(), 2u);
  ASSERT_NE(expected[0], expected[1]);

  const ModelConfig config = read_model_config(directory);
  const Checkpoint checkpoint(directory);
  CheckpointLoader weights(checkpoint, options.device, options.dtype, {});
  const std::unique_ptr<Decoder> decoder = build_decoder(config, weights);
  const RunnerOptions runner_limits = runner_options(options, config);
  const std::unique_ptr<StepRunner> runner = make_runner(*decoder, runner_limits);
  const KvCache kv(options.device, decoder->kv_shape(), 16);
  Scheduler scheduler(runner_limits.limits, kv.pages());
  Scheduler::Sequences sequences;
  sequences.push_back(sequence_of(request));
  scheduler.add(std::move(sequences));

  const int first = launch(*runner, scheduler.plan(), kv);
  const std::unique_ptr<Sequence> too_long = sequence_of(request);
  too_long->tokens = request.prompt;
  too_long->pages.resize(static_cast<size_t>(runner_limits.pages_per_request) + 1);
  Scheduler::Plan broken;
  broken.chunks.push_back({.sequence = too_long.get(),
                           .first = 0,
                           .count = std::ssize(request.prompt),
                           .token_from = {},
                           .choice = 0});
  broken.choices = 1;
  EXPECT_THROW(launch(*runner, broken, kv), Error);
  runner->give_up();
  const Scheduler::Plan plan = scheduler.plan();
  ASSERT_EQ(plan.choices, 1);
  const int second = launch(*runner, plan, kv);
  EXPECT_NE(second, first);
  EXPECT_EQ(runner->finish(first).front(), expected[0]);
  EXPECT_EQ(runner->finish(second).front(), expected[1]);
}

}  // namespace
}  // namespace sparsellm
