// The input is an encoding in tca_bme version 2 or 3 on its way to a GPU, piece by piece
// (tests/fuzz/record_input.h).

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/base/error.h"
#include "kernels/base/parallel.h"
#include "sparse/count_nonzeros.h"
#include "sparse/format.h"
#include "sparse/tca_bme/format/record_parts.h"
#include "sparse/tca_bme/format/record_sizes.h"
#include "sparse/tca_bme/quantized/quantized_parts.h"
#include "sparse/tca_bme/tca_bme.h"
#include "tests/fuzz/expect.h"
#include "tests/fuzz/fuzz_one.h"
#include "tests/fuzz/record_input.h"
#include "tests/sparse/tca_bme/check_in_pieces.h"

namespace sparsellm::fuzz {
namespace {

bool is_valid(const EncodedWeight& e) {
  try {
    tca_bme_format().validate(e);
    return true;
  } catch (const Error&) {
    return false;
  }
}

template <class Parts>
void check_sizes(const Parts& parts) {
  const tca_bme::RecordSizes sizes = tca_bme::record_sizes(parts.starts, parts.grid);
  expect(static_cast<int32_t>(sizes.largest) <= parts.layout.max_record_bytes() &&
             sizes.common <= sizes.largest,
         "records no larger than any of their layout");
  for (int64_t r = 0; r < parts.grid.count(); ++r) {
    expect(std::ssize(parts.record(r)) >= parts.layout.header_bytes(), "masks and offsets");
  }
}

// Narrow values, which their scales may make infinite or zero, are compared as codes.
void use_quantized(const EncodedWeight& e) {
  ThreadPool caller(1);
  const QuantizedMatrix q = tca_bme::quantized_of(e, caller);
  expect(std::ranges::count_if(q.codes, [](int8_t code) { return code != 0; }) == e.nonzeros,
         "as many codes as the header tells");
  const OwnedTensor dense = tca_bme_format().decode(e, caller);
  expect(count_nonzeros(dense.view, caller) <= e.nonzeros, "no more nonzeros than codes");
  const EncodedWeight again = tca_bme::encode_quantized(q, e.dtype, caller);
  const QuantizedMatrix read = tca_bme::quantized_of(again, caller);
  expect(read.codes == q.codes && read.scales == q.scales, "the same codes and scales");
}

// What kernels take from what got to the device.
void use(const EncodedWeight& e) {
  const bool is_empty = e.rows == 0 || e.columns == 0;
  if (tca_bme::is_quantized(e)) {
    check_sizes(tca_bme::QuantizedParts(e));
  } else {
    check_sizes(tca_bme::RecordParts(e));
  }
  if (is_empty) {
    expect(e.nonzeros == 0, "no nonzeros without elements");  // of as many rows as there may be
    return;
  }
  if (tca_bme::is_quantized(e)) {
    use_quantized(e);
    return;
  }
  ThreadPool caller(1);
  const OwnedTensor dense = tca_bme_format().decode(e, caller);
  expect(count_nonzeros(dense.view, caller) == e.nonzeros, "as many nonzeros as the header tells");
}

}  // namespace

void fuzz_one(std::string_view input) {
  const RecordInput read = read_record_input(input);
  const bool valid = is_valid(read.weight);
  try {
    expect(testing::check_in_pieces(read.weight, read.most_bytes, read.seed), "copies of all");
  } catch (const Error&) {
    expect(!valid, "that pieces are refused only of what is refused as a whole");
    throw;
  }
  expect(valid, "that what is refused as a whole is refused in pieces");
  use(read.weight);
}

}  // namespace sparsellm::fuzz
