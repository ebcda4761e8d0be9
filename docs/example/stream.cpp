// Continues a text and prints what comes as it comes: stream MODEL TEXT

#include <cstdio>
#include <exception>

#include "engine/engine.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s MODEL TEXT\n", argv[0]);
    return 2;
  }
  try {
    sparsellm::EngineOptions options;
    options.device = sparsellm::parse_device("auto");
    sparsellm::Engine engine = sparsellm::Engine::load(argv[1], options);

    sparsellm::Request request;
    request.prompt = engine.tokenizer().encode(argv[2], {});
    request.max_tokens = 100;
    engine.submit(request, [](const sparsellm::TokenEvent& event) {
      std::fwrite(event.text.data(), 1, event.text.size(), stdout);
      std::fwrite(event.error.data(), 1, event.error.size(), stderr);
      std::fflush(stdout);
    });
    while (engine.step()) {
    }
    std::puts("");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
