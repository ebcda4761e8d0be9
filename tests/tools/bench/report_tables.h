#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "tools/cli/report.h"

namespace sparsellm::testing {

// The tables of a report by name, each an array of rows.
class Report {
 public:
  ReportWriter& writer() { return writer_; }

  nlohmann::json table(const std::string& name) {
    writer_.finish();
    const nlohmann::json report = nlohmann::json::parse(text_);
    for (const nlohmann::json& table : report.at("tables")) {
      if (table.at("name") == name) {
        return table.at("rows");
      }
    }
    return nlohmann::json::array();
  }

 private:
  std::string text_;
  ReportWriter writer_{ReportFormat::json, {}, [this](std::string_view part) { text_ += part; }};
};

}  // namespace sparsellm::testing
