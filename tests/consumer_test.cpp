// What a project gets that adds this one with add_subdirectory(): the headers, the libraries, and
// none of the flags that they are compiled with. And what one gets that finds it installed.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/testing/includes.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"
#include "tests/tools/run_program.h"

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

// Must succeed.
void run_cmake(const std::vector<std::string>& args) {
  const testing::Outcome outcome = testing::run_program(SPARSELLM_CMAKE, args);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
}

// For a project that is configured by the compiler of this build.
std::vector<std::string> configure(const fs::path& source, const fs::path& build) {
  return {"-S",
          source.string(),
          "-B",
          build.string(),
          "-G",
          SPARSELLM_GENERATOR,
          "-DCMAKE_CXX_COMPILER=" SPARSELLM_COMPILER,
          "-DPCRE2_ROOT=" SPARSELLM_PCRE2_ROOT,
          "-DUTF8PROC_ROOT=" SPARSELLM_UTF8PROC_ROOT,
          "-DSENTENCEPIECE_ROOT=" SPARSELLM_SENTENCEPIECE_ROOT};
}

TEST(Consumer, GetsHeadersAndNoFlags) {
  const testing::TempDir directory;
  const fs::path folder = directory.path() / "a (b) c";  // which no shell takes without quotes
  fs::create_directory(folder);
  fs::create_directory_symlink(testing::source_dir(), folder / "source");
  const fs::path build = folder / "build";
  const fs::path consumer = testing::source_dir() / "tests" / "consumer";
  std::vector<std::string> args = configure(consumer, build);
  args.insert(args.end(), {"-DSPARSELLM_SOURCE_DIR=" + (folder / "source").string(),
                           "-DSPARSELLM_CUDA=OFF", "-DSPARSELLM_PCRE2=" SPARSELLM_USE_PCRE2,
                           "-DSPARSELLM_UTF8PROC=" SPARSELLM_USE_UTF8PROC});
  ASSERT_NO_FATAL_FAILURE(run_cmake(args));

  std::ifstream file(build / "compile_commands.json");
  const nlohmann::json commands = nlohmann::json::parse(file);
  int of_consumer = 0;
  int of_libraries = 0;
  std::string compile;  // of the consumer
  for (const nlohmann::json& entry : commands) {
    const fs::path source = entry.at("file").get<std::string>();
    const std::vector<std::string> options = options_of(entry.at("command"));
    if (is_in(source, consumer)) {
      ++of_consumer;
      compile = entry.at("command");
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

  // By its own command: a target of the generator would compile the libraries first.
  fs::create_directories(build / "CMakeFiles" / "consumer.dir");
  const testing::Outcome compiled =
      testing::run_program("/bin/sh", {"-ec", "cd \"$0\"; eval \"$1\"", build.string(), compile});
  EXPECT_EQ(compiled.exit_code, 0) << compiled.out << compiled.err;
  EXPECT_TRUE(fs::exists(build / "CMakeFiles" / "consumer.dir" / "main.cpp.o"));
}

#ifdef SPARSELLM_INSTALLS
// Headers below `root`, by what stands in #include.
std::set<std::string> headers_in(const fs::path& root) {
  std::set<std::string> headers;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root)) {
    if (entry.is_regular_file()) {
      headers.insert(fs::relative(entry.path(), root).generic_string());
    }
  }
  return headers;
}

void expect_whole(const fs::path& includes) {
  const std::set<std::string> headers = headers_in(includes);
  constexpr size_t kMostHeaders = 35;  // a promise is kept small
  EXPECT_LE(headers.size(), kMostHeaders) << ::testing::PrintToString(headers);
  for (const char* header : {"engine/engine.h", "engine/engine_options.h", "engine/request.h",
                             "kernels/base/error.h", "sparse/general_sparse/general_matrix.h",
                             "sparse/matrices/matrix_market.h", "tokenizer/tokenizer.h"}) {
    EXPECT_TRUE(headers.contains(header)) << header;
  }
  for (const std::string& header : headers) {
    std::ifstream text(includes / header);
    for (const testing::Include& include : testing::read_includes(text)) {
      EXPECT_TRUE(include.angled || headers.contains(include.target))
          << header << " includes " << include.target << ", which is not installed";
    }
  }
}

