// Reads the includes of all sources: nothing may include what lies above or beside it.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/testing/includes.h"
#include "tests/testing/paths.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;

// The folders of the source tree, and which of them each may include.
const std::map<std::string, std::set<std::string>> kAllowed{
    {"kernels/base", {"kernels/base"}},
    {"kernels", {"kernels", "kernels/base"}},
    {"sparse", {"sparse", "kernels", "kernels/base"}},
    {"models", {"models", "sparse", "kernels", "kernels/base"}},
    {"tokenizer", {"tokenizer", "kernels/base"}},
    {"engine", {"engine", "models", "sparse", "kernels", "kernels/base", "tokenizer"}},
    {"tools", {"tools", "engine", "models", "sparse", "kernels", "kernels/base", "tokenizer"}},
    {"tests",
     {"tests", "tools", "engine", "models", "sparse", "kernels", "kernels/base", "tokenizer"}},
};

// "kernels/base/error.h" -> "kernels/base", "sparse/dense/dense.h" -> "sparse"; empty if the path
// is in none of the folders.
std::string folder_of(const std::string& path) {
  if (path.starts_with("kernels/base/")) {
    return "kernels/base";
  }
  const std::string top = path.substr(0, path.find('/'));
  return kAllowed.contains(top) ? top : "";
}

// What is wrong with the includes of `source`, a path relative to the root, with this text.
std::vector<std::string> wrong_includes(const std::string& source, std::istream& text) {
  const std::set<std::string>& allowed = kAllowed.at(folder_of(source));
  std::vector<std::string> wrong;
  for (const testing::Include& include : testing::read_includes(text)) {
    const std::string folder = folder_of(include.target);
    const bool generated = include.target == "sparsellm_version.h";
    const bool outside = include.angled && folder.empty();  // of the system
    if (!generated && !outside && !allowed.contains(folder)) {
      wrong.push_back(source + " includes " + include.target);
    }
  }
  return wrong;
}

bool is_source(const fs::path& path) {
  static const std::set<std::string> extensions{".h", ".cpp", ".cu", ".cuh"};
  return extensions.contains(path.extension().string());
}

TEST(Layering, IncludesPointDownward) {
  const fs::path root = testing::source_dir();
  size_t sources = 0;
  for (const char* top : {"kernels", "sparse", "models", "tokenizer", "engine", "tools", "tests"}) {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root / top)) {
      if (!entry.is_regular_file() || !is_source(entry.path())) {
        continue;
      }
      ++sources;
      std::ifstream text(entry.path());
      for (const std::string& message :
           wrong_includes(fs::relative(entry.path(), root).generic_string(), text)) {
        ADD_FAILURE() << message;
      }
    }
  }
  EXPECT_GT(sources, 50u);
}

TEST(Layering, FindsWrongIncludes) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"kernels/base/tensor.h", "#include \"kernels/gemm.h\""},
      {"kernels/gemm.cpp", "#include \"sparse/weight_matrix.h\""},
      {"sparse/dense/dense.cpp", "  # include \"models/linear.h\""},
      {"models/decoder.cpp", "#include \"engine/engine.h\""},
      {"models/decoder.cpp", "#include \"tokenizer/tokenizer.h\""},
      {"tokenizer/bpe.cpp", "#include \"kernels/gemm.h\""},
      {"engine/engine.cpp", "#include \"tools/args.h\""},
      {"tools/args.cpp", "#include \"tests/testing/paths.h\""},
      {"models/decoder.cpp", "#include \"decoder.h\""},  // not from the root
      {"models/decoder.cpp", "#include <engine/engine.h>"},
  };
  for (const auto& [source, line] : cases) {
    std::istringstream text(line);
    EXPECT_EQ(wrong_includes(source, text).size(), 1u) << source << ": " << line;
  }
  std::istringstream good("#include <vector>\n#include \"kernels/gemm.h\"\n");
  EXPECT_TRUE(wrong_includes("sparse/dense/dense.cpp", good).empty());
}

}  // namespace
}  // namespace sparsellm
