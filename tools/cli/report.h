#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tools/cli/statistics.h"

namespace sparsellm {

// How a report is written:
//   table  for a terminal: aligned columns, units below the titles; a spread is
//          "median (min..max)", or one number where all are the same
//   md     the same as GitHub-flavoured Markdown
//   csv    RFC 4180, full precision; a spread makes three columns, KEY, KEY_min and KEY_max; lines
//          that begin with # come before each table: the environment, and the table's name
//   json   one object: {"environment": {...}, "tables": [{"name", "columns", "rows": [{...}]}]},
//          with the three keys of a spread as in csv
//   jsonl  one object a line: the environment, then each row, with the table's name in "table"
enum class ReportFormat : uint8_t { table, md, csv, json, jsonl };

// "table", "md", "csv", "json" or "jsonl". Throws UsageError that names `flag`.
ReportFormat parse_report_format(std::string_view flag, std::string_view text);

// A value that is not known. Its copy is not trivial on purpose: libstdc++ 12 takes a variant of
// strings and trivial types for one that always has a value, and when a string cannot be copied for
// want of memory, destroys the copy that was not made.
struct NoValue {
  NoValue() = default;
  NoValue(const NoValue&) noexcept {}
  NoValue& operator=(const NoValue&) noexcept { return *this; }
};

// A number that is not finite is written as NoValue is.
using Cell = std::variant<NoValue, int64_t, double, Spread, std::string>;
using Row = std::vector<Cell>;

// Of a figure that is 0 where it does not exist.
inline Cell known_cell(double figure) { return figure > 0.0 ? Cell(figure) : Cell(); }

struct Column {
  enum class Kind : uint8_t { text, number, spread };

  std::string key;        // in csv and json, with the unit: decode_ms
  std::string title;      // in tables: decode
  std::string unit = {};  // in tables: ms; empty: none
  Kind kind = Kind::number;
  int decimals = 0;  // of a double and a spread, in tables
};

// A fact about where and how the figures came about.
struct Property {
  std::string key;
  Cell value;
};
using Environment = std::vector<Property>;

// Writes an environment, then tables one after the other. Rows of csv and jsonl go out as they
// come, so that a run that is ended from outside leaves them behind; the other formats wait for the
// end of the table. Nothing is written before the first row.
class ReportWriter {
 public:
  using Sink = std::function<void(std::string_view text)>;

  ReportWriter(ReportFormat format, Environment environment, Sink sink);

  // Ends the table before it.
  void begin_table(std::string name, std::vector<Column> columns);
  // One cell for each column. Throws Error for another number of cells, or for a cell that is not
  // of the column's kind.
  void add_row(Row row);
  // Ends the last table; nothing may follow.
  void finish();

 private:
  struct Table {
    std::string name;
    std::vector<Column> columns;
    std::vector<Row> rows;
  };

  void write_environment();  // the first time that it is called
  void write_json();
  void end_table();

  ReportFormat format_;
  Environment environment_;
  Sink sink_;
  Table table_;
  std::vector<Table> done_;  // of json
  bool started_ = false;     // the environment is out
  bool finished_ = false;
};

}  // namespace sparsellm
