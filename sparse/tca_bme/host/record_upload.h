#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/base/upload.h"
#include "sparse/encoded_weight.h"
#include "sparse/tca_bme/format/record_parts.h"

namespace sparsellm::tca_bme {

// The records of a weight on their way to a device, for the checks of all of their copies: what
// validate_records() checks, a few records at a time, on any thread and in any order.
class RecordUpload {
 public:
  // Throws Error if layout, starts or sizes are wrong. A view of the records of e.
  explicit RecordUpload(const EncodedWeight& e);

  const RecordChecker& checker() const { return checker_; }
  int64_t count() const { return std::ssize(checker_.starts()) - 1; }
  int64_t bytes(int64_t begin, int64_t end) const;  // of records from one up to another
  int64_t bytes() const { return bytes(0, count()); }
  std::span<const std::byte> source(int64_t begin, int64_t end) const;

  // Of the `some` records from `first` on, which have these bytes where they have been copied to.
  // Throws Error if one is wrong, and with the last records of all if the header of the weight
  // tells another number of nonzeros.
  void check(int64_t first, int64_t some, std::span<const std::byte> bytes);

 private:
  RecordChecker checker_;
  std::span<const std::byte> records_;
  int64_t told_nonzeros_;
  std::atomic<int64_t> nonzeros_{0};  // in the records that have been checked
  std::atomic<int64_t> checked_{0};
};

// Adds copies to `destination`, each of as many records as have at most `most_bytes`, or of one,
// with their checks, which keep `part`.
void add_copies(const std::shared_ptr<RecordUpload>& part, int64_t most_bytes,
                std::byte* destination, std::vector<Upload>& copies);

}  // namespace sparsellm::tca_bme
