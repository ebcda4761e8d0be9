#pragma once

#include <istream>
#include <string>
#include <vector>

namespace sparsellm::testing {

// One line of #include.
struct Include {
  std::string target;   // as it is written: "kernels/gemm.h", "vector"
  bool angled = false;  // <target>
};

// Those in a source's text, in order, whatever #if they stand under.
std::vector<Include> read_includes(std::istream& text);

}  // namespace sparsellm::testing
