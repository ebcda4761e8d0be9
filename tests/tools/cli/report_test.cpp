#include "tools/cli/report.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <new>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "tests/testing/memory_limit.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/throws_error.h"
#include "tools/bench/environment.h"
#include "tools/cli/tool_main.h"

namespace sparsellm {
namespace {

using nlohmann::json;
using testing::throws_error;
using Kind = Column::Kind;

const Environment kEnvironment{
    {.key = "gpu", .value = "Card, \"big\""},
    {.key = "memory_gib", .value = 139.8},
    {.key = "gpus", .value = int64_t{8}},
};

std::vector<Column> columns() {
  return {{.key = "batch", .title = "batch", .unit = {}, .kind = Kind::number, .decimals = 0},
          {.key = "step_ms", .title = "step", .unit = "ms", .kind = Kind::spread, .decimals = 2},
          {.key = "share", .title = "share", .unit = "%", .kind = Kind::number, .decimals = 1},
          {.key = "note", .title = "note", .unit = {}, .kind = Kind::text, .decimals = 0}};
}

const std::vector<Row> kRows{
    {int64_t{1}, Spread{.median = 1.256, .min = 1.0, .max = 1.5}, 12.34, {}},
    {int64_t{16}, Spread{.median = 2.0, .min = 2.0, .max = 2.0}, 0.1, "a|b, \"c\"\nd \xc3\xa4"},
    {int64_t{64}, {}, std::numeric_limits<double>::quiet_NaN(), "out of memory: #1"},
};

std::string report_as(ReportFormat format, const std::vector<Row>& rows = kRows) {
  std::string text;
  ReportWriter writer(format, kEnvironment, [&](std::string_view part) { text += part; });
  writer.begin_table("steps", columns());
  for (const Row& row : rows) {
    writer.add_row(row);
  }
  writer.finish();
  writer.finish();  // does nothing
  return text;
}

TEST(CellDeathTest, ACopyWithoutMemoryThrows) {
  if (testing::kSanitized) {
    GTEST_SKIP() << "a sanitizer reserves more memory than the limit";
  }
  const auto copy_a_cell = [] {
    const Cell cell(std::string(40 << 20, 'x'));
    try {
      const Cell copy(cell);  // NOLINT(performance-unnecessary-copy-initialization)
    } catch (const std::bad_alloc&) {
      return;
    }
    std::exit(4);
  };
  EXPECT_EXIT(testing::exit_with_memory(64, copy_a_cell), ::testing::ExitedWithCode(0), "");
}

TEST(BenchReport, Table) {
  EXPECT_EQ(report_as(ReportFormat::table),
            "gpu         Card, \"big\"\n"
            "memory_gib  139.8\n"
            "gpus        8\n"
            "\n"
            "batch               step  share  note\n"
            "                      ms      %\n"
            "    1  1.26 (1.00..1.50)   12.3\n"
            "   16               2.00    0.1  a|b, \"c\" d \xc3\xa4\n"
            "   64                  -      -  out of memory: #1\n");
}

TEST(BenchReport, Markdown) {
  EXPECT_EQ(report_as(ReportFormat::md),
            "- gpu: Card, \"big\"\n"
            "- memory_gib: 139.8\n"
            "- gpus: 8\n"
            "\n"
            "| batch | step (ms) | share (%) | note |\n"
            "|---:|---:|---:|---|\n"
            "| 1 | 1.26 (1.00..1.50) | 12.3 | - |\n"
            "| 16 | 2.00 | 0.1 | a\\|b, \"c\" d \xc3\xa4 |\n"
            "| 64 | - | - | out of memory: #1 |\n");
}

TEST(BenchReport, Csv) {
  EXPECT_EQ(report_as(ReportFormat::csv),
            "# gpu: Card, \"big\"\n"
            "# memory_gib: 139.8\n"
            "# gpus: 8\n"
            "# table: steps\n"
            "batch,step_ms,step_ms_min,step_ms_max,share,note\n"
            "1,1.256,1,1.5,12.34,\n"
            "16,2,2,2,0.1,\"a|b, \"\"c\"\"\nd \xc3\xa4\"\n"
            "64,,,,,\"out of memory: #1\"\n");
}

TEST(BenchReport, Json) {
  const json report = json::parse(report_as(ReportFormat::json));
  EXPECT_EQ(report.at("environment"),
            (json{{"gpu", "Card, \"big\""}, {"memory_gib", 139.8}, {"gpus", 8}}));
  ASSERT_EQ(report.at("tables").size(), 1u);
  const json& table = report.at("tables")[0];
  EXPECT_EQ(table.at("name"), "steps");
  EXPECT_EQ(table.at("columns")[1], (json{{"key", "step_ms"}, {"title", "step"}, {"unit", "ms"}}));
  EXPECT_EQ(table.at("rows")[0], (json{{"batch", 1},
                                       {"step_ms", 1.256},
                                       {"step_ms_min", 1.0},
                                       {"step_ms_max", 1.5},
                                       {"share", 12.34},
                                       {"note", nullptr}}));
  EXPECT_EQ(table.at("rows")[1].at("note"), "a|b, \"c\"\nd \xc3\xa4");
  EXPECT_TRUE(table.at("rows")[2].at("step_ms_max").is_null());
  EXPECT_TRUE(table.at("rows")[2].at("share").is_null());
}

TEST(BenchReport, JsonLines) {
  std::istringstream text(report_as(ReportFormat::jsonl));
  std::vector<json> lines;
  for (std::string line; std::getline(text, line);) {
    lines.push_back(json::parse(line));
  }
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0].at("table"), "environment");
  EXPECT_EQ(lines[0].at("gpus"), 8);
  EXPECT_EQ(lines[2].at("table"), "steps");
  EXPECT_EQ(lines[2].at("batch"), 16);
}

