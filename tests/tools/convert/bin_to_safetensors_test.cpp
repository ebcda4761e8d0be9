// tools/bin_to_safetensors.py where something is missing: one line that says what to do.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"
#include "tests/tools/run_program.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using testing::Outcome;
using testing::TempDir;

class BinToSafetensors : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* path : {"/usr/bin/python3", "/usr/local/bin/python3"}) {
      if (fs::exists(path)) {
        python_ = path;
      }
    }
    if (python_.empty()) {
      GTEST_SKIP() << "there is no python3";
    }
  }

  fs::path in(const std::string& name) const { return directory_.path() / name; }

  void write(const std::string& name, const std::string& text) {
    fs::create_directories(in(name).parent_path());
    std::ofstream(in(name)) << text;
  }

  // Without the packages that are installed.
  void expect_error(std::vector<std::string> args, const std::string& expected) {
    args.insert(args.begin(),
                {"-I", "-S", (testing::source_dir() / "tools" / "bin_to_safetensors.py").string()});
    const Outcome outcome = testing::run_program(python_.c_str(), args);
    EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_TRUE(outcome.err.starts_with("error: ")) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_NE(outcome.err.find(expected), std::string::npos) << outcome.err;
  }

 private:
  TempDir directory_;
  std::string python_;
};

TEST_F(BinToSafetensors, WithoutTorch) {
  write("model/pytorch_model.bin", "something");
  expect_error({in("model").string()}, "cannot import torch; this script needs torch and");
  expect_error({in("model").string(), "--output", in("out").string()}, "pip install torch");
  EXPECT_FALSE(fs::exists(in("out")));
}

TEST_F(BinToSafetensors, WrongPaths) {
  write("model/pytorch_model.bin", "something");
  write("done/model.safetensors", "something");
  write("nothing/config.json", "{}");
  write("two\nlines/config.json", "{}");
  expect_error({in("missing").string()}, "missing does not exist; give a model directory");
  expect_error({in("model/pytorch_model.bin").string()},
               "pytorch_model.bin is a file; give the model directory that it is in");
  expect_error({in("done").string()}, "done has safetensors already, and no pytorch_model.bin");
  expect_error({in("nothing").string()}, "nothing has neither pytorch_model.bin nor its shards");
  expect_error({in("two\nlines").string()}, "two lines has neither");
  expect_error({in("model").string(), "--output", in("nothing/config.json").string()},
               "config.json is a file; --output takes a directory");
  expect_error({in("model").string(), "--output", in("done").string()}, "--force replaces it");
}

TEST_F(BinToSafetensors, FilesThatAreNoWeights) {
  write("pointer/pytorch_model.bin",
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n");
  write("empty/pytorch_model.bin", "");
  write("shards/pytorch_model-00001-of-00002.bin", "something");
  expect_error({in("pointer").string()}, "is a pointer of git-lfs, not the weights; run git lfs");
  expect_error({in("empty").string()}, "pytorch_model.bin is empty; download it again");
  expect_error({in("shards").string()}, "missing or surplus shards with the numbers [2]");
}

}  // namespace
}  // namespace sparsellm
