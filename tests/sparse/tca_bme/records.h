#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sparse/tca_bme/format/record_parts.h"
#include "sparse/tca_bme/tca_bme.h"

// What tests of records (sparse/tca_bme/format/record_layout.h) share.
namespace sparsellm::testing {

inline constexpr tca_bme::RecordLayout kSingle4{.chunks = 4,
                                                .values = tca_bme::RecordValues::single};
inline constexpr tca_bme::RecordLayout kSingle8{.chunks = 8,
                                                .values = tca_bme::RecordValues::single};
inline constexpr tca_bme::RecordLayout kPair8{.chunks = 8, .values = tca_bme::RecordValues::pair};
struct RecordCase {
  tca_bme::RecordLayout layout;
  double density;            // of a random matrix, far enough from the borders of the layout
  std::string_view records;  // what it is encoded for (records_for.h)
};
inline constexpr RecordCase kLayouts[] = {{kSingle4, 0.5, ""},      {kSingle8, 0.25, ""},
                                          {kPair8, 0.08, ""},       {kSingle4, 0.5, "size"},
                                          {kSingle8, 0.25, "size"}, {kSingle8, 0.08, "size"}};

inline const WeightFormat& format() { return tca_bme_format(); }

inline EncodedWeight encode(const Tensor& w, std::string_view records = {}) {
  ThreadPool threads(1);
  return format().encode(w, {.layout = std::string(records)}, threads);
}

template <class T>
std::vector<T> part_values(const EncodedWeight& e, std::string_view name) {
  const std::span<const T> values = e.part(name).values<T>();
  return {values.begin(), values.end()};
}

}  // namespace sparsellm::testing