TEST(BenchReport, BytesThatAreNotUtf8) {
  const std::string text =
      report_as(ReportFormat::jsonl, {{int64_t{1}, {}, {}, std::string("\xff")}});
  EXPECT_NE(text.find("\xef\xbf\xbd"), std::string::npos);
}

TEST(BenchReport, RowsOfLineFormatsGoOutAtOnce) {
  for (ReportFormat format : {ReportFormat::csv, ReportFormat::jsonl}) {
    std::string text;
    ReportWriter writer(format, kEnvironment, [&](std::string_view part) { text += part; });
    writer.begin_table("steps", columns());
    EXPECT_EQ(text, "");
    writer.add_row(kRows[0]);
    EXPECT_NE(text.find("1.256"), std::string::npos);
    writer.add_row(kRows[1]);
    EXPECT_NE(text.find("16"), std::string::npos);
  }
}

TEST(BenchReport, NothingWithoutRows) {
  for (ReportFormat format : {ReportFormat::table, ReportFormat::md, ReportFormat::csv,
                              ReportFormat::json, ReportFormat::jsonl}) {
    EXPECT_EQ(report_as(format, {}), "");
  }
}

TEST(BenchReport, SeveralTables) {
  for (ReportFormat format : {ReportFormat::table, ReportFormat::md, ReportFormat::csv,
                              ReportFormat::json, ReportFormat::jsonl}) {
    std::string text;
    ReportWriter writer(format, kEnvironment, [&](std::string_view part) { text += part; });
    writer.begin_table("steps", columns());
    writer.add_row(kRows[0]);
    writer.begin_table("empty", columns());
    writer.begin_table("other", {{.key = "x", .title = "x"}});
    writer.add_row({int64_t{4711}});
    writer.finish();
    EXPECT_NE(text.find("1.2"), std::string::npos) << text;
    EXPECT_NE(text.find("4711"), std::string::npos) << text;
    EXPECT_EQ(text.find("empty"), std::string::npos) << text;
    EXPECT_EQ(text.find("Card"), text.rfind("Card")) << text;  // the environment once
    if (format == ReportFormat::json) {
      EXPECT_EQ(json::parse(text).at("tables")[1].at("rows")[0].at("x"), 4711);
    }
  }
}

