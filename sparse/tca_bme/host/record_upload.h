#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/upload.h"
#include "sparse/load_context.h"
#include "sparse/tca_bme/format/record_parts.h"

namespace sparsellm::tca_bme {

// The records of a weight on their way to a device, for the checks of all of their copies: what
// validate_records() checks, a few records at a time, on any thread and in any order.
class RecordUpload {
 public:
  // Throws Error if layout, starts or sizes are wrong. A view of the records of the part.
  explicit RecordUpload(const WeightPart& part);

  const RecordChecker& checker() const { return checker_; }
  DType dtype() const { return dtype_; }
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  int64_t stated_nonzeros() const { return stated_nonzeros_; }  // by the header
  const std::string& name() const { return name_; }
  const MappedFile* file() const { return file_; }  // that the records are mapped from, or none

  int64_t count() const { return std::ssize(checker_.starts()) - 1; }
  int64_t bytes(int64_t begin, int64_t end) const;  // of records from one up to another
  int64_t bytes() const { return bytes(0, count()); }
  std::span<const std::byte> source(int64_t begin, int64_t end) const;

  // Of the `some` records from `first` on, which have these bytes where they have been copied to.
  // Throws Error if one is wrong, and with the last records of all if the header of the weight
  // states another number of nonzeros.
  void check(int64_t first, int64_t some, std::span<const std::byte> bytes);

 private:
  RecordChecker checker_;
  std::span<const std::byte> records_;
  DType dtype_;
  int64_t rows_;
  int64_t columns_;
  int64_t stated_nonzeros_;
  std::string name_;
  const MappedFile* file_;
  std::atomic<int64_t> nonzeros_{0};  // in the records that have been checked
  std::atomic<int64_t> checked_{0};
};

// Those of a joined weight; the checks of their copies keep them.
using RecordUploads = std::vector<std::shared_ptr<RecordUpload>>;
RecordUploads record_uploads(std::span<const WeightPart> parts);  // throws Error with a part's name

// Whether their records, one part's after the other's, are those of the joined weight: not if
// layouts differ, or the rows of a part but the last are no multiple of 64.
bool can_be_joined(const RecordUploads& parts);

// The starts of the records of the joined weight.
std::vector<uint32_t> joined_starts(const RecordUploads& parts);

// Adds copies to `destination`, each of as many records as have at most `max_bytes`, or of one,
// with their checks, which keep `part`.
void add_copies(const std::shared_ptr<RecordUpload>& part, int64_t max_bytes,
                std::byte* destination, std::vector<Upload>& copies);

}  // namespace sparsellm::tca_bme
