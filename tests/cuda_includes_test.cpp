// A compiler that finds CUDA's headers by itself, in a folder of CPATH or of the system, hides a
// target that does not link the library whose headers it includes. So the build's own compile
// commands are read.

#include "tests/testing/cuda_includes.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

namespace fs = std::filesystem;

TEST(CudaIncludes, EveryTargetLinksWhatItIncludes) {
  // Where a distribution's package of the toolkit puts its headers, CMake names no folder. Links to
  // them in /usr/local/include do not count: few machines have them.
  const CudaIncludes includes = check_cuda_includes(SPARSELLM_COMPILE_COMMANDS, {"/usr/include"});
  for (const std::string& message : includes.missing) {
    ADD_FAILURE() << message;
  }
  EXPECT_GT(includes.sources, 50);
  if (SPARSELLM_HAS_CUDA) {
    EXPECT_GT(includes.reach_cuda, 0) << "the tests of kernels include their headers";
  } else {
    EXPECT_EQ(includes.reach_cuda, 0);
  }
}

// A made-up project and its compile commands.
class MadeUpProject : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) {
    fs::create_directories((root() / name).parent_path());
    std::ofstream(root() / name) << text;
  }
  fs::path root() const { return directory_.path(); }

  void add(const std::string& source, const std::string& flags) {
    commands_.push_back({{"directory", (root() / "build").string()},
                         {"command", "c++ -DNAME=\\\"a\\ b\\\" -I" + root().string() + " " + flags +
                                         " -o x.o -c " + (root() / source).string()},
                         {"file", (root() / source).string()}});
  }

  void SetUp() override {
    fs::create_directories(root() / "build");
    write("toolkit folder/cuda_runtime_api.h", "#include <nothing_of_ours>\n");
    write("toolkit folder/cublasLt.h", "");
    write("other/cuda_fp16.h", "");
    write("kernels/plain.h", "#pragma once\n#include <vector>\n#include \"kernels/cuda_ours.h\"\n");
    write("kernels/cuda_ours.h", "#include \"kernels/plain.h\"\n");  // a circle
    write("kernels/deep.cuh", "#pragma once\n  #  include <cublasLt.h>\n");
    write("kernels/deep.h", "#include \"kernels/plain.h\"\n#include \"deep.cuh\"\n");
    write("plain.cpp", "#include \"kernels/plain.h\"\n// #include <cuda.h>\n");
    write("deep.cpp", "#include <kernels/deep.h>\n");
    write("direct.cpp", "#if 0\n#include \"cuda_runtime_api.h\"\n#endif\n");
    write("kernel.cu", "#include <cuda_runtime_api.h>\n");
  }

  CudaIncludes check(const std::vector<fs::path>& found_always = {}) {
    const fs::path file = root() / "build" / "compile_commands.json";
    std::ofstream(file) << nlohmann::json(std::exchange(commands_, {})).dump();
    return check_cuda_includes(file, found_always);
  }

 private:
  TempDir directory_;
  std::vector<nlohmann::json> commands_;
};

TEST_F(MadeUpProject, SourcesWithoutTheToolkitFolderAreFound) {
  for (const char* source : {"plain.cpp", "deep.cpp", "direct.cpp", "kernel.cu"}) {
    add(source, "-isystem " + (root() / "other").string());
  }
  const CudaIncludes includes = check();
  EXPECT_EQ(includes.sources, 3);
  EXPECT_EQ(includes.reach_cuda, 2);
  ASSERT_EQ(includes.missing.size(), 2u);
  EXPECT_TRUE(includes.missing[0].starts_with((root() / "deep.cpp").string() +
                                              " reaches <cublasLt.h> (included by " +
                                              (root() / "kernels/deep.cuh").string() + ")"))
      << includes.missing[0];
  EXPECT_TRUE(includes.missing[1].starts_with((root() / "direct.cpp").string() +
                                              " reaches <cuda_runtime_api.h> "))
      << includes.missing[1];
}

TEST_F(MadeUpProject, AnyWayToNameTheFolderCounts) {
  const std::string folder = (root() / "toolkit folder").string();
  add("deep.cpp", "-isystem \"" + folder + "\"");
  add("deep.cpp", "'-I" + folder + "'");
  add("deep.cpp", "-I ../toolkit\\ folder");
  add("direct.cpp", "-isystem '../toolkit folder'");
  const CudaIncludes includes = check();
  EXPECT_EQ(includes.reach_cuda, 4);
  EXPECT_EQ(includes.missing, std::vector<std::string>{});

  add("deep.cpp", "");
  EXPECT_EQ(check({folder}).missing, std::vector<std::string>{});
  add("deep.cpp", "");
  EXPECT_EQ(check({root() / "other"}).missing.size(), 1u);
}

TEST_F(MadeUpProject, ArgumentsAreReadAsACommandIs) {
  const std::string folder = (root() / "toolkit folder").string();
  const auto check_arguments = [&](const std::vector<std::string>& flags) {
    std::vector<std::string> arguments{"c++", "-I", root().string()};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const fs::path file = root() / "arguments.json";
    std::ofstream(file) << nlohmann::json{
        {{"directory", root().string()},
         {"arguments", arguments},
         {"file", "deep.cpp"}}}.dump();
    return check_cuda_includes(file, {}).missing.size();
  };
  EXPECT_EQ(check_arguments({"-isystem", folder}), 0u);
  EXPECT_EQ(check_arguments({"-DX"}), 1u);
}

TEST(CudaIncludes, CompileCommandsHaveToBeThere) {
  const TempDir empty;
  EXPECT_TRUE(
      throws_error([&] { check_cuda_includes(empty.path() / "none.json", {}); }, "cannot read "));
}

TEST(CudaIncludes, HeadersOfCuda) {
  for (const char* name :
       {"cuda.h", "cuda_runtime.h", "cuda_runtime_api.h", "cuda_fp16.h", "cuda_bf16.h",
        "cublasLt.h", "cublas_v2.h", "cusparse.h", "nccl.h", "nvrtc.h", "library_types.h", "mma.h",
        "nvml.h", "cub/cub.cuh", "cuda/std/atomic", "cooperative_groups.h", "vector_types.h"}) {
    EXPECT_TRUE(is_cuda_header(name)) << name;
  }
  for (const char* name :
       {"vector", "kernels/base/cuda_context.h", "kernels/mma.cuh", "sparse/no_cuda.h",
        "nlohmann/json.hpp", "format.h", "engine/cuda_runner.h", "spdlog/spdlog.h"}) {
    EXPECT_FALSE(is_cuda_header(name)) << name;
  }
}

}  // namespace
}  // namespace sparsellm
