#include "kernels/base/run_time_compiler.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nvrtc.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <mutex>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "kernels/base/error.h"

namespace sparsellm {
namespace {

// The first that knows C++20.
constexpr int kOldestNvrtc = 12;

// Code depends on them: they are part of the version.
constexpr const char* kNvrtcOptions[] = {"--std=c++20"};

// The functions that are used here. They have been the same since version 11.2. The library stays
// loaded.
struct Nvrtc {
  decltype(&nvrtcVersion) get_version = nullptr;
  decltype(&nvrtcGetErrorString) error_string = nullptr;
  decltype(&nvrtcGetNumSupportedArchs) count_architectures = nullptr;
  decltype(&nvrtcGetSupportedArchs) get_architectures = nullptr;
  decltype(&nvrtcCreateProgram) create = nullptr;
  decltype(&nvrtcDestroyProgram) destroy = nullptr;
  decltype(&nvrtcCompileProgram) compile = nullptr;
  decltype(&nvrtcGetProgramLogSize) log_size = nullptr;
  decltype(&nvrtcGetProgramLog) get_log = nullptr;
  decltype(&nvrtcGetCUBINSize) code_size = nullptr;
  decltype(&nvrtcGetCUBIN) get_code = nullptr;

  std::string version;
  std::vector<int> architectures;

  // Throws Error where it cannot be used.
  static Nvrtc load();

  void check(nvrtcResult result, const char* what) const {
    require(result == NVRTC_SUCCESS, "NVRTC, {}: {}", what, error_string(result));
  }

 private:
  template <class Function>
  static void find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    require(function != nullptr, "NVRTC has no {}", name);
  }
};

// That of the toolkit of the build, as the toolkit is where the program looks for libraries; then
// what else there may be.
void* open_nvrtc() {
  std::string problem;
  for (const std::string& name :
       {fmt::format("libnvrtc.so.{}", CUDART_VERSION / 1000), std::string("libnvrtc.so.13"),
        std::string("libnvrtc.so.12"), std::string("libnvrtc.so")}) {
    if (void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL); library != nullptr) {
      return library;
    }
    const char* const reason = dlerror();
    if (problem.empty()) {
      problem = reason != nullptr ? reason : "no reason is given";
    }
  }
  fail("NVRTC cannot be loaded: {}", problem);
}

// Tells releases of one version apart, which the library itself does not.
int64_t library_bytes(const void* function) {
  Dl_info info{};
  if (dladdr(function, &info) == 0 || info.dli_fname == nullptr) {
    return 0;
  }
  std::error_code error;
  const uintmax_t bytes = std::filesystem::file_size(info.dli_fname, error);
  return error ? 0 : static_cast<int64_t>(bytes);
}

Nvrtc Nvrtc::load() {
  void* const library = open_nvrtc();
  Nvrtc nvrtc;
  find(library, "nvrtcVersion", nvrtc.get_version);
  int major = 0;
  int minor = 0;
  require(nvrtc.get_version(&major, &minor) == NVRTC_SUCCESS && major >= kOldestNvrtc,
          "NVRTC has version {}.{}, and {}.0 is the oldest that is used", major, minor,
          kOldestNvrtc);
  find(library, "nvrtcGetErrorString", nvrtc.error_string);
  find(library, "nvrtcGetNumSupportedArchs", nvrtc.count_architectures);
  find(library, "nvrtcGetSupportedArchs", nvrtc.get_architectures);
  find(library, "nvrtcCreateProgram", nvrtc.create);
  find(library, "nvrtcDestroyProgram", nvrtc.destroy);
  find(library, "nvrtcCompileProgram", nvrtc.compile);
  find(library, "nvrtcGetProgramLogSize", nvrtc.log_size);
  find(library, "nvrtcGetProgramLog", nvrtc.get_log);
  find(library, "nvrtcGetCUBINSize", nvrtc.code_size);
  find(library, "nvrtcGetCUBIN", nvrtc.get_code);
  nvrtc.version = fmt::format("NVRTC {}.{} of {} bytes, {}", major, minor,
                              library_bytes(reinterpret_cast<const void*>(nvrtc.get_version)),
                              fmt::join(kNvrtcOptions, " "));
  int count = 0;
  nvrtc.check(nvrtc.count_architectures(&count), "its architectures");
  nvrtc.architectures.resize(static_cast<size_t>(std::max(count, 0)));
  nvrtc.check(nvrtc.get_architectures(nvrtc.architectures.data()), "its architectures");
  return nvrtc;
}

std::string capability_text(int architecture) {
  return fmt::format("{}.{}", architecture / 10, architecture % 10);
}

