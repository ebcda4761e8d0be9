// The input is a text, a tokenizer_config.json and an added_tokens.json (none if they are empty), a
// merges.txt and a vocab.json.

#include <string_view>

#include "tests/fuzz/fuzz_one.h"
#include "tests/fuzz/input_folder.h"
#include "tests/fuzz/input_parts.h"
#include "tests/fuzz/use_tokenizer.h"
#include "tokenizer/tokenizer.h"

namespace sparsellm::fuzz {

void fuzz_one(std::string_view input) {
  static const InputFolder folder;
  const auto parts = split_parts(input, 5);
  folder.write_unless_empty("tokenizer_config.json", parts[1]);
  folder.write_unless_empty("added_tokens.json", parts[2]);
  folder.write("merges.txt", parts[3]);
  folder.write("vocab.json", parts[4]);
  use_tokenizer(*load_tokenizer(folder.path()), parts[0]);
}

}  // namespace sparsellm::fuzz
