#include <cstdio>

#include "engine/conversion/convert.h"
#include "engine/engine.h"

int main() {
  const sparsellm::EngineOptions options;
  std::printf("%d\n", static_cast<int>(options.max_requests));
}
