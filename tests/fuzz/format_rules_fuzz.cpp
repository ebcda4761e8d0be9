// The input is a file of rules of sparsellm-convert --format-rules.

#include <cstdint>
#include <string_view>

#include "kernels/base/error.h"
#include "sparse/choice/format_rules.h"
#include "sparse/registry.h"
#include "tests/fuzz/expect.h"
#include "tests/fuzz/fuzz_one.h"
#include "tests/fuzz/input_folder.h"

namespace sparsellm::fuzz {

void fuzz_one(std::string_view input) {
  static const InputFolder folder;
  folder.write("rules.json", input);
  const FormatRules rules = FormatRules::read(folder.path() / "rules.json");
  expect(!rules.gpu().empty(), "the name of a GPU");
  for (const int64_t rows : {int64_t{0}, int64_t{1}, int64_t{4096}, int64_t{1} << 30}) {
    for (const double density : {0.0, 0.3, 0.5, 1.0}) {
      for (const int64_t tokens : {1, 8, 4096}) {
        const WeightSize weight{.rows = rows, .columns = 4096, .density = density};
        const WeightFormat& format = rules.choose(weight, tokens);
        expect(&format == &weight_format(format.name()), "a format that there is");
      }
    }
  }
}

}  // namespace sparsellm::fuzz
