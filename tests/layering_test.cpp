// Reads all sources: nothing may include what lies above or beside it, nor the device code of
// another op or format, and kernels are started in one place.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
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

const Rooms kAblation = with({"sparse/ablation"}, kSparse);
const Rooms kAblations{"sparse/ablation", "sparse/activation/ablation", "sparse/tca_bme/ablation",
                       "sparse/tiled_csl/ablation"};

const std::map<std::string, Rooms> kAllowed{
    {"kernels/base", {}},
    {"kernels", {"kernels/base"}},
    {"sparse", kKernels},
    // For measurements: layers of their own above the formats.
    {"sparse/ablation", kSparse},
    {"sparse/activation/ablation", kSparse},
    {"sparse/tca_bme/ablation", kAblation},
    {"sparse/tiled_csl/ablation", kAblation},
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
    {"tools/serve", with({"tools/cli", "tools/run"}, kEngine)},
    {"tools/bench", with({"tools/cli"}, with(kAblations, kEngine))},
    {"tools", {}},
    {"tests", with({"engine/conversion", "tools/cli", "tools/run", "tools/convert", "tools/eval",
                    "tools/bench", "tools/serve"},
                   with(kAblations, kEngine))},
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

// The device headers of ops and formats: X_device.h, X_cuda.h and X.cuh.
bool is_device_header(const std::string& path) {
  return path.ends_with("_device.h") || path.ends_with("_cuda.h") || path.ends_with(".cuh");
}

// Whose file this is, for the rule that an op's or a format's device headers are included by itself
// alone; empty for what all may include (kernels/base, kernels/device, kernels/tune) and for what
// is neither.
//   - a format is a folder of sparse: "sparse/tca_bme" owns all in it;
//   - an op is what has a header kernels/X_device.h, and a file directly in kernels belongs to the
//     op with the longest name that begins the file's: gemm_blas.cuh and gemm_stream_cuda.h to
//     gemm. Where no op's name does, the file is an op of its own, and its headers are nobody
//     else's.
class Owners {
 public:
  explicit Owners(std::set<std::string> ops) : ops_(std::move(ops)) {}

  static Owners of(const fs::path& root) {
    constexpr std::string_view kSuffix = "_device.h";
    std::set<std::string> ops;
    for (const fs::directory_entry& entry : fs::directory_iterator(root / "kernels")) {
      const std::string name = entry.path().filename().string();
      if (name.ends_with(kSuffix)) {
        ops.insert(name.substr(0, name.size() - kSuffix.size()));
      }
    }
    return Owners(std::move(ops));
  }

  std::string owner_of(const std::string& path) const {
    const fs::path parts(path);
    const std::string folder = parts.parent_path().generic_string();
    if (folder.starts_with("sparse/")) {
      return folder.substr(0, folder.find('/', std::string_view("sparse/").size()));
    }
    if (folder != "kernels") {
      return {};
    }
    const std::string name = parts.stem().string();
    std::string owner;
    for (const std::string& op : ops_) {
      const bool begins = name == op || name.starts_with(op + "_");
      owner = begins && op.size() > owner.size() ? op : owner;
    }
    return owner.empty() ? name : owner;
  }

  size_t count() const { return ops_.size(); }

 private:
  std::set<std::string> ops_;
};

// The named exceptions: the dispatch of one op by others, what stands in for all of CUDA, and who
// looks at parts of an implementation to test or to measure them.
bool sees_all_device_headers(const std::string& source) {
  static const std::set<std::string> files{"kernels/append_attention.cpp", "kernels/no_cuda.cpp"};
  return files.contains(source) || source.starts_with("tests/") || source.starts_with("tools/");
}

// Likewise, of `source`.
std::vector<std::string> foreign_device_headers(const std::string& source, std::istream& text,
                                                const Owners& owners) {
  std::vector<std::string> wrong;
  if (sees_all_device_headers(source)) {
    return wrong;
  }
  for (const testing::Include& include : testing::read_includes(text)) {
    const std::string owner =
        is_device_header(include.target) ? owners.owner_of(include.target) : std::string();
    if (!owner.empty() && owner != owners.owner_of(source)) {
      wrong.push_back(source + " includes " + include.target + ", which is of " + owner + " alone");
    }
  }
  return wrong;
}

// Where kernels are started but by launch() (kernels/base/launch.cuh), a line each.
std::vector<std::string> other_launches(const std::string& source, std::istream& text) {
  std::vector<std::string> wrong;
  std::string line;
  while (source != "kernels/base/launch.cuh" && std::getline(text, line)) {
    if (line.find("cudaLaunchKernel") != std::string::npos ||
        line.find("<<<") != std::string::npos) {
      wrong.push_back(source + ": " + line);
    }
  }
  return wrong;
}

bool is_source(const fs::path& path) {
  static const std::set<std::string> extensions{".h", ".cpp", ".cu", ".cuh"};
  return extensions.contains(path.extension().string());
}

// Calls check(source, text) for each file of the source tree in these folders; returns how many.
template <class Check>
size_t for_each_source(std::initializer_list<const char*> folders, const Check& check) {
  const fs::path root = testing::source_dir();
  size_t sources = 0;
  for (const char* folder : folders) {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root / folder)) {
      if (entry.is_regular_file() && is_source(entry.path())) {
        ++sources;
        std::ifstream text(entry.path());
        for (const std::string& message :
             check(fs::relative(entry.path(), root).generic_string(), text)) {
          ADD_FAILURE() << message;
        }
      }
    }
  }
  return sources;
}

