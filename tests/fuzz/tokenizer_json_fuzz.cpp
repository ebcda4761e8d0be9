// The input is a text, a tokenizer_config.json (none if it is empty) and a tokenizer.json.

#include <string_view>

#include "tests/fuzz/fuzz_one.h"
#include "tests/fuzz/input_folder.h"
#include "tests/fuzz/input_parts.h"
#include "tests/fuzz/use_tokenizer.h"
#include "tokenizer/tokenizer.h"

namespace sparsellm::fuzz {

void fuzz_one(std::string_view input) {
  static const InputFolder folder;
  const auto parts = split_parts(input, 3);
  folder.write_unless_empty("tokenizer_config.json", parts[1]);
  folder.write("tokenizer.json", parts[2]);
  use_tokenizer(*load_tokenizer(folder.path()), parts[0]);
}

}  // namespace sparsellm::fuzz
