#include "tests/testing/cuda_includes.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "kernels/base/error.h"
#include "tests/testing/includes.h"

namespace sparsellm::testing {
namespace {

namespace fs = std::filesystem;

// The words of a command line, without a shell's quotes and backslashes.
std::vector<std::string> split_command(const std::string& command) {
  std::vector<std::string> words;
  std::string word;
  bool in_word = false;
  char quote = '\0';
  for (size_t i = 0; i < command.size(); ++i) {
    const char c = command[i];
    if (quote != '\0' && c == quote) {
      quote = '\0';
    } else if (c == '\\' && quote != '\'' && i + 1 < command.size()) {
      word += command[++i];
      in_word = true;
    } else if (quote == '\0' && (c == '"' || c == '\'')) {
      quote = c;
      in_word = true;  // "" is a word, too
    } else if (quote == '\0' && (c == ' ' || c == '\t')) {
      if (in_word) {
        words.push_back(std::exchange(word, {}));
      }
      in_word = false;
    } else {
      word += c;
      in_word = true;
    }
  }
  if (in_word) {
    words.push_back(word);
  }
  return words;
}

struct Command {
  fs::path source;
  std::vector<fs::path> project_folders;  // -I
  std::vector<fs::path> system_folders;   // -isystem
};

Command parse_command(const nlohmann::json& entry) {
  const fs::path directory = entry.at("directory").get<std::string>();
  const auto words = entry.contains("arguments")
                         ? entry.at("arguments").get<std::vector<std::string>>()
                         : split_command(entry.at("command").get<std::string>());
  Command command{
      .source = directory / entry.at("file").get<std::string>(),
      .project_folders = {},
      .system_folders = {},
  };
  const auto take = [&](size_t& i, std::string_view flag, std::vector<fs::path>& folders) {
    if (!words[i].starts_with(flag)) {
      return;
    }
    std::string folder = words[i].substr(flag.size());
    if (folder.empty() && i + 1 < words.size()) {
      folder = words[++i];
    }
    folders.push_back(directory / folder);
  };
  for (size_t i = 0; i < words.size(); ++i) {
    take(i, "-I", command.project_folders);
    take(i, "-isystem", command.system_folders);
  }
  return command;
}

// Includes of files that many sources have in common are read once.
class IncludeReader {
 public:
  const std::vector<Include>& of(const fs::path& file) {
    const auto [found, is_new] = known_.try_emplace(file);
    if (is_new) {
      std::ifstream text(file);
      found->second = read_includes(text);
    }
    return found->second;
  }

 private:
  std::map<fs::path, std::vector<Include>> known_;
};

bool has_file(const std::vector<fs::path>& folders, const std::string& name) {
  return std::any_of(folders.begin(), folders.end(),
                     [&](const fs::path& folder) { return fs::exists(folder / name); });
}

// CUDA headers that a command's source reaches, each with the file that names it.
std::map<std::string, fs::path> reached_cuda_headers(const Command& command,
                                                     IncludeReader& includes) {
  std::map<std::string, fs::path> reached;
  std::set<fs::path> seen{command.source};
  std::vector<fs::path> open{command.source};
  while (!open.empty()) {
    const fs::path file = open.back();
    open.pop_back();
    for (const Include& include : includes.of(file)) {
      if (is_cuda_header(include.target)) {
        reached.try_emplace(include.target, file);
        continue;
      }
      std::vector<fs::path> folders = command.project_folders;
      if (!include.angled) {
        folders.insert(folders.begin(), file.parent_path());
      }
      const auto folder = std::find_if(folders.begin(), folders.end(), [&](const fs::path& path) {
        return fs::is_regular_file(path / include.target);
      });
      if (folder == folders.end()) {
        continue;  // of the system
      }
      const fs::path next = (*folder / include.target).lexically_normal();
      if (seen.insert(next).second) {
        open.push_back(next);
      }
    }
  }
  return reached;
}

}  // namespace

bool is_cuda_header(const std::string& target) {
  // Folders of the toolkit's C++ libraries and prefixes of its libraries; the project's own headers
  // have a folder of the project before a name with "cuda".
  static constexpr std::string_view kPrefixes[] = {
      "cuda",  "cublas",  "cusparse",           "cufft", "curand", "cusolver",   "cudnn",
      "cupti", "nvrtc",   "nvJitLink",          "nvml",  "nvtx3/", "nvToolsExt", "nccl",
      "cub/",  "thrust/", "cooperative_groups", "cute/", "nvPTX",  "fatbinary",  "nvblas"};
  static constexpr std::string_view kNames[] = {
      "library_types.h", "mma.h",          "builtin_types.h",
      "vector_types.h",  "driver_types.h", "vector_functions.h",
      "texture_types.h", "crt/mma.h",      "device_launch_parameters.h"};
  return std::any_of(std::begin(kPrefixes), std::end(kPrefixes),
                     [&](std::string_view prefix) { return target.starts_with(prefix); }) ||
         std::find(std::begin(kNames), std::end(kNames), target) != std::end(kNames);
}

CudaIncludes check_cuda_includes(const fs::path& compile_commands,
                                 const std::vector<fs::path>& found_always) {
  std::ifstream text(compile_commands);
  require(text.good(), "cannot read {}", compile_commands.string());
  CudaIncludes result;
  IncludeReader includes;
  for (const nlohmann::json& entry : nlohmann::json::parse(text)) {
    const Command command = parse_command(entry);
    if (command.source.extension() != ".cpp") {
      continue;  // nvcc finds the toolkit's headers by itself
    }
    ++result.sources;
    const std::map<std::string, fs::path> reached = reached_cuda_headers(command, includes);
    result.reach_cuda += reached.empty() ? 0 : 1;
    std::vector<fs::path> folders = command.project_folders;
    folders.insert(folders.end(), command.system_folders.begin(), command.system_folders.end());
    folders.insert(folders.end(), found_always.begin(), found_always.end());
    for (const auto& [header, named_by] : reached) {
      if (!has_file(folders, header)) {
        result.missing.push_back(
            fmt::format("{} reaches <{}> (included by {}), which no folder of its compile command "
                        "has; link the library of the header to its target",
                        command.source.string(), header, named_by.string()));
      }
    }
  }
  return result;
}

}  // namespace sparsellm::testing