TEST(BenchReport, RowsThatDoNotFit) {
  ReportWriter writer(ReportFormat::csv, {}, [](std::string_view) {});
  writer.begin_table("steps", columns());
  EXPECT_TRUE(throws_error([&] { writer.add_row({int64_t{1}}); }, "a row of 1 cells"));
  EXPECT_TRUE(throws_error([&] { writer.add_row({int64_t{1}, 2.0, 3.0, {}}); }, "column step_ms"));
  EXPECT_TRUE(throws_error([&] { writer.add_row({"x", {}, {}, {}}); }, "column batch"));
}

TEST(BenchReport, FormatNames) {
  EXPECT_EQ(parse_report_format("--format", "table"), ReportFormat::table);
  EXPECT_EQ(parse_report_format("--format", "md"), ReportFormat::md);
  EXPECT_EQ(parse_report_format("--format", "csv"), ReportFormat::csv);
  EXPECT_EQ(parse_report_format("--format", "json"), ReportFormat::json);
  EXPECT_EQ(parse_report_format("--format", "jsonl"), ReportFormat::jsonl);
  EXPECT_THROW(parse_report_format("--format", ""), UsageError);
  EXPECT_TRUE(
      throws_error([] { parse_report_format("--format", "xml"); }, "--format \"xml\"; expected"));
}

TEST(Statistics, Quantiles) {
  const std::vector<double> values{4.0, 1.0, 3.0, 2.0};
  EXPECT_EQ(median(values), 2.5);
  EXPECT_EQ(mean(values), 2.5);
  EXPECT_EQ(quantile(values, 0.0), 1.0);
  EXPECT_EQ(quantile(values, 1.0), 4.0);
  EXPECT_DOUBLE_EQ(quantile(values, 0.9), 3.7);
  EXPECT_EQ(quantile({7.0}, 0.99), 7.0);
  EXPECT_DOUBLE_EQ(quantile({16.0, 1.0, 2.0, 8.0, 4.0}, 0.9), 8.0 + 0.6 * 8.0);
  EXPECT_DOUBLE_EQ(quantile({16.0, 1.0, 2.0, 8.0, 4.0}, 0.125), 1.5);
  const Spread spread = spread_of(values);
  EXPECT_EQ(spread.median, 2.5);
  EXPECT_EQ(spread.min, 1.0);
  EXPECT_EQ(spread.max, 4.0);
  EXPECT_TRUE(throws_error([] { spread_of({}); }, "no values"));
  EXPECT_TRUE(throws_error([] { mean({}); }, "no values"));
  EXPECT_TRUE(throws_error([] { quantile({1.0}, 1.5); }, "1.5"));
}

TEST(BenchEnvironment, SaysWhereAndHow) {
  const Environment environment = describe_environment(Device{}, {"tool", "--flag", "a b"});
  const auto value = [&](std::string_view key) -> std::string {
    for (const Property& property : environment) {
      if (property.key == key && std::holds_alternative<std::string>(property.value)) {
        return std::get<std::string>(property.value);
      }
    }
    return {};
  };
  EXPECT_NE(value("version"), "");
  EXPECT_NE(value("commit"), "");
  EXPECT_EQ(value("date").size(), std::string("2024-01-01T00:00:00Z").size());
  EXPECT_EQ(value("command"), "tool --flag 'a b'");
  EXPECT_EQ(value("device"), "cpu");
  EXPECT_EQ(value("gpu"), "");
}

TEST(BenchEnvironment, ShellLine) {
  EXPECT_EQ(shell_line({"a", "", "b c", "it's", "$x", "1,2"}), "a '' 'b c' 'it'\\''s' '$x' 1,2");
}

}  // namespace
}  // namespace sparsellm
