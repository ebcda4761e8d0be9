// What suites that ship would take of GPUs that are not there, by formulas of its own.

#include "tools/bench/suite/suite_plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "models/config.h"
#include "tests/testing/paths.h"
#include "tools/bench/suite/suite_file.h"

namespace sparsellm {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

std::vector<Suite> shipped(const std::vector<std::string>& names) {
  std::vector<Suite> suites;
  for (const std::string& name : names) {
    const auto file = testing::source_dir() / "configs" / "benchmarks" / (name + ".json");
    suites.push_back(read_suite(file, suite_configs(file)));
  }
  return suites;
}

SuiteMachine gpus_of(int64_t memory, int count) {
  SuiteMachine machine;
  machine.model.on_planned_gpus = true;
  machine.gpus = count;
  machine.gpu_memory = memory;
  return machine;
}

// An element of a matrix with 60 or 80 % zeros takes, in the layouts that docs/formats.md
// describes.
double bytes_of_element(const SuiteCell& cell) {
  if (cell.format == "dense") {
    return 2.0;
  }
  const double values = 2.0 * (1.0 - cell.zeros.sparsity);
  if (cell.format == "tiled_csl") {
    return 1.55 * values;  // and a byte of a position for each value, and some padding
  }
  constexpr double kBits = 1.0 / 8.0;
  const bool pairs = cell.zeros.sparsity > 0.79 && cell.records.empty();
  return values * (pairs ? 1.65 : 1.0) + kBits + 0.06;
}

// Of OPT: matrices of 12 h^2 elements a block, an embedding that is also the head, positions. Each
// GPU has all of these two.
double bytes_of(const SuiteCell& cell) {
  const EngineCell& engine = *cell.engine();
  const ModelConfig config = read_model_config_file(engine.config);
  const auto hidden = static_cast<double>(config.hidden_size);
  const auto layers = static_cast<double>(config.num_layers);
  const double linear = layers * 12.0 * hidden * hidden * bytes_of_element(cell);
  const double embeddings = 2.0 * hidden * (50272.0 + 2050.0);
  const auto tokens = static_cast<double>(engine.batch * (engine.prompt + engine.output));
  const double keys_and_values = layers * 2.0 * hidden * 2.0 * tokens;
  return (linear + keys_and_values) / engine.gpus + embeddings;
}

// Plans, whose layers differ, and what "auto" takes are not so simple.
bool has_formula(const SuiteCell& cell) {
  return cell.zeros.plan.empty() && cell.format != "auto" && cell.format != "general_sparse";
}

TEST(ShippedSuites, TakeWhatFormulasSay) {
  const std::vector<Suite> suites =
      shipped({"flash_llm_fig15", "flash_llm_fig16", "spinfer_fig15"});
  for (const int64_t memory : {24 * kGiB, 48 * kGiB, 80 * kGiB, 141 * kGiB}) {
    int64_t compared = 0;
    for (const PlannedCell& planned : plan_suites(suites, {}, gpus_of(memory, 8))) {
      if (!has_formula(*planned.cell)) {
        continue;
      }
      SCOPED_TRACE(planned.suite->name + "/" + planned.cell->name);
      const double expected = bytes_of(*planned.cell);
      const auto without_step = static_cast<double>(planned.fit.needed - planned.fit.step);
      EXPECT_NEAR(without_step, expected, 0.02 * expected);
      const double there = 0.98 * static_cast<double>(memory);
      EXPECT_NEAR(static_cast<double>(planned.fit.there), there, 1e6);
      if (std::abs(expected - there) > 0.06 * there) {
        EXPECT_EQ(planned.state, expected < there ? SuiteState::runs : SuiteState::does_not_fit);
        ++compared;
      }
    }
    EXPECT_GT(compared, 50) << memory;
  }
}

TEST(ShippedSuites, NeedTheGpusThatTheySay) {
  const std::vector<Suite> suites = shipped({"flash_llm_fig13", "flash_llm_fig15"});
  for (const int count : {1, 2, 4, 8}) {
    for (const PlannedCell& planned : plan_suites(suites, {}, gpus_of(141 * kGiB, count))) {
      const int needed = planned.cell->engine()->gpus;
      EXPECT_EQ(planned.state == SuiteState::needs_gpus, needed > count) << planned.cell->name;
      if (needed > count) {
        EXPECT_EQ(planned.text(), fmt::format("needs {} GPUs", needed));
      }
    }
  }
}

// The engine that measures several numbers of requests has the step of the largest.
TEST(ShippedSuites, CellsOfALoadTakeTheStepOfItsLargest) {
  const std::vector<Suite> suites = shipped({"flash_llm_fig15"});
  const auto of = [&](const std::vector<std::string>& only) {
    const auto plan = plan_suites(suites, {.only = only}, gpus_of(141 * kGiB, 2));
    return plan.front().fit;
  };
  const std::string load = "flash_llm_fig15/opt-66b/tiled_csl/s0.8/2gpu/";
  const SuiteFit alone = of({load + "b8/o512"});
  const SuiteFit largest = of({load + "b64/o512"});
  const SuiteFit together = of({load + "b8/o512", load + "b64/o512"});
  EXPECT_LT(alone.step, largest.step);
  EXPECT_EQ(together.step, largest.step);
  EXPECT_EQ(together.needed, alone.needed + largest.step - alone.step);
  // "auto" has an engine for each.
  const std::string automatic = "flash_llm_fig15/opt-66b/auto/s0.8/2gpu/";
  EXPECT_EQ(of({automatic + "b8/o512"}).step,
            of({automatic + "b8/o512", automatic + "b64/o512"}).step);
}

}  // namespace
}  // namespace sparsellm
