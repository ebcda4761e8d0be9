#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "kernels/base/kernel_compiler.h"

namespace sparsellm {

// Code of kernels that were compiled when a program ran, in a directory that several processes may
// share: a file for each source, named by a digest of all that its code depends on (text, macros,
// architecture, compiler). Nothing is ever removed but by the user.
//   u8 [8]    "SpKernel"
//   u32       version of the file, 1
//   u32       CRC-32C of all that follows
//   u8 [16]   the digest
//   u64       bytes of code
//   u8 []     code
// A file that is damaged, cut off or of something else costs a line of warning and a compilation,
// and is replaced. Several threads may call.
class KernelCache {
 public:
  struct Options {
    std::filesystem::path directory = {};  // made when it is needed; empty: in memory only
    // Takes a line about a file that cannot be used, or the directory, of which there is one line
    // alone, if nothing can be written into it. Several threads may call it at once.
    std::function<void(const std::string&)> warn = {};
  };

  KernelCache(KernelCompiler& compiler, Options options);
  ~KernelCache();
  KernelCache(const KernelCache&) = delete;
  KernelCache& operator=(const KernelCache&) = delete;

  // The code of a source, as long as this object is there. In a process one is read or compiled
  // once: other threads that ask for it meanwhile wait, those that ask for others do not. Throws
  // what the compiler throws, and whoever has waited, or asks later, tries again.
  std::span<const std::byte> get(const KernelSource& source);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Where the code is kept that belongs to the choices in the file of a TuneCache: a directory beside
// it. Empty if there is no file.
std::filesystem::path kernel_cache_directory(const std::filesystem::path& tune_cache);

}  // namespace sparsellm