testing::Outcome run_without_gpu(const fs::path& program, const std::vector<std::string>& args) {
  const testing::RunOptions no_gpu{
      .input = {}, .before_exec = [] { ::setenv("CUDA_VISIBLE_DEVICES", "", 1); }, .meanwhile = {}};
  return testing::run_program(program.c_str(), args, no_gpu);
}

// As much of the same text as sparsellm-run.
void expect_streams(const fs::path& stream, const fs::path& sparsellm_run) {
  const std::string model = testing::data("models/fable-llama-relu-8m").string();
  const std::string text = "Once upon a time there was";
  const testing::Outcome streamed = run_without_gpu(stream, {model, text});
  EXPECT_EQ(streamed.exit_code, 0) << streamed.err;
  const testing::Outcome run = run_without_gpu(
      sparsellm_run,
      {"-m", model, "-p", text, "-n", "100", "--temp", "0", "--repeat-penalty", "1"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_GT(run.out.size(), 200u);
  EXPECT_EQ(streamed.out, run.out);
}

void expect_multiplies(const fs::path& multiply) {
  const testing::TempDir folder;
  const fs::path file = folder.write("matrix.mtx",
                                     "%%MatrixMarket matrix coordinate real general\n"
                                     "4 3 4\n"
                                     "1 1 0.5\n1 3 2\n2 2 -1\n4 1 1\n");
  const testing::Outcome product = run_without_gpu(multiply, {file.string()});
  EXPECT_EQ(product.exit_code, 0) << product.err;
  // B is 0 1 2 3, 4 5 6 7, 8 9 0 1.
  EXPECT_EQ(product.out, "16 18.5 1 3.5\n-4 -5 -6 -7\n0 0 0 0\n0 1 2 3\n");
  // On the CPU there is nothing to choose, so nothing to keep.
  const fs::path choices = folder.path() / "choices.json";
  const testing::Outcome tuned = run_without_gpu(multiply, {file.string(), choices.string()});
  EXPECT_EQ(tuned.exit_code, 0) << tuned.err;
  EXPECT_EQ(tuned.out, product.out);
  EXPECT_FALSE(fs::exists(choices));
  const testing::Outcome refused = run_without_gpu(multiply, {"/no/such/matrix.mtx"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_NE(refused.err.find("/no/such/matrix.mtx"), std::string::npos) << refused.err;
}

// What is installed is enough for the examples of docs, wherever it is moved to.
TEST(Installed, ExamplesRun) {
  const testing::TempDir directory;
  ASSERT_NO_FATAL_FAILURE(run_cmake(
      {"--install", SPARSELLM_BUILD_DIR, "--prefix", (directory.path() / "installed").string()}));
  const fs::path folder = directory.path() / "a (b) c";
  const fs::path prefix = folder / "prefix";
  fs::create_directory(folder);
  fs::rename(directory.path() / "installed", prefix);
  expect_whole(prefix / "include" / "sparsellm");

  const fs::path build = folder / "build";
  std::vector<std::string> args = configure(testing::source_dir() / "docs" / "example", build);
  args.push_back("-DCMAKE_PREFIX_PATH=" + prefix.string());
  ASSERT_NO_FATAL_FAILURE(run_cmake(args));
  ASSERT_NO_FATAL_FAILURE(run_cmake({"--build", build.string()}));
  expect_streams(build / "stream", prefix / "bin" / "sparsellm-run");
  expect_multiplies(build / "multiply");
}
#endif

}  // namespace
}  // namespace sparsellm
