// The input is a plan of sparsellm-convert --plan.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/error.h"
#include "sparse/prune/plan.h"
#include "sparse/records_choice.h"
#include "sparse/registry.h"
#include "tests/fuzz/check_message.h"
#include "tests/fuzz/expect.h"
#include "tests/fuzz/fuzz_one.h"
#include "tests/fuzz/input_folder.h"

namespace sparsellm::fuzz {
namespace {

void check_layer(const LayerPlan& plan) {
  const auto formats = weight_formats();
  expect(plan.format == kAutoFormat || plan.format == kSmallestFormat ||
             std::any_of(formats.begin(), formats.end(),
                         [&](const WeightFormat* format) { return format->name() == plan.format; }),
         "a format that there is");
  expect(plan.prune.sparsity >= 0.0 && plan.prune.sparsity <= 1.0, "a sparsity in [0, 1]");
  const std::string records = plan.records();
  expect(records.empty() || records == "speed" || records == "size" || has_narrow_values(records),
         "records that there are");
  expect(parse_prune_method(to_string(plan.prune.method)) == plan.prune.method,
         "a method that has a name");
}

// Of models with as many layers.
void check_plan(const SparsityPlan& plan, int64_t layers) {
  std::vector<std::string> modules;
  std::vector<int64_t> blocks;
  for (int64_t layer = 0; layer < layers; ++layer) {
    for (const char* name : {"self_attn.q_proj", "mlp.up_proj", "mlp.down_proj", "fc1"}) {
      modules.push_back("model.layers." + std::to_string(layer) + "." + name);
      blocks.push_back(layer);
    }
  }
  for (size_t i = 0; i < modules.size(); ++i) {
    check_layer(plan.for_tensor(modules[i], blocks[i], layers));
  }
  plan.require_rules_used(modules, blocks);
}

}  // namespace

void fuzz_one(std::string_view input) {
  static const InputFolder folder;
  folder.write("plan.json", input);
  const SparsityPlan plan = SparsityPlan::read(folder.path() / "plan.json");
  std::optional<Error> refused;
  bool is_for_some = false;
  for (const int64_t layers : {1, 2, 5, 12}) {
    try {
      check_plan(plan, layers);
      is_for_some = true;
    } catch (const Error& error) {  // of a model that the plan is not for
      check_message(error);
      refused = error;
    }
  }
  require(is_for_some, "{}", refused ? refused->what() : "");
}

}  // namespace sparsellm::fuzz
