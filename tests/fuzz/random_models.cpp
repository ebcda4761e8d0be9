// Runs a target whose inputs are edits on random ones, without a fuzzer, which makes many more of
// them in the same time: random_TARGET COUNT [SEED]
// Prints how many were refused, or the input that broke something. One that ends the program is
// printed with --verbose after SEED: all are, before they run.

#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/fuzz/check_message.h"
#include "tests/fuzz/fuzz_one.h"
#include "tests/fuzz/random_edits.h"

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s COUNT [SEED [--verbose]]\n", argv[0]);
    return 2;
  }
  const long count = std::strtol(argv[1], nullptr, 10);
  const unsigned long seed = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 1;
  long refused = 0;
  sparsellm::fuzz::RandomEdits random(static_cast<uint32_t>(seed));
  for (long i = 0; i < count; ++i) {
    const std::string script = random.script(sparsellm::fuzz::kFirstLineWords);
    if (argc > 3) {
      std::fprintf(stderr, "input %ld:\n%s\n", i, script.c_str());
    }
    try {
      sparsellm::fuzz::fuzz_one(script);
    } catch (const sparsellm::Error& error) {
      ++refused;
      sparsellm::fuzz::check_message(error);
    } catch (...) {
      std::fprintf(stderr, "the input %ld of seed %lu broke it:\n%s\n", i, seed, script.c_str());
      throw;
    }
  }
  std::printf("%ld inputs, of which %ld are refused\n", count, refused);
  return 0;
}
