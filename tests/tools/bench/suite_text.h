#pragma once

#include <filesystem>
#include <string>

#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"
#include "tools/bench/suite/suite_file.h"

// Suites for tests.
namespace sparsellm::testing {

inline std::filesystem::path suite_test_configs() { return source_dir() / "configs"; }

// Of a suite with these groups, and perhaps figures.
inline std::string suite_text(const std::string& groups, const std::string& stated = "") {
  return R"({"title": "T", "source": "S", "gpu": "A100", "framework": "F",
             "metric": "tokens_per_gpu_second", "cells": [)" +
         groups + "]" + (stated.empty() ? "" : R"(, "stated": [)" + stated + "]") + "}";
}

inline Suite read_suite_of(const std::string& text, SuiteFormats formats = SuiteFormats::listed) {
  const TempDir folder;
  return read_suite(folder.write("suite.json", text), suite_test_configs(), formats);
}

}  // namespace sparsellm::testing
