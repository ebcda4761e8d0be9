#include "sparse/general_sparse/cuda/device_encoding.h"

#include "sparse/copy_buffer.h"

namespace sparsellm::general_sparse {

int64_t DeviceEncoding::bytes() const {
  return starts.bytes() + row_order.bytes() + positions.bytes() + values.bytes() +
         border_positions.bytes() + schedules.bytes() + row_pieces.bytes() + split_rows.bytes();
}

DeviceEncoding DeviceEncoding::copied() const {
  return {.layout = layout,
          .dtype = dtype,
          .rows = rows,
          .columns = columns,
          .nonzeros = nonzeros,
          .units = units,
          .starts = copy_of(starts),
          .row_order = copy_of(row_order),
          .positions = copy_of(positions),
          .values = copy_of(values),
          .border_positions = copy_of(border_positions),
          .schedules = copy_of(schedules),
          .row_counts = row_counts,
          .row_pieces = copy_of(row_pieces),
          .split_rows = copy_of(split_rows)};
}

Buffer to_device(std::span<const std::byte> bytes, const Device& device) {
  Buffer buffer(device, std::ssize(bytes), "an encoded matrix");
  copy_bytes(device, buffer.data(), {}, bytes.data(), buffer.bytes());
  return buffer;
}

}  // namespace sparsellm::general_sparse
