#include "tests/models/config_files.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/models/expect_error.h"
#include "tests/testing/temp_dir.h"

namespace sparsellm::testing {

using nlohmann::json;

std::string patched(std::string_view base, std::string_view patch) {
  json document = json::parse(base);
  const json changes = json::parse(patch);
  for (const auto& [key, value] : changes.items()) {
    if (value == "<remove>") {
      document.erase(key);
    } else {
      document[key] = value;
    }
  }
  return document.dump();
}

ModelConfig read_config(std::string_view config, std::string_view generation) {
  const TempDir dir;
  dir.write("config.json", config);
  if (!generation.empty()) {
    dir.write("generation_config.json", generation);
  }
  return read_model_config(dir.path());
}

void expect_refused(std::string_view base, const BadPatch& bad) {
  SCOPED_TRACE(bad.patch);
  const std::string message = error_of([&] { read_config(patched(base, bad.patch)); });
  expect_message(message, bad.fragment);
  expect_message(message, "config.json: ");
}

}  // namespace sparsellm::testing
