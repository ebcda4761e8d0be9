#include "tests/sparse/tca_bme/check_in_pieces.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "sparse/format.h"
#include "sparse/tca_bme/host/record_uploads.h"
#include "sparse/tca_bme/tca_bme.h"

namespace sparsellm::testing {

namespace {

template <class Checker>
bool check_records_in_pieces(const EncodedWeight& e, int64_t most_bytes, uint64_t seed) {
  EncodedWeight view = view_of(e);
  const auto part = std::make_shared<RecordUpload<Checker>>(WeightPart{.weight = &view});
  std::vector<std::byte> device(static_cast<size_t>(part->bytes()), std::byte{0xa5});
  std::vector<Upload> copies;
  add_copies(part, most_bytes, device.data(), copies);
  std::mt19937_64 random(seed);
  for (size_t i = copies.size(); i > 1; --i) {
    std::swap(copies[i - 1], copies[random() % i]);
  }
  size_t copied = 0;
  for (const Upload& copy : copies) {
    // Of exactly this size, so that a sanitizer sees what is read after it.
    const std::vector<std::byte> staging(copy.source.begin(), copy.source.end());
    copy.check(staging);
    std::copy(staging.begin(), staging.end(), static_cast<std::byte*>(copy.destination));
    copied += staging.size();
  }
  const std::span<const std::byte> records = e.part(tca_bme::kRecords).bytes;
  return copied == records.size() && std::equal(device.begin(), device.end(), records.begin());
}

}  // namespace

bool check_in_pieces(const EncodedWeight& e, int64_t most_bytes, uint64_t seed) {
  require_header(e, tca_bme_format());
  return tca_bme::is_quantized(e)
             ? check_records_in_pieces<tca_bme::QuantizedChecker>(e, most_bytes, seed)
             : check_records_in_pieces<tca_bme::RecordChecker>(e, most_bytes, seed);
}

}  // namespace sparsellm::testing
