#include <cstdio>

#include "engine/engine.h"
#include "tools/convert/convert.h"

int main() {
  const sparsellm::EngineOptions options;
  std::printf("%d\n", static_cast<int>(options.max_requests));
}