TEST(Layering, IncludesPointDownward) {
  const size_t sources = for_each_source(
      {"kernels", "sparse", "models", "tokenizer", "engine", "tools", "tests"},
      [](const std::string& source, std::istream& text) { return wrong_includes(source, text); });
  EXPECT_GT(sources, 50u);
}

TEST(Layering, DeviceHeadersAreOfOneOpOrFormat) {
  const Owners owners = Owners::of(testing::source_dir());
  EXPECT_GT(owners.count(), 8u);
  for_each_source({"kernels", "sparse", "models", "tokenizer", "engine", "tools", "tests"},
                  [&](const std::string& source, std::istream& text) {
                    return foreign_device_headers(source, text, owners);
                  });
}

TEST(Layering, KernelsAreStartedByLaunch) {
  for_each_source(
      {"kernels", "sparse", "models", "engine", "tools"},
      [](const std::string& source, std::istream& text) { return other_launches(source, text); });
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
  EXPECT_LE(headers.size(), 20u) << ::testing::PrintToString(headers);
}

TEST(Layering, FindsWrongIncludes) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"kernels/base/tensor.h", "#include \"kernels/gemm.h\""},
      {"kernels/gemm.cpp", "#include \"sparse/weight_matrix.h\""},
      {"sparse/dense/dense.cpp", "  # include \"models/weights/linear.h\""},
      {"models/decoder.cpp", "#include \"engine/engine.h\""},
      {"models/decoder.cpp", "#include \"tokenizer/tokenizer.h\""},
      {"tokenizer/bpe.cpp", "#include \"kernels/gemm.h\""},
      {"sparse/tca_bme/tca_bme_format.cpp", "#include \"sparse/tca_bme/ablation/ablation.h\""},
      {"sparse/tca_bme/ablation/ablation.cu", "#include \"tools/bench/contender.h\""},
      {"models/decoder.cpp", "#include \"sparse/tca_bme/ablation/ablation.h\""},
      {"models/sparse_mlp.cpp", "#include \"sparse/activation/ablation/ablation.h\""},
      {"sparse/tiled_csl/tiled_csl_format.cpp", "#include \"sparse/ablation/ablated_weight.h\""},
      {"engine/engine.cpp", "#include \"sparse/tiled_csl/ablation/ablation.h\""},
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

