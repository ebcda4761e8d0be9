#include "tools/bench/matrix_list.h"

#include <limits>
#include <set>
#include <string>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"

namespace sparsellm {
namespace {

constexpr int64_t kMaxListBytes = int64_t{1} << 20;
constexpr int kMaxListDepth = 4;
constexpr int64_t kMaxSeed = std::numeric_limits<int64_t>::max();
constexpr float kSmallestShare = 1e-6f;  // of a band
constexpr float kLargestShare = 1.0f - 1e-6f;
constexpr float kMaxDeviation = 8.0f;

MatrixClass class_of(const JsonValue& value) {
  try {
    return parse_matrix_class(value.string());
  } catch (const Error&) {
    value.refuse("expected one of " + matrix_class_names());
  }
}

// The parameters of one class are unknown keys to the others.
void allow_keys(const JsonValue& entry, MatrixClass matrix_class) {
  switch (matrix_class) {
    case MatrixClass::banded:
      return entry.allow_only(
          {"name", "class", "rows", "columns", "nonzeros", "seed", "band_density"});
    case MatrixClass::blocks:
      return entry.allow_only(
          {"name", "class", "rows", "columns", "nonzeros", "seed", "block_rows", "block_columns"});
    case MatrixClass::skewed:
      return entry.allow_only(
          {"name", "class", "rows", "columns", "nonzeros", "seed", "length_deviation"});
    case MatrixClass::empty_rows:
      return entry.allow_only(
          {"name", "class", "rows", "columns", "nonzeros", "seed", "empty_rows"});
    case MatrixClass::stencil:
    case MatrixClass::power_law:
    case MatrixClass::uniform:
    case MatrixClass::arrow:
      return entry.allow_only({"name", "class", "rows", "columns", "nonzeros", "seed"});
  }
}

MatrixSource read_entry(const JsonValue& entry) {
  constexpr int64_t kMostRows = CompressedRows::kMaxSize;
  MatrixSource source;
  RandomMatrix& what = source.random;
  what.matrix_class = class_of(entry["class"]);
  allow_keys(entry, what.matrix_class);
  source.name = entry["name"].string();
  if (source.name.empty()) {
    entry["name"].refuse("a matrix has a name");
  }
  what.rows = entry["rows"].integer(1, kMostRows);
  what.columns = entry["columns"].integer(1, kMostRows);
  what.nonzeros = entry["nonzeros"].integer(1, int64_t{1} << 40);
  what.seed = static_cast<uint64_t>(entry["seed"].integer(0, kMaxSeed));
  const auto number = [&](const char* key, float min, float max, double& value) {
    if (entry[key].present()) {
      value = static_cast<double>(entry[key].number(min, max));
    }
  };
  number("band_density", kSmallestShare, 1.0f, what.band_density);
  number("length_deviation", 0.0f, kMaxDeviation, what.length_deviation);
  number("empty_rows", 0.0f, kLargestShare, what.empty_rows);
  what.block_rows = entry["block_rows"].integer(1, kMostRows, what.block_rows);
  what.block_columns = entry["block_columns"].integer(1, kMostRows, what.block_columns);
  try {
    check_random_matrix(what);
  } catch (const Error& error) {
    fail("{}: {}", entry.name(), error.what());
  }
  return source;
}

}  // namespace

std::vector<MatrixSource> read_matrix_list(const InputFile& file) {
  const JsonDocument document = read_json_file(file, kMaxListBytes, kMaxListDepth);
  const JsonValue list(document, file.string());
  list.allow_only({"description", "matrices"});
  if (list["description"].present()) {
    list["description"].string();
  }
  const JsonValue matrices = list["matrices"];
  if (!matrices.is_array() || matrices.size() == 0) {
    matrices.refuse("expected an array of matrices");
  }
  std::vector<MatrixSource> sources;
  std::set<std::string> names;
  for (int64_t i = 0; i < matrices.size(); ++i) {
    sources.push_back(read_entry(matrices.element(i)));
    if (!names.insert(sources.back().name).second) {
      matrices.element(i)["name"].refuse("another matrix has this name");
    }
  }
  return sources;
}

}  // namespace sparsellm
