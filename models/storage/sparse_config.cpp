#include "models/storage/sparse_config.h"

#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "sparse/dense/dense.h"
#include "sparse/records_choice.h"
#include "sparse/registry.h"

namespace sparsellm {
namespace {

constexpr std::string_view kLibrary = "sparsellm";
constexpr int64_t kSparseConfigVersion = 1;

bool is_sparse_format(std::string_view name) {
  const auto formats = weight_formats();
  return name != dense_format().name() &&
         std::any_of(formats.begin(), formats.end(),
                     [&](const WeightFormat* format) { return format->name() == name; });
}

}  // namespace

std::string sparse_config(const std::set<std::string>& formats,
                          const std::set<std::string>& values) {
  constexpr std::string_view kBetween = R"(",")";
  const std::string narrow =
      values.empty() ? "" : fmt::format(R"(,"values":["{}"])", fmt::join(values, kBetween));
  return fmt::format(R"({{"library":"{}","version":{},"formats":["{}"]{}}})", kLibrary,
                     kSparseConfigVersion, fmt::join(formats, kBetween), narrow);
}

bool is_sparse_config(const JsonValue& value) {
  return value.is_object() && value["library"].is_string() &&
         value["library"].string() == kLibrary && !value["quant_method"].present();
}

void check_sparse_config(const JsonValue& value) {
  const JsonValue version = value["version"];
  if (version.integer(1, std::numeric_limits<int64_t>::max()) > kSparseConfigVersion) {
    version.refuse(fmt::format("{} is the newest that this build reads; use a newer one",
                               kSparseConfigVersion));
  }
  value.allow_only({"library", "version", "formats", "values"});
  const JsonValue formats = value["formats"];
  const std::vector<std::string> names = formats.strings();
  if (names.empty()) {
    formats.refuse("expected the names of sparse formats");
  }
  for (size_t i = 0; i < names.size(); ++i) {
    if (!is_sparse_format(names[i])) {
      formats.element(static_cast<int64_t>(i)).refuse("this build has no such sparse format");
    }
  }
  if (const JsonValue values = value["values"]; values.present()) {
    const std::vector<std::string> types = values.strings();
    for (size_t i = 0; i < types.size(); ++i) {
      if (!has_narrow_values(types[i])) {
        values.element(static_cast<int64_t>(i)).refuse("this build has no such type of values");
      }
    }
  }
}

}  // namespace sparsellm
