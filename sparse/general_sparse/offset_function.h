#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

// Arrays of offsets as functions of the index, so that a generated kernel computes what it would
// load (the offset compression of GeneralSparse, Wang et al., ATC 2025). Arithmetic is modulo 2^64,
// on the device modulo 2^32: no array overflows.
namespace sparsellm::general_sparse {

// a * i + b
struct LinearOffsets {
  int64_t a = 0;
  int64_t b = 0;

  bool operator==(const LinearOffsets&) const = default;
};

// values[k] for the first k with i < ends[k]: branches of at most five values.
inline constexpr size_t kMaxBranchValues = 5;
struct BranchOffsets {
  std::vector<int64_t> ends;  // rising; the last one is the length of the array
  std::vector<int64_t> values;

  bool operator==(const BranchOffsets&) const = default;
};

// a * (i / p) + c[i % p], p being the length of c: from 2 to 64, and at most half the array's.
inline constexpr size_t kMaxPeriod = 64;
struct CyclicOffsets {
  int64_t a = 0;
  std::vector<int64_t> c;

  bool operator==(const CyclicOffsets&) const = default;
};

// a * i + b + residuals[i]
template <class Residual>
struct QuasiLinearOffsets {
  int64_t a = 0;
  int64_t b = 0;
  std::vector<Residual> residuals;

  bool operator==(const QuasiLinearOffsets&) const = default;
};

// The array itself.
struct StoredOffsets {
  std::vector<int64_t> values;

  bool operator==(const StoredOffsets&) const = default;
};

// An array of `count` offsets.
class OffsetFunction {
 public:
  // From the cheapest to the dearest.
  using Form =
      std::variant<LinearOffsets, BranchOffsets, CyclicOffsets, QuasiLinearOffsets<uint8_t>,
                   QuasiLinearOffsets<uint16_t>, StoredOffsets>;

  // The cheapest form that has all of these offsets: each is compared with the whole array, in the
  // order above. In a kernel that is the one that loads least (nothing for the first three, except
  // for the constants of a cycle, then 1, 2 and 4 bytes an offset), and of these the one with the
  // fewest instructions. Offsets beyond +-2^60 are not tried as quasi-linear. Takes time in
  // proportion to the length: up to 64 passes for a cycle, some more for an array that is short.
  static OffsetFunction of(std::span<const int64_t> offsets);
  static OffsetFunction of(std::span<const uint32_t> offsets);

  int64_t count() const { return count_; }
  const Form& form() const { return form_; }
  bool operator==(const OffsetFunction&) const = default;

  // 0 <= i < count().
  int64_t operator()(int64_t i) const;

  // What a kernel takes: all values are in [0, 2^32).
  bool fits_u32() const;
  // Of the residuals or of the array, as it is stored for a kernel: u32, or i64 if fits_u32() does
  // not hold (then there is no kernel).
  int64_t bytes() const;
  // These bytes, little-endian. Throws Error unless fits_u32().
  std::vector<std::byte> table() const;

  // The function for a kernel, in C++ without includes:
  //   __device__ inline unsigned NAME(unsigned i, const void* table)
  // `table` is the address of table() on the device, aligned to 4 bytes, and is not read if bytes()
  // is 0. A cycle is an array NAME_cycle before it. Throws Error unless fits_u32(), and if the name
  // is none of C++.
  std::string to_source(std::string_view name) const;

  // One line, for files and messages, and back:
  //   linear count=100 a=4 b=7
  //   branch count=12 ends=3,9,12 values=0,5,7
  //   cyclic count=12 a=8 c=0,2,5
  //   quasi-linear-u8 count=4 a=3 b=1 residuals=0,2,255,0      (or quasi-linear-u16)
  //   array count=3 values=5,9,2
  // from_text() takes only what to_text() gives. The text may be hostile: whatever else it holds is
  // an Error of one line.
  std::string to_text() const;
  static OffsetFunction from_text(std::string_view text);

 private:
  OffsetFunction(int64_t count, Form form) : count_(count), form_(std::move(form)) {}

  int64_t count_;
  Form form_;
};

}  // namespace sparsellm::general_sparse
