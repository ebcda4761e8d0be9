#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace sparsellm::testing {

// Reads compile_commands.json. Follows the includes of every .cpp in it through the files of the
// project, and says of each CUDA header that one reaches, where its compile command has no folder
// (-I, -isystem) with that header: "SOURCE reaches <HEADER> (...)". The folders of `found_always`
// are those that the compiler searches anyway. A source's text is read from where the command says.
struct CudaIncludes {
  int sources = 0;     // .cpp in the file
  int reach_cuda = 0;  // of them
  std::vector<std::string> missing;
};
CudaIncludes check_cuda_includes(const std::filesystem::path& compile_commands,
                                 const std::vector<std::filesystem::path>& found_always);

// Whether an include of this name is one of CUDA's: of its toolkit, or of NCCL.
bool is_cuda_header(const std::string& target);

}  // namespace sparsellm::testing
