// Runs a target on the files that are named, without a fuzzer: replay_TARGET FILE ...
// Says which of them are refused and why; the exit code is 1 if there is one. tools/fuzz.sh checks
// its seeds with it: a seed that is refused leads the fuzzer nowhere.

#include <cstdio>
#include <filesystem>
#include <limits>

#include "kernels/base/mapped_file.h"
#include "tests/fuzz/check_message.h"
#include "tests/fuzz/fuzz_one.h"

int main(int argc, char** argv) {
  int status = 0;
  for (int i = 1; i < argc; ++i) {
    try {
      sparsellm::fuzz::fuzz_one(
          sparsellm::read_text_file(argv[i], std::numeric_limits<int64_t>::max()));
    } catch (const sparsellm::Error& error) {
      std::fprintf(stderr, "%s: refused: %s\n", argv[i], error.what());
      sparsellm::fuzz::check_message(error);
      status = 1;
    }
  }
  return status;
}