void require_architecture(const Nvrtc& nvrtc, const KernelSource& source) {
  const std::vector<int>& known = nvrtc.architectures;
  if (std::ranges::find(known, source.architecture) == known.end()) {
    std::vector<std::string> names(known.size());
    std::ranges::transform(known, names.begin(), capability_text);
    fail("cannot compile {} for compute capability {}: this NVRTC knows {}", source.name,
         capability_text(source.architecture), fmt::join(names, ", "));
  }
}

// "kernel(3): error: ...", of a log that may begin with warnings, and has lines of the source
// between, which are indented.
std::string first_error(std::string_view log) {
  std::string_view first;
  while (!log.empty()) {
    const size_t end = std::min(log.find('\n'), log.size());
    const std::string_view line = log.substr(0, end);
    log.remove_prefix(std::min(end + 1, log.size()));
    if (line.empty() || line.front() == ' ') {
      continue;
    }
    const bool is_error = line.find("error") != std::string_view::npos ||
                          line.find("fatal") != std::string_view::npos;
    if (is_error && line.find(": warning") == std::string_view::npos) {
      return std::string(line);
    }
    first = first.empty() ? line : first;
  }
  return std::string(first);
}

// One compilation.
class NvrtcProgram {
 public:
  NvrtcProgram(const Nvrtc& nvrtc, const KernelSource& source) : nvrtc_(nvrtc) {
    nvrtc_.check(
        nvrtc_.create(&program_, source.text.c_str(), source.name.c_str(), 0, nullptr, nullptr),
        "a new program");
  }
  ~NvrtcProgram() { nvrtc_.destroy(&program_); }
  NvrtcProgram(const NvrtcProgram&) = delete;
  NvrtcProgram& operator=(const NvrtcProgram&) = delete;

  // What is wrong, in one line; empty: nothing.
  std::string compile(const std::vector<std::string>& options) {
    std::vector<const char*> pointers;
    pointers.reserve(options.size());
    for (const std::string& option : options) {
      pointers.push_back(option.c_str());
    }
    const nvrtcResult result =
        nvrtc_.compile(program_, static_cast<int>(pointers.size()), pointers.data());
    if (result == NVRTC_SUCCESS) {
      return {};
    }
    std::string error = first_error(log());
    return error.empty() ? nvrtc_.error_string(result) : error;
  }

  std::vector<std::byte> code() {
    size_t bytes = 0;
    nvrtc_.check(nvrtc_.code_size(program_, &bytes), "the size of the code");
    std::vector<std::byte> code(bytes);
    nvrtc_.check(nvrtc_.get_code(program_, reinterpret_cast<char*>(code.data())), "the code");
    return code;
  }

 private:
  std::string log() {
    size_t bytes = 0;  // with the zero at its end
    if (nvrtc_.log_size(program_, &bytes) != NVRTC_SUCCESS || bytes == 0) {
      return {};
    }
    std::string log(bytes, '\0');
    if (nvrtc_.get_log(program_, log.data()) != NVRTC_SUCCESS) {
      return {};
    }
    log.resize(bytes - 1);
    return log;
  }

  const Nvrtc& nvrtc_;
  nvrtcProgram program_ = nullptr;
};

}  // namespace

struct RunTimeCompiler::State {
  // Loaded once; it stays where it is then.
  const Nvrtc& nvrtc() {
    const std::lock_guard lock(mutex_);
    if (!nvrtc_) {
      nvrtc_ = Nvrtc::load();
    }
    return *nvrtc_;
  }

 private:
  std::mutex mutex_;
  std::optional<Nvrtc> nvrtc_;
};

RunTimeCompiler::RunTimeCompiler() : state_(std::make_unique<State>()) {}
RunTimeCompiler::~RunTimeCompiler() = default;

std::string RunTimeCompiler::why_not() {
  try {
    state_->nvrtc();
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

std::string RunTimeCompiler::version() { return state_->nvrtc().version; }

std::vector<std::byte> RunTimeCompiler::compile(const KernelSource& source) {
  const Nvrtc& nvrtc = state_->nvrtc();
  require(!source.text.empty() && source.text.find('\0') == std::string::npos,
          "cannot compile {}: {}", source.name,
          source.text.empty() ? "there is no text" : "the text has a character of code 0");
  require_architecture(nvrtc, source);
  std::vector<std::string> options(std::begin(kNvrtcOptions), std::end(kNvrtcOptions));
  options.push_back(fmt::format("--gpu-architecture=sm_{}", source.architecture));
  for (const std::string& define : source.defines) {
    options.push_back("--define-macro=" + define);
  }
  NvrtcProgram program(nvrtc, source);
  const std::string problem = program.compile(options);
  require(problem.empty(), "cannot compile for compute capability {}: {}",
          capability_text(source.architecture), problem);
  return program.code();
}

}  // namespace sparsellm
