#include "tools/cli/report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "kernels/base/json_writer.h"
#include "tools/cli/printable.h"
#include "tools/cli/tool_main.h"

namespace sparsellm {
namespace {

struct FormatName {
  std::string_view name;
  ReportFormat format;
};
constexpr std::array kFormatNames{
    FormatName{"table", ReportFormat::table}, FormatName{"md", ReportFormat::md},
    FormatName{"csv", ReportFormat::csv},     FormatName{"json", ReportFormat::json},
    FormatName{"jsonl", ReportFormat::jsonl},
};

constexpr std::string_view kNothing = "-";  // in tables

bool is_nothing(const Cell& cell) { return std::holds_alternative<NoValue>(cell); }

bool fits(const Cell& cell, Column::Kind kind) {
  switch (kind) {
    case Column::Kind::text:
      return is_nothing(cell) || std::holds_alternative<std::string>(cell);
    case Column::Kind::number:
      return is_nothing(cell) || std::holds_alternative<int64_t>(cell) ||
             std::holds_alternative<double>(cell);
    case Column::Kind::spread:
      return is_nothing(cell) || std::holds_alternative<Spread>(cell);
  }
  return false;
}

std::string fixed(double value, int decimals) {
  return std::isfinite(value) ? fmt::format("{:.{}f}", value, decimals) : std::string(kNothing);
}

// For a reader.
std::string shown(const Cell& cell, int decimals) {
  if (const auto* integer = std::get_if<int64_t>(&cell)) {
    return fmt::format("{}", *integer);
  }
  if (const auto* number = std::get_if<double>(&cell)) {
    return fixed(*number, decimals);
  }
  if (const auto* text = std::get_if<std::string>(&cell)) {
    return one_line(*text);
  }
  if (const auto* spread = std::get_if<Spread>(&cell)) {
    const std::string middle = fixed(spread->median, decimals);
    return spread->min == spread->max
               ? middle
               : fmt::format("{} ({}..{})", middle, fixed(spread->min, decimals),
                             fixed(spread->max, decimals));
  }
  return std::string(kNothing);
}

// In full precision; a value of the environment has no column that says how many decimals it has.
std::string shown(const Property& property) {
  const auto* number = std::get_if<double>(&property.value);
  return number != nullptr && std::isfinite(*number) ? fmt::format("{}", *number)
                                                     : shown(property.value, 0);
}

// Columns on a terminal, at least as good as counting bytes.
size_t width(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

std::string padded(const std::string& text, size_t columns, bool left) {
  const std::string space(columns - std::min(columns, width(text)), ' ');
  return left ? text + space : space + text;
}

std::string without_trailing_spaces(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

std::string aligned(const std::vector<Column>& columns, const std::vector<Row>& rows) {
  std::vector<std::vector<std::string>> lines(2);
  for (const Column& column : columns) {
    lines[0].push_back(column.title);
    lines[1].push_back(column.unit);
  }
  for (const Row& row : rows) {
    std::vector<std::string>& line = lines.emplace_back();
    for (size_t i = 0; i < columns.size(); ++i) {
      line.push_back(is_nothing(row[i]) && columns[i].kind == Column::Kind::text
                         ? ""
                         : shown(row[i], columns[i].decimals));
    }
  }
  std::string text;
  for (const std::vector<std::string>& line : lines) {
    std::string joined;
    for (size_t i = 0; i < columns.size(); ++i) {
      size_t widest = 0;
      for (const std::vector<std::string>& other : lines) {
        widest = std::max(widest, width(other[i]));
      }
      joined +=
          (i == 0 ? "" : "  ") + padded(line[i], widest, columns[i].kind == Column::Kind::text);
    }
    text += without_trailing_spaces(std::move(joined)) + "\n";
  }
  return text;
}

std::string markdown_cell(const std::string& text) {
  std::string escaped;
  for (char c : text) {
    if (std::string_view("\\|`*<").find(c) != std::string_view::npos) {
      escaped += '\\';
    }
    escaped += c;
  }
  return escaped;
}

std::string markdown(const std::vector<Column>& columns, const std::vector<Row>& rows) {
  std::string titles = "|";
  std::string alignments = "|";
  for (const Column& column : columns) {
    titles += fmt::format(" {}{} |", markdown_cell(column.title),
                          column.unit.empty() ? "" : markdown_cell(" (" + column.unit + ")"));
    alignments += column.kind == Column::Kind::text ? "---|" : "---:|";
  }
  std::string text = titles + "\n" + alignments + "\n";
  for (const Row& row : rows) {
    text += "|";
    for (size_t i = 0; i < columns.size(); ++i) {
      text += fmt::format(" {} |", markdown_cell(shown(row[i], columns[i].decimals)));
    }
    text += "\n";
  }
  return text;
}

// Readers that take # for the begin of a comment leave what is in quotes alone.
std::string csv_field(std::string_view text) {
  if (text.find_first_of(",\"\r\n#") == std::string_view::npos) {
    return std::string(text);
  }
  std::string quoted = "\"";
  for (char c : text) {
    quoted += c == '"' ? "\"\"" : std::string(1, c);
  }
  return quoted + "\"";
}

std::string csv_number(double value) {
  return std::isfinite(value) ? fmt::format("{}", value) : "";
}

// Calls add(key, value) with what a column becomes in csv and json; a value is nothing, an integer,
// a finite or infinite double, or a text.
template <class Add>
void expand(const Column& column, const Cell& cell, Add&& add) {
  if (column.kind != Column::Kind::spread) {
    add(column.key, cell);
    return;
  }
  const auto* spread = std::get_if<Spread>(&cell);
  const auto part = [&](double Spread::*member) -> Cell {
    return spread != nullptr ? Cell(spread->*member) : Cell();
  };
  add(column.key, part(&Spread::median));
  add(column.key + "_min", part(&Spread::min));
  add(column.key + "_max", part(&Spread::max));
}

std::string csv_value(const Cell& cell) {
  if (const auto* number = std::get_if<double>(&cell)) {
    return csv_number(*number);
  }
  if (const auto* integer = std::get_if<int64_t>(&cell)) {
    return fmt::format("{}", *integer);
  }
  const auto* text = std::get_if<std::string>(&cell);
  return text != nullptr ? csv_field(*text) : "";
}

std::string csv_line(const std::vector<std::string>& fields) {
  std::string line;
  for (size_t i = 0; i < fields.size(); ++i) {
    line += (i == 0 ? "" : ",") + fields[i];
  }
  return line + "\n";
}

std::string csv_head(const std::vector<Column>& columns) {
  std::vector<std::string> fields;
  for (const Column& column : columns) {
    expand(column, {},
           [&](const std::string& key, const Cell&) { fields.push_back(csv_field(key)); });
  }
  return csv_line(fields);
}

std::string csv_row(const std::vector<Column>& columns, const Row& row) {
  std::vector<std::string> fields;
  for (size_t i = 0; i < columns.size(); ++i) {
    expand(columns[i], row[i],
           [&](const std::string&, const Cell& cell) { fields.push_back(csv_value(cell)); });
  }
  return csv_line(fields);
}

void add_value(const Cell& cell, JsonWriter& json) {
  if (const auto* number = std::get_if<double>(&cell)) {
    json.value(*number);
  } else if (const auto* integer = std::get_if<int64_t>(&cell)) {
    json.value(*integer);
  } else if (const auto* text = std::get_if<std::string>(&cell)) {
    json.value(*text);
  } else {
    json.null();
  }
}

void add_members(const std::vector<Column>& columns, const Row& row, JsonWriter& json) {
  for (size_t i = 0; i < columns.size(); ++i) {
    expand(columns[i], row[i], [&](const std::string& key, const Cell& cell) {
      json.key(key);
      add_value(cell, json);
    });
  }
}

void add_members(const Environment& environment, JsonWriter& json) {
  for (const Property& property : environment) {
    json.key(property.key);
    add_value(property.value, json);
  }
}

}  // namespace

ReportFormat parse_report_format(std::string_view flag, std::string_view text) {
  for (const FormatName& known : kFormatNames) {
    if (known.name == text) {
      return known.format;
    }
  }
  throw UsageError(fmt::format("{} {}; expected table, md, csv, json or jsonl", flag, quote(text)));
}

ReportWriter::ReportWriter(ReportFormat format, Environment environment, Sink sink)
    : format_(format), environment_(std::move(environment)), sink_(std::move(sink)) {}

void ReportWriter::begin_table(std::string name, std::vector<Column> columns) {
  end_table();
  table_ = {.name = std::move(name), .columns = std::move(columns), .rows = {}};
}

void ReportWriter::add_row(Row row) {
  require(row.size() == table_.columns.size(),
          "a row of {} cells in table {}, which has {} columns", row.size(), table_.name,
          table_.columns.size());
  for (size_t i = 0; i < row.size(); ++i) {
    require(fits(row[i], table_.columns[i].kind), "a cell of another kind in column {} of table {}",
            table_.columns[i].key, table_.name);
  }
  const bool by_line = format_ == ReportFormat::csv || format_ == ReportFormat::jsonl;
  if (by_line) {
    write_environment();
  }
  if (format_ == ReportFormat::csv) {
    if (table_.rows.empty()) {
      sink_(fmt::format("# table: {}\n", one_line(table_.name)) + csv_head(table_.columns));
    }
    sink_(csv_row(table_.columns, row));
  }
  if (format_ == ReportFormat::jsonl) {
    JsonWriter json;
    json.object().member("table", table_.name);
    add_members(table_.columns, row, json);
    json.end();
    sink_(std::move(json).text() + "\n");
  }
  table_.rows.push_back(std::move(row));
}

void ReportWriter::finish() {
  if (finished_) {
    return;
  }
  finished_ = true;
  end_table();
  if (!done_.empty()) {
    write_json();
  }
}

void ReportWriter::write_environment() {
  if (started_) {
    return;
  }
  started_ = true;
  size_t widest = 0;
  for (const Property& property : environment_) {
    widest = std::max(widest, width(property.key));
  }
  std::string text;
  for (const Property& property : environment_) {
    const std::string value = shown(property);
    switch (format_) {
      case ReportFormat::table:
        text += padded(property.key, widest, true) + "  " + value + "\n";
        break;
      case ReportFormat::md:
        text += fmt::format("- {}: {}\n", markdown_cell(property.key), markdown_cell(value));
        break;
      case ReportFormat::csv:
        text += fmt::format("# {}: {}\n", property.key, value);
        break;
      case ReportFormat::json:
      case ReportFormat::jsonl:
        break;
    }
  }
  if (format_ == ReportFormat::jsonl) {
    JsonWriter json;
    json.object().member("table", "environment");
    add_members(environment_, json);
    json.end();
    text = std::move(json).text() + "\n";
  }
  sink_(text);
}

void ReportWriter::write_json() {
  JsonWriter json(/*indent=*/2);
  json.object().key("environment").object();
  add_members(environment_, json);
  json.end().key("tables").array();
  for (const Table& table : done_) {
    json.object().member("name", table.name).key("columns").array();
    for (const Column& column : table.columns) {
      json.object()
          .member("key", column.key)
          .member("title", column.title)
          .member("unit", column.unit)
          .end();
    }
    json.end().key("rows").array();
    for (const Row& row : table.rows) {
      json.object();
      add_members(table.columns, row, json);
      json.end();
    }
    json.end().end();
  }
  json.end().end();
  sink_(std::move(json).text() + "\n");
}

void ReportWriter::end_table() {
  if (table_.rows.empty()) {
    return;
  }
  if (format_ == ReportFormat::table) {
    write_environment();
    sink_("\n" + aligned(table_.columns, table_.rows));
  } else if (format_ == ReportFormat::md) {
    write_environment();
    sink_("\n" + markdown(table_.columns, table_.rows));
  } else if (format_ == ReportFormat::json) {
    done_.push_back(std::move(table_));
  }
  table_ = {};
}

}  // namespace sparsellm
