// Ends a program in time on a CPU that has not what it was compiled for, where it would be killed
// for an illegal instruction.

#include <unistd.h>

#include <cerrno>
#include <cstddef>

#include "kernels/base/cpu_features.h"
#include "tools/cli/cpu_requirements.h"

namespace sparsellm {
namespace {

constexpr int kFailed = 1;  // as tool_main() returns it

// The line is written as a whole, or the end of it is missing.
struct Line {
  char text[512];
  size_t used = 0;

  void append(const char* word) {
    for (; *word != '\0' && used + 1 < sizeof(text); ++word) {
      text[used++] = *word;
    }
  }
};

// Before the constructors of static objects, which are code like any other.
[[gnu::constructor(101)]] void check_cpu() {
  char missing[256];
  if (missing_cpu_features(kRequiredCpuFeatures, read_cpu_words(), missing, sizeof(missing)) == 0) {
    return;
  }
  Line line;
  line.append(program_invocation_short_name);
  line.append(": this CPU, or the system on it, has no ");
  line.append(missing);
  line.append(", for which this program was compiled");
  if (kCpuArch[0] != '\0') {
    line.append(" (-march=");
    line.append(kCpuArch);
    line.append(")");
  }
  line.append("; build it on this machine with -DSPARSELLM_CPU_ARCH=native");
  line.text[line.used++] = '\n';
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.text, line.used);
  ::_exit(kFailed);
}

}  // namespace
}  // namespace sparsellm
