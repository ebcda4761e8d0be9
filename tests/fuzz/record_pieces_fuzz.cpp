// The input is an encoding in tca_bme version 2 on its way to a GPU, piece by piece
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

// What kernels take from what got to the device.
void use(const EncodedWeight& e) {
  const tca_bme::RecordParts parts(e);
  const tca_bme::RecordSizes sizes = tca_bme::record_sizes(parts.starts, parts.grid);
  expect(static_cast<int32_t>(sizes.largest) <= parts.layout.max_record_bytes() &&
             sizes.common <= sizes.largest,
         "records no larger than any of their layout");
  for (int64_t r = 0; r < parts.grid.count(); ++r) {
    expect(std::ssize(parts.record(r)) >= parts.layout.header_bytes(), "masks and offsets");
  }
  if (parts.grid.count() == 0) {
    expect(e.nonzeros == 0, "no nonzeros without elements");  // of as many rows as there may be
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
