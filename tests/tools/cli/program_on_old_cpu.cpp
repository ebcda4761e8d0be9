// A program that takes its CPU for a Nehalem of 2008; cpu_features_test runs it.

#include <cstdio>

#include "kernels/base/cpu_features.h"

namespace sparsellm {

CpuWords read_cpu_words() { return {.leaf1_ecx = 0x0098e3fd & ~(1u << 27)}; }

namespace {

struct Speaker {
  Speaker() { std::printf("static objects are made\n"); }
};
const Speaker kSpeaker;

}  // namespace
}  // namespace sparsellm

int main() { std::printf("main\n"); }
