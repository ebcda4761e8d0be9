#include "sparse/cpu/panels/panels.h"

#include <array>
#include <bit>

#include "kernels/base/error.h"

namespace sparsellm::panels {
namespace {

constexpr std::array<uint8_t, kRows> rows_in_order() {
  std::array<uint8_t, kRows> rows{};
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i] = static_cast<uint8_t>(i);
  }
  return rows;
}
constexpr std::array<uint8_t, kRows> kRowsInOrder = rows_in_order();

constexpr const char* kOtherNonzeros = "a weight has other nonzeros than were counted";

// The row of each bit of a mask.
const uint8_t* rows_of_bits(DType dtype) {
  return dtype == DType::bf16 ? kPairedRows : kRowsInOrder.data();
}

}  // namespace

const Kernels& kernels_for([[maybe_unused]] CpuIsa isa) {
#if defined(SPARSELLM_X86)
  switch (isa) {
    case CpuIsa::portable:
      break;
    case CpuIsa::avx2:
      return kAvx2Kernels;
    case CpuIsa::avx512:
      return kAvx512Kernels;
    case CpuIsa::avx512_vbmi2:
      return kAvx512Vbmi2Kernels;
  }
#endif
  return kPortableKernels;
}

int64_t panels_bytes(int64_t rows, int64_t columns, int64_t nonzeros) {
  const int64_t masks =
      checked_mul(panel_count(rows) * int64_t{sizeof(uint64_t)}, columns, "bytes of a weight");
  return checked_add(masks, nonzeros * int64_t{sizeof(uint16_t)} + kPaddingBytes,
                     "bytes of a weight");
}

Panels::Panels(int64_t columns, DType dtype, std::span<const int64_t> nonzeros)
    : columns_(columns), dtype_(dtype), starts_{0} {
  for (int64_t count : nonzeros) {
    starts_.push_back(starts_.back() + columns * int64_t{sizeof(uint64_t)} +
                      count * int64_t{sizeof(uint16_t)});
  }
  memory_ = Buffer(Device{}, starts_.back() + kPaddingBytes, "a weight");
  std::memset(data() + starts_.back(), 0, kPaddingBytes);
}

Panels Panels::copy() const {
  Panels other(columns_, dtype_, {});
  other.starts_ = starts_;
  other.memory_ = Buffer(Device{}, bytes(), "a copy of a weight");
  std::memcpy(other.data(), data(), static_cast<size_t>(bytes()));
  return other;
}

void Panels::pack(int64_t index, const uint16_t* values) {
  const uint8_t* const rows = rows_of_bits(dtype_);
  uint8_t* to = data() + starts_[static_cast<size_t>(index)];
  const uint8_t* const end = data() + starts_[static_cast<size_t>(index) + 1];
  for (int64_t first = 0; first < columns_; first += kGroupColumns) {
    const int64_t count = std::min(columns_ - first, kGroupColumns);
    uint8_t* masks = to;
    to += count * int64_t{sizeof(uint64_t)};
    for (int64_t c = 0; c < count; ++c, values += kRows) {
      uint16_t packed[kRows];
      int64_t found = 0;
      uint64_t mask = 0;
      for (int bit = 0; bit < kRows; ++bit) {  // without branches: the zeros are anywhere
        const uint16_t value = values[rows[bit]];
        const bool is_value = (value & 0x7fff) != 0;
        packed[found] = value;
        found += is_value ? 1 : 0;
        mask |= uint64_t{is_value} << bit;
      }
      const int64_t bytes = found * int64_t{sizeof(uint16_t)};
      require(to + bytes + (columns_ - first - count) * int64_t{sizeof(mask)} <= end,
              kOtherNonzeros);
      std::memcpy(masks + c * int64_t{sizeof(mask)}, &mask, sizeof(mask));
      std::memcpy(to, packed, static_cast<size_t>(bytes));
      to += bytes;
    }
  }
  require(to == end, kOtherNonzeros);
}

void Panels::unpack(int64_t index, uint16_t* values) const {
  const uint8_t* const rows = rows_of_bits(dtype_);
  const uint8_t* from = panel(index);
  std::memset(values, 0, static_cast<size_t>(columns_ * kRows) * sizeof(uint16_t));
  for (int64_t first = 0; first < columns_; first += kGroupColumns) {
    const int64_t count = std::min(columns_ - first, kGroupColumns);
    const uint8_t* const masks = from;
    from += count * int64_t{sizeof(uint64_t)};
    for (int64_t c = 0; c < count; ++c, values += kRows) {
      uint64_t mask = 0;
      std::memcpy(&mask, masks + c * int64_t{sizeof(mask)}, sizeof(mask));
      for (; mask != 0; mask &= mask - 1, from += sizeof(uint16_t)) {
        std::memcpy(values + rows[std::countr_zero(mask)], from, sizeof(uint16_t));
      }
    }
  }
}

}  // namespace sparsellm::panels
