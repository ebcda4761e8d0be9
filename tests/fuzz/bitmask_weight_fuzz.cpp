// The input is the model.safetensors of a checkpoint with weights of compressed-tensors.

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "models/storage/bitmask_weight.h"
#include "tests/fuzz/expect.h"
#include "tests/fuzz/fuzz_one.h"
#include "tests/fuzz/input_folder.h"

namespace sparsellm::fuzz {

void fuzz_one(std::string_view input) {
  static const InputFolder folder;
  folder.write("model.safetensors", input);
  const Checkpoint checkpoint(folder.path());
  for (const std::string& name : checkpoint.names()) {
    constexpr std::string_view kBitmask = ".bitmask";
    if (!name.ends_with(kBitmask)) {
      continue;
    }
    const std::string base = name.substr(0, name.size() - kBitmask.size());
    const std::optional<BitmaskWeight> weight = BitmaskWeight::find(checkpoint, base);
    expect(weight.has_value(), "a weight of every bitmask");
    const OwnedTensor dense = weight->dense();
    expect(dense.view.size(0) == weight->rows() && dense.view.size(1) == weight->columns(),
           "a matrix of the stored shape");
    const std::span<const std::byte> bytes(static_cast<const std::byte*>(dense.view.raw()),
                                           static_cast<size_t>(dense.view.bytes()));
    const auto zeros = std::count(bytes.begin(), bytes.end(), std::byte{0});
    expect(std::ssize(bytes) - zeros <= weight->stored_values() * size_of(weight->dtype()),
           "zeros where no value is stored");
  }
}

}  // namespace sparsellm::fuzz
