// Runs a target on files, without a fuzzer: replay_TARGET FILE ...
// Says which of them are refused and why; the exit code is 1 if there is one. tools/fuzz.sh checks
// its seeds with it: a seed that is refused leads the fuzzer nowhere. Of a folder all files are
// run, which may be refused: those of a corpus show what there is to be refused, too.

#include <cstdio>
#include <filesystem>
#include <limits>

#include "kernels/base/mapped_file.h"
#include "tests/fuzz/check_message.h"
#include "tests/fuzz/fuzz_one.h"

namespace {

namespace fs = std::filesystem;

// Whatever throws something else than an Error ends the program.
bool is_taken(const fs::path& file, const char* how_refused) {
  const std::string input = sparsellm::read_text_file(file, std::numeric_limits<int64_t>::max());
  try {
    sparsellm::fuzz::fuzz_one(input);
    return true;
  } catch (const sparsellm::Error& error) {
    std::fprintf(stderr, "%s: %s: %s\n", file.c_str(), how_refused, error.what());
    sparsellm::fuzz::check_message(error);
    return false;
  }
}

}  // namespace

int main(int argc, char** argv) {
  int status = 0;
  for (int i = 1; i < argc; ++i) {
    if (!fs::is_directory(argv[i])) {
      status = is_taken(argv[i], "refused") ? status : 1;
      continue;
    }
    int files = 0;
    int taken = 0;
    for (const auto& entry : fs::directory_iterator(argv[i])) {
      ++files;
      taken += is_taken(entry.path(), "refused, as it may be") ? 1 : 0;
    }
    std::printf("%s: %d files, of which %d are taken\n", argv[i], files, taken);
    status = files > 0 ? status : 1;
  }
  return status;
}
