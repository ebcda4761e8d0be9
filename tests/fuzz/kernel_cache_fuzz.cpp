// The input is the file of a kernel cache for an empty source (kernels/base/kernel_cache.h).

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/kernel_cache.h"
#include "tests/fuzz/expect.h"
#include "tests/fuzz/fuzz_one.h"
#include "tests/fuzz/input_folder.h"

namespace sparsellm::fuzz {
namespace {

namespace fs = std::filesystem;

const std::vector<std::byte> kCompiled{std::byte{1}, std::byte{2}, std::byte{3}};

class Compiler final : public KernelCompiler {
 public:
  std::string version() override { return "none"; }
  std::vector<std::byte> compile(const KernelSource&) override { return kCompiled; }
};

// Whatever file is there, a cache gives the code that is in it, or what is compiled.
class Cached {
 public:
  Cached() {
    KernelCache(compiler_, {.directory = folder_.path(), .warn = {}}).get({});
    name_ = fs::directory_iterator(folder_.path())->path().filename();
  }

  void read(std::string_view input) {
    folder_.write(name_, input);
    std::string warning;
    KernelCache cache(compiler_, {.directory = folder_.path(),
                                  .warn = [&](const std::string& line) { warning = line; }});
    const std::span<const std::byte> code = cache.get({});
    const std::span<const std::byte> expected =
        warning.empty() ? std::as_bytes(std::span(input)).last(code.size()) : kCompiled;
    expect(std::ranges::equal(code, expected), "the code of the file, or what is compiled");
    require(warning.empty(), "{}", warning);
  }

 private:
  InputFolder folder_;
  Compiler compiler_;
  std::string name_;
};

}  // namespace

void fuzz_one(std::string_view input) {
  static Cached cached;
  cached.read(input);
}

}  // namespace sparsellm::fuzz
