#include "models/weight_store.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/models/expect_error.h"
#include "tests/models/write_safetensors.h"
#include "tests/testing/temp_dir.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

// Names are whatever a file holds, and messages go to terminals.
TEST(WeightStore, QuotesNamesOfTheFile) {
  const std::vector<TestTensor> tensors = {
      {"one dimension\n\x7f", "F16", {2}, "1234"},
      {"a type\n\x1b[2J", "I16", {1, 2}, "5678"},
  };
  const TempDir folder;
  folder.write("model.safetensors", write_safetensors(tensors));
  const Checkpoint checkpoint(folder.path());
  const WeightStore store(checkpoint);
  expect_message(error_of([&] { store.get(tensors[0].name); }),
                 R"(the tensor "one dimension\n\u007f" has 1 dimensions)");
  expect_message(error_of([&] { store.get(tensors[1].name); }),
                 folder.path().string() + R"(: the tensor "a type\n\u001b[2J" has the dtype I16)");
  expect_message(error_of([&] { store.get("missing\n"); }), R"(the tensor "missing\n" is missing)");
  expect_message(error_of([&] { store.require_all_used({tensors[0].name}, {}); }),
                 R"(the tensor "a type\n\u001b[2J", which)");
  EXPECT_EQ(error_of([&] { store.require_all_used({}, {"\x7f", "[2J"}); }), "");
}

}  // namespace
}  // namespace sparsellm
