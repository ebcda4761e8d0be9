// The input is a model.safetensors.index.json and two shards, a.safetensors and b.safetensors.

#include <string>
#include <string_view>

#include "models/storage/safetensors.h"
#include "tests/fuzz/expect.h"
#include "tests/fuzz/fuzz_one.h"
#include "tests/fuzz/input_folder.h"
#include "tests/fuzz/input_parts.h"

namespace sparsellm::fuzz {

void fuzz_one(std::string_view input) {
  static const InputFolder folder;
  const auto parts = split_parts(input, 3);
  folder.write("model.safetensors.index.json", parts[0]);
  folder.write("a.safetensors", parts[1]);
  folder.write("b.safetensors", parts[2]);
  const Checkpoint checkpoint(folder.path());
  for (const std::string& name : checkpoint.names()) {
    const StoredTensor* tensor = checkpoint.find(name);
    expect(tensor != nullptr, "a tensor of every name");
    const std::string_view bytes(reinterpret_cast<const char*>(tensor->bytes.data()),
                                 tensor->bytes.size());
    expect(parts[1].find(bytes) != std::string_view::npos ||
               parts[2].find(bytes) != std::string_view::npos,
           "the bytes of a shard");
  }
}

}  // namespace sparsellm::fuzz
