// What a project gets that adds this one with add_subdirectory(): the headers, the libraries, and
// none of the flags that they are compiled with.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;

// The options of the compiler, except for defined macros, folders of headers and files.
std::vector<std::string> options_of(const std::string& command) {
  std::istringstream words(command);
  std::vector<std::string> options;
  for (std::string word; words >> word;) {
    if (word.starts_with("-") && !word.starts_with("-D") && !word.starts_with("-I") &&
        word != "-isystem" && word != "-o" && word != "-c") {
      options.push_back(word);
    }
  }
  return options;
}

bool is_in(const fs::path& file, const fs::path& directory) {
  return fs::weakly_canonical(file).native().starts_with(directory.native() + "/");
}

// Words of a shell's command.
std::string quoted(const std::string& word) { return "'" + word + "' "; }

int run_cmake(const std::vector<std::string>& args, const fs::path& log) {
  std::string command = quoted(SPARSELLM_CMAKE);
  for (const std::string& arg : args) {
    command += quoted(arg);
  }
  return std::system((command + "> " + quoted(log.string()) + "2>&1").c_str());
}

TEST(Consumer, GetsHeadersAndNoFlags) {
  const testing::TempDir directory;
  const fs::path folder = directory.path() / "a (b) c";  // which no shell takes without quotes
  fs::create_directory(folder);
  fs::create_directory_symlink(testing::source_dir(), folder / "source");
  const fs::path build = folder / "build";
  const fs::path log = directory.path() / "log";
  const auto output = [&log] {
    std::stringstream text;
    text << std::ifstream(log).rdbuf();
    return text.str();
  };
  const fs::path consumer = testing::source_dir() / "tests" / "consumer";
  ASSERT_EQ(
      run_cmake({"-S", consumer.string(), "-B", build.string(), "-G", SPARSELLM_GENERATOR,
                 "-DSPARSELLM_SOURCE_DIR=" + (folder / "source").string(),
                 "-DCMAKE_CXX_COMPILER=" SPARSELLM_COMPILER, "-DSPARSELLM_CUDA=OFF",
                 "-DSPARSELLM_PCRE2=" SPARSELLM_USE_PCRE2, "-DPCRE2_ROOT=" SPARSELLM_PCRE2_ROOT,
                 "-DSENTENCEPIECE_ROOT=" SPARSELLM_SENTENCEPIECE_ROOT},
                log),
      0)
      << output();

  std::ifstream file(build / "compile_commands.json");
  const nlohmann::json commands = nlohmann::json::parse(file);
  int of_consumer = 0;
  int of_libraries = 0;
  for (const nlohmann::json& entry : commands) {
    const fs::path source = entry.at("file").get<std::string>();
    const std::vector<std::string> options = options_of(entry.at("command"));
    if (is_in(source, consumer)) {
      ++of_consumer;
      for (const std::string& option : options) {
        EXPECT_TRUE(option.starts_with("-std=") || option == "-pthread") << option;
      }
      continue;
    }
    ++of_libraries;
    EXPECT_FALSE(is_in(source, testing::source_dir() / "tests")) << source;
    int warnings = 0;
    for (const std::string& option : options) {
      EXPECT_FALSE(option.starts_with("-Werror")) << source << ": " << option;
      warnings += option == "-Wall" ? 1 : 0;
    }
    EXPECT_EQ(warnings, 1) << source;
  }
  EXPECT_EQ(of_consumer, 1);
  EXPECT_GT(of_libraries, 50);

  // A target of Ninja and of Make.
  const std::string object = "CMakeFiles/consumer.dir/main.cpp.o";
  EXPECT_EQ(run_cmake({"--build", build.string(), "--target", object}, log), 0) << output();
}

}  // namespace
}  // namespace sparsellm
