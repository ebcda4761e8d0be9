#pragma once

#include <cstdint>
#include <string_view>

#include "sparse/tca_bme/format/record_layout.h"

namespace sparsellm::tca_bme {

// What users choose records for, by the texts "speed" and "size".
enum class RecordsFor : uint8_t {
  speed,  // the layout in which products are the fastest
  // The same without pairs: single values instead, in as many chunks. From 79 % zeros on, where
  // pairs begin, to some 97 % they take fewer bytes.
  size,
};

// Throws Error for another text; an empty one is speed.
RecordsFor records_for(std::string_view text);
std::string_view name_of(RecordsFor goal);

constexpr RecordLayout record_layout_for(int64_t elements, int64_t nonzeros, RecordsFor goal) {
  RecordLayout layout = record_layout_for(elements, nonzeros);
  if (goal == RecordsFor::size) {
    layout.values = RecordValues::single;
  }
  return layout;
}

}  // namespace sparsellm::tca_bme