TEST(Layering, FindsForeignDeviceHeaders) {
  const Owners owners({"gemm", "attention", "append_attention", "kv_append", "rope"});
  const auto wrong = [&](const std::string& source, const std::string& line) {
    std::istringstream text(line);
    return foreign_device_headers(source, text, owners).size();
  };
  const std::vector<std::pair<std::string, std::string>> foreign{
      {"kernels/gemm_cpu.cpp", "#include \"kernels/rope_device.h\""},
      {"kernels/attention_cuda.cu", "#include \"kernels/gemm_blas.cuh\""},
      {"kernels/attention_cuda.cu", "#include \"kernels/append_attention_device.h\""},
      {"kernels/kv_append_cuda.cu", "#include \"kernels/rope.cuh\""},
      {"kernels/gemm_measure.cu", "#include \"kernels/elementwise.cuh\""},  // of no op
      {"kernels/gemma.cu", "#include \"kernels/gemm_blas.cuh\""},
      {"kernels/device/mma.cuh", "#include \"kernels/gemm_blas.cuh\""},
      {"kernels/tune/meter.cu", "#include \"kernels/gemm_blas.cuh\""},
      {"sparse/expand_matmul.cpp", "#include \"kernels/gemm_device.h\""},
      {"sparse/tca_bme/cuda/weight.cu", "#include \"kernels/gemm_stream_cuda.h\""},
      {"sparse/tca_bme/cuda/weight.cu", "#include \"sparse/tiled_csl/cuda/tile.cuh\""},
      {"sparse/registry.cpp", "#include \"sparse/tca_bme/cuda/record_weight_cuda.h\""},
      {"models/decoder.cpp", "#include \"kernels/attention_device.h\""},
      {"engine/cuda_runner.cpp", "#include \"sparse/tca_bme/cuda/record_weight.cuh\""},
  };
  for (const auto& [source, line] : foreign) {
    EXPECT_EQ(wrong(source, line), 1u) << source << ": " << line;
  }
  const std::vector<std::pair<std::string, std::string>> own{
      {"kernels/gemm.cpp", "#include \"kernels/gemm_device.h\""},
      {"kernels/gemm_stream_cuda.cu", "#include \"kernels/gemm_blas.cuh\""},
      {"kernels/append_attention.cpp", "#include \"kernels/kv_append_device.h\""},
      {"kernels/append_attention_cuda.cu", "#include \"kernels/append_attention_device.h\""},
      {"kernels/gemm_cuda.cu", "#include \"kernels/device/mma.cuh\""},
      {"kernels/gemm_cuda.cu", "#include \"kernels/base/launch.cuh\""},
      {"kernels/rope_cuda.cu", "#include \"kernels/kv_append.h\""},  // the op itself
      {"sparse/tca_bme/tca_bme_format.cpp",
       "#include \"sparse/tca_bme/cuda/record_weight_cuda.h\""},
      {"sparse/tca_bme/cuda/no_cuda.cpp", "#include \"sparse/tca_bme/cuda/record_weight_cuda.h\""},
      {"tests/kernels/gemm_gpu_test.cpp", "#include \"kernels/gemm_blas.cuh\""},
  };
  for (const auto& [source, line] : own) {
    EXPECT_EQ(wrong(source, line), 0u) << source << ": " << line;
  }
}

TEST(Layering, FindsOtherLaunches) {
  const auto found = [](const std::string& source, const std::string& line) {
    std::istringstream text(line);
    return other_launches(source, text).size();
  };
  EXPECT_EQ(found("kernels/add_cuda.cu", "  check_cuda(cudaLaunchKernelEx(&config, kernel, p));"),
            1u);
  EXPECT_EQ(found("tools/bench/read.cu", "  read_kernel<<<blocks, 256>>>(x);"), 1u);
  EXPECT_EQ(found("kernels/add_cuda.cu", "  launch(ctx, add_kernel<T>, shape, x, y);"), 0u);
  EXPECT_EQ(found("kernels/base/launch.cuh", "  cudaLaunchKernelExC(&config, kernel, p);"), 0u);
}

}  // namespace
}  // namespace sparsellm
