// The commands of README and docs run as they are written.
//
// Blocks ```sh run are run by bash, each in a fresh folder, with the built programs on the PATH and
// without a GPU. What the names in them stand for lies in that folder under these names:
//   MODEL, DENSE     the demo model fable-llama-relu-8m
//   PRUNED           the same with 60 % zeros, as an ordinary checkpoint
//   FILE             the beginning of peter_pan.txt
//   calibration.txt  the beginning of tests/data/text/calibration.txt
//   prompt.txt       a prompt
//   configs          the folder of this name
// All other names are of what the commands write. Blocks that cannot run here are ```sh gpu, which
// need one, and ```sh terminal, which read from one.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/docs/markdown.h"
#include "tests/testing/paths.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/temp_dir.h"
#include "tests/tools/run_program.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using testing::CodeBlock;
using testing::Outcome;
using testing::TempDir;

constexpr char kRun[] = "sh run";

std::string beginning_of(const char* text, size_t bytes) {
  return testing::read_file(testing::data("text") / text).substr(0, bytes);
}

// The model that PRUNED stands for.
void make_pruned(const fs::path& output) {
  const Outcome outcome = testing::run_program(
      "sparsellm-convert",
      {"-m", testing::data("models/fable-llama-relu-8m").string(), "--output", output.string(),
       "--prune", "magnitude", "--sparsity", "0.6", "--format", "dense", "--quiet"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
}

void fill(const TempDir& folder, const fs::path& pruned) {
  const auto link = [&](const char* name, const fs::path& target) {
    fs::create_directory_symlink(target, folder.path() / name);
  };
  link("MODEL", testing::data("models/fable-llama-relu-8m"));
  link("DENSE", testing::data("models/fable-llama-relu-8m"));
  link("PRUNED", pruned);
  link("configs", testing::source_dir() / "configs");
  folder.write("FILE", beginning_of("peter_pan.txt", 3000));
  folder.write("calibration.txt", beginning_of("calibration.txt", 2500));
  folder.write("prompt.txt", "The king had a daughter\n");
}

Outcome run_block(const CodeBlock& block, const fs::path& folder) {
  const std::string path = testing::program("").parent_path().string() + ":" + std::getenv("PATH");
  return testing::run_program("/bin/bash", {"-euo", "pipefail", "-c", block.text},
                              {.input = {},
                               .before_exec =
                                   [&] {
                                     if (::chdir(folder.c_str()) != 0) {
                                       ::_exit(126);
                                     }
                                     ::setenv("PATH", path.c_str(), 1);
                                     ::setenv("CUDA_VISIBLE_DEVICES", "", 1);
                                     ::setenv("XDG_CACHE_HOME", folder.c_str(), 1);
                                   },
                               .meanwhile = {}});
}

TEST(DocsCommands, Run) {
  if (testing::kSanitized) {
    GTEST_SKIP() << "programs with sanitizers take too long for all of them";
  }
  const TempDir models;
  ASSERT_NO_FATAL_FAILURE(make_pruned(models.path() / "pruned"));
  std::set<std::string> pages;  // with a block that ran
  for (const fs::path& page : testing::manual_pages()) {
    for (const CodeBlock& block : testing::read_page(page).blocks) {
      if (block.info != kRun) {
        continue;
      }
      const TempDir folder;
      fill(folder, models.path() / "pruned");
      const Outcome outcome = run_block(block, folder.path());
      EXPECT_EQ(outcome.exit_code, 0) << page.string() << ":" << block.line << ":\n"
                                      << block.text << outcome.err;
      pages.insert(page.filename().string());
    }
  }
  for (const char* page :
       {"README.md", "run.md", "batch.md", "convert.md", "eval.md", "bench.md"}) {
    EXPECT_TRUE(pages.contains(page)) << page << " has no block " << kRun;
  }
}

TEST(DocsCommands, AreMarked) {
  const std::set<std::string> marks{kRun, "sh gpu", "sh terminal"};
  for (const fs::path& page : testing::manual_pages()) {
    for (const CodeBlock& block : testing::read_page(page).blocks) {
      const bool has_command = block.text.starts_with("sparsellm-") ||
                               block.text.find("\nsparsellm-") != std::string::npos;
      EXPECT_TRUE(!has_command || marks.contains(block.info))
          << page.string() << ":" << block.line << " has a command in a block of the kind "
          << (block.info.empty() ? "without a name" : block.info);
    }
  }
}

}  // namespace
}  // namespace sparsellm
