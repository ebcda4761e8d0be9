// The input is the model.safetensors of a converted model.

#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/base/parallel.h"
#include "models/storage/model_file.h"
#include "models/weights/weight_store.h"
#include "sparse/count_nonzeros.h"
#include "sparse/registry.h"
#include "tests/fuzz/check_message.h"
#include "tests/fuzz/expect.h"
#include "tests/fuzz/fuzz_one.h"
#include "tests/fuzz/input_folder.h"

namespace sparsellm::fuzz {
namespace {

constexpr int64_t kMaxElements = 1 << 22;  // a few zeros may stand for a large matrix

// Every element of a weight can be read, whatever form it is stored in.
void read_weight(const WeightStore& store, const std::string& name, ThreadPool& threads) {
  try {
    const WeightStore::Stored stored = store.get(name);
    if (stored.columns == 0 || stored.rows <= kMaxElements / stored.columns) {
      const OwnedTensor dense = store.dense(name, threads);
      expect(dense.view.dtype() == stored.dtype && dense.view.size(0) == stored.rows &&
                 dense.view.size(1) == stored.columns,
             "the matrix that the store describes");
      expect(count_nonzeros(dense.view, threads) <= stored.rows * stored.columns, "its elements");
    }
  } catch (const Error& error) {
    check_message(error);
  }
}

}  // namespace

void fuzz_one(std::string_view input) {
  static const InputFolder folder;
  static ThreadPool threads(1);
  folder.write("model.safetensors", input);
  const Checkpoint checkpoint(folder.path());
  const ModelFile model(checkpoint);
  try {
    model.verify({});
  } catch (const Error& error) {  // few inputs have the right checksums
    check_message(error);
  }
  const WeightStore store(checkpoint);
  for (const std::string& name : checkpoint.names()) {
    read_weight(store, name, threads);
  }
  for (const std::string& name : model.weight_names()) {
    read_weight(store, name, threads);
    expect(model.find(name) != nullptr, "a header of every weight");
    const EncodedHeader& header = model.find(name)->header;
    const std::optional<EncodedWeight> weight = model.encoded(name);
    expect(weight.has_value() && weight->bytes() == model.find(name)->bytes,
           "the parts of every weight");
    for (const EncodedPart& part : weight->parts) {
      expect(model.is_part(part_prefix(name, header.format) + part.name), "a name of every part");
    }
    if (header.rows <= kMaxElements / header.columns) {
      const OwnedTensor dense = weight_format(header.format).decode(*weight, threads);
      expect(dense.view.dtype() == header.dtype && dense.view.size(0) == header.rows &&
                 dense.view.size(1) == header.columns,
             "the matrix that the header describes");
      // Of a dense weight they are not counted before the values are used.
      expect(header.format == weight_formats().front()->name() ||
                 count_nonzeros(dense.view, threads) == header.nonzeros,
             "its nonzeros");
    }
  }
}

}  // namespace sparsellm::fuzz
