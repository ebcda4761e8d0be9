// Reads the includes of all sources: nothing may include what lies above or beside it.

#include <gtest/gtest.h>

#include <algorithm>
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

// The rooms of the source tree, from the ground floor up, and which of them each may include
// besides itself. A folder that has no line belongs to the room of the folder above it.
using Rooms = std::vector<std::string>;
const Rooms kKernels{"kernels", "kernels/base"};
const Rooms kSparse{"sparse", "kernels", "kernels/base"};
const Rooms kEngine{"engine", "models",  "models/weights", "models/storage",
                    "sparse", "kernels", "kernels/base",   "tokenizer"};

Rooms with(Rooms rooms, const Rooms& more) {
  rooms.insert(rooms.end(), more.begin(), more.end());
  return rooms;
}

const std::map<std::string, Rooms> kAllowed{
    {"kernels/base", {}},
    {"kernels", {"kernels/base"}},
    {"sparse", kKernels},
    {"models/storage", kSparse},
    {"models/weights", with({"models/storage"}, kSparse)},
    {"models", with({"models/weights", "models/storage"}, kSparse)},
    {"tokenizer", {"kernels/base"}},
    {"engine", kEngine},
    {"engine/conversion", kEngine},
    {"tools/cli", kEngine},
    {"tools/run", with({"tools/cli"}, kEngine)},
    {"tools/convert", with({"engine/conversion", "tools/cli"}, kEngine)},
    {"tools/eval", with({"tools/cli"}, kEngine)},
    {"tools/bench", with({"tools/cli"}, kEngine)},
    {"tools", {}},
    {"tests", with({"engine/conversion", "tools/cli", "tools/run", "tools/convert", "tools/eval",
                    "tools/bench"},
                   kEngine)},
};

// "kernels/base/error.h" -> "kernels/base", "sparse/dense/dense.h" -> "sparse"; empty if the path
// is in none of the rooms.
std::string room_of(const std::string& path) {
  for (size_t end = path.rfind('/'); end != std::string::npos && end > 0;
       end = path.rfind('/', end - 1)) {
    if (kAllowed.contains(path.substr(0, end))) {
      return path.substr(0, end);
    }
  }
  return {};
}

bool is_allowed(const std::string& from, const std::string& to) {
  const Rooms& rooms = kAllowed.at(from);
  return from == to || std::find(rooms.begin(), rooms.end(), to) != rooms.end();
}

// What is wrong with the includes of `source`, a path relative to the root, with this text.
std::vector<std::string> wrong_includes(const std::string& source, std::istream& text) {
  const std::string room = room_of(source);
  std::vector<std::string> wrong;
  for (const testing::Include& include : testing::read_includes(text)) {
    const std::string target = room_of(include.target);
    const bool generated = include.target == "sparsellm_version.h";
    const bool outside = include.angled && target.empty();  // of the system
    if (!generated && !outside && !is_allowed(room, target)) {
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

// The headers of the project that `header` includes, directly and through others.
std::set<std::string> reached_headers(const std::string& header) {
  std::set<std::string> seen{header};
  std::vector<std::string> open{header};
  while (!open.empty()) {
    std::ifstream text(testing::source_dir() / open.back());
    EXPECT_TRUE(text.good()) << open.back();
    open.pop_back();
    for (const testing::Include& include : testing::read_includes(text)) {
      if (!include.angled && seen.insert(include.target).second) {
        open.push_back(include.target);
      }
    }
  }
  seen.erase(header);
  return seen;
}

// Every program compiles what the engine's header includes.
TEST(Layering, TheEnginesHeaderPullsInFewOthers) {
  const std::set<std::string> headers = reached_headers("engine/engine.h");
  EXPECT_TRUE(headers.contains("engine/request.h"));
  EXPECT_TRUE(headers.contains("kernels/base/error.h"));  // through others
  EXPECT_LE(headers.size(), 17u) << ::testing::PrintToString(headers);
}

TEST(Layering, FindsWrongIncludes) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"kernels/base/tensor.h", "#include \"kernels/gemm.h\""},
      {"kernels/gemm.cpp", "#include \"sparse/weight_matrix.h\""},
      {"sparse/dense/dense.cpp", "  # include \"models/weights/linear.h\""},
      {"models/decoder.cpp", "#include \"engine/engine.h\""},
      {"models/decoder.cpp", "#include \"tokenizer/tokenizer.h\""},
      {"tokenizer/bpe.cpp", "#include \"kernels/gemm.h\""},
      {"engine/engine.cpp", "#include \"tools/cli/args.h\""},
      {"engine/engine.cpp", "#include \"engine/conversion/convert.h\""},
      {"engine/conversion/convert.cpp", "#include \"tools/cli/interrupt.h\""},
      {"tools/cli/args.cpp", "#include \"tests/testing/paths.h\""},
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
