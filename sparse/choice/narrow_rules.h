#pragma once

#include <limits>
#include <string_view>

#include "sparse/choice/format_rules.h"
#include "sparse/quantize/quantized_matrix.h"

namespace sparsellm {

// What "auto" takes on a GPU, where nothing is measured, for weights whose values users round to
// fewer bits (sparse/records_choice.h). FormatRules are of values of 16 bits, and say nothing of
// these: with fewer there is less to read at any density.

// From which share of zeros on it is bitmaps over such values, tca_bme, instead of the dense format
// that holds them. Bitmaps take a bit more for each element and save the bits of zeros, but they
// have to be decoded.
// - i8: they take fewer bytes from 16 % of zeros on; decoding is paid for later. 28672 x 7168
//   with 30 and 40 % zeros takes 51.0 and 45.9 us with one token on an H200, 54.6 and 50.1 with
//   eight; without bitmaps 50.5 and 52.7.
// - i4: never. At every share of zeros that was measured the 4 bits of all elements are read and
//   multiplied faster: 28672 x 7168 with 60 % zeros and one token takes 29.8 us on an H200, with
//   bitmaps 43.2 us. These take fewer bytes, for which fit_into() (models/format_choice.h) and
//   "smallest" take them.
// - f8: always, for there is no dense format.
constexpr double least_zeros_for_bitmaps(ValueType type) {
  switch (type) {
    case ValueType::i8:
      return 0.35;
    case ValueType::i4:
      return std::numeric_limits<double>::infinity();
    case ValueType::f8:
      break;
  }
  return 0.0;
}

// The format of a weight that is to have these narrow values: the one above, or else the other,
// whichever can be expected to take fewer bytes than values of 16 bits; dense where neither does,
// as where they do not hold the dtype. Throws Error for records without narrow values.
const WeightFormat& choose_narrow_format(const WeightSize& weight, DType dtype,
                                         std::string_view records);

}  // namespace sparsellm
