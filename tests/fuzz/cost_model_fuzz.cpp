// The input is a cost model of sparsellm-bench cost-model --cost-model.

#include <cstdint>
#include <string_view>

#include "kernels/base/error.h"
#include "sparse/general_sparse/search/cost_model.h"
#include "tests/fuzz/expect.h"
#include "tests/fuzz/fuzz_one.h"
#include "tests/fuzz/input_folder.h"

namespace sparsellm::fuzz {

using general_sparse::CostModel;

void fuzz_one(std::string_view input) {
  static const InputFolder folder;
  folder.write("model.json", input);
  const CostModel model = CostModel::read(folder.path() / "model.json");
  expect(!model.gpu().empty() && model.gpu().size() <= 100, "the name of a GPU");
  constexpr int kDepth = 4;
  const JsonDocument written = parse_json(model.to_json(), "model", kDepth);
  const CostModel again = CostModel::from_json(JsonValue(written, "model"));
  expect(again.gpu() == model.gpu(), "the same GPU in what is written");
  for (size_t of_class = 0; of_class < general_sparse::kAccessClasses; ++of_class) {
    for (size_t feature = 0; feature < general_sparse::kPlanFeatures; ++feature) {
      general_sparse::PlanFeatures one{};
      one[feature] = 1.0;
      const double seconds = model.seconds(of_class, one);
      expect(seconds >= 0.0, "costs that are not negative");
      expect(again.seconds(of_class, one) == seconds, "the same costs in what is written");
    }
  }
}

}  // namespace sparsellm::fuzz
