// The input is the model.safetensors of a checkpoint with quantised weights of compressed-tensors.

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/base/parallel.h"
#include "models/storage/quantized_weight.h"
#include "models/weights/weight_store.h"
#include "sparse/registry.h"
#include "sparse/tca_bme/quantized/quantized_parts.h"
#include "tests/fuzz/expect.h"
#include "tests/fuzz/fuzz_one.h"
#include "tests/fuzz/input_folder.h"

namespace sparsellm::fuzz {
namespace {

constexpr std::string_view kEnd = ".weight_scale";

// What was read is what becomes of it.
void use_weight(const WeightStore& store, const std::string& name, ThreadPool& threads) {
  const WeightStore::Stored stored = store.get(name);
  expect(stored.form == WeightStore::Form::quantized, "a quantised weight for every scale");
  const QuantizedMatrix q = store.quantized(name, threads);
  expect(q.rows == stored.rows && q.columns == stored.columns, "a matrix of the stored shape");
  require_valid(q);
  const double density = store.density(name);
  expect(density >= 0.0 && density <= 1.0, "a density of at most 1");
  expect(store.size(stored, {}).bytes > 0, "a size");
  const EncodedWeight encoded = store.encode(name, weight_format("tca_bme"), DType::bf16, threads);
  const QuantizedMatrix again = tca_bme::quantized_of(encoded, threads);
  expect(again.scales == q.scales, "the same scales");
  const bool same =
      std::equal(q.codes.begin(), q.codes.end(), again.codes.begin(), again.codes.end(),
                 [&](int8_t a, int8_t b) { return value_of(q.type, a) == value_of(q.type, b); });
  expect(same, "the same codes, but for negative zeros");
  const OwnedTensor dense = store.dense(name, threads);
  expect(dense.view.size(0) == q.rows && dense.view.size(1) == q.columns, "a dense matrix of it");
}

}  // namespace

void fuzz_one(std::string_view input) {
  static const InputFolder folder;
  folder.write("model.safetensors", input);
  const Checkpoint checkpoint(folder.path());
  const WeightStore store(checkpoint);
  ThreadPool threads(1);
  for (const std::string& name : checkpoint.names()) {
    if (name.ends_with(kEnd)) {
      use_weight(store, name.substr(0, name.size() - kEnd.size()) + ".weight", threads);
    }
  }
}

}  // namespace sparsellm::fuzz
