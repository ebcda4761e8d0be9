#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace sparsellm {

// An option that takes a list such as 1,8,16 in one word.
template <class T>
CLI::Option* add_list(CLI::App& app, const std::string& name, std::vector<T>& values,
                      const std::string& description) {
  return app.add_option(name, values, description)->delimiter(',')->allow_extra_args(false);
}

}  // namespace sparsellm
