#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "engine/engine.h"

namespace sparsellm {

// The flags that say which model runs where; shared by all tools.
struct ModelArgs {
  std::string model;
  std::string device = "auto";
  int threads = 0;
  bool quiet = false;
};
void add_model_args(CLI::App& app, ModelArgs& args);

// Loads with a progress bar; `options` carries what is not in args.
Engine load_engine(const ModelArgs& args, EngineOptions options);

}  // namespace sparsellm
