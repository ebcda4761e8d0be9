#include <algorithm>

#include "kernels/base/comm_kernels.h"
#include "kernels/base/comm_numbers.cuh"
#include "kernels/base/comm_transport.cuh"
#include "kernels/base/launch.cuh"

namespace sparsellm {
namespace {

constexpr int kMaxThreads = 32 * CommShape::kMaxWarps;

// The address of byte `at` of a stream.
__device__ std::byte* address(const CommStream& stream, uint32_t at) {
  if (stream.one_row) {
    return stream.row + at;
  }
  const uint32_t from_row = stream.skip + at;
  const uint32_t row = from_row / stream.row_bytes;
  return stream.row + row * stream.stride + (from_row - row * stream.row_bytes);
}

template <class T>
__device__ void copy_elements(const CommStream& stream, uint32_t at, uint4& vector, bool store) {
  T elements[sizeof(uint4) / sizeof(T)] = {};
  if (store) {
    memcpy(elements, &vector, sizeof(vector));
  }
#pragma unroll
  for (uint32_t i = 0; i < sizeof(uint4) / sizeof(T); ++i) {
    if (at + i * sizeof(T) < stream.bytes) {
      T* const place = reinterpret_cast<T*>(address(stream, at + i * sizeof(T)));
      if (store) {
        *place = elements[i];
      } else {
        elements[i] = *place;
      }
    }
  }
  if (!store) {
    memcpy(&vector, elements, sizeof(vector));
  }
}

// 16 bytes from byte `at` on, element by element: at the end, or where they are not aligned.
__device__ __noinline__ uint4 copy_part(const CommStream& stream, uint32_t at, uint4 vector,
                                        bool store) {
  switch (stream.element) {
    case 1:
      copy_elements<uint8_t>(stream, at, vector, store);
      break;
    case 2:
      copy_elements<uint16_t>(stream, at, vector, store);
      break;
    default:
      copy_elements<uint32_t>(stream, at, vector, store);
  }
  return vector;
}

// Whether a whole vector may be accessed at once.
__device__ bool is_whole(const CommStream& stream, uint32_t at) {
  return stream.vectors && at + sizeof(uint4) <= stream.bytes;
}

__device__ uint4 load(const CommStream& stream, uint32_t at) {
  if (is_whole(stream, at)) {
    return *reinterpret_cast<const uint4*>(address(stream, at));
  }
  const uint4 zeros = make_uint4(0, 0, 0, 0);
  return at < stream.bytes ? copy_part(stream, at, zeros, false) : zeros;
}

__device__ void store(const CommStream& stream, uint32_t at, const uint4& vector) {
  if (is_whole(stream, at)) {
    *reinterpret_cast<uint4*>(address(stream, at)) = vector;
  } else if (at < stream.bytes) {
    copy_part(stream, at, vector, true);
  }
}

// The share that a lane has of a unit.
template <class Form>
struct LaneOfUnit {
  static constexpr int kVectors = Form::kVectors;

  __device__ explicit LaneOfUnit(int unit)
      : first(static_cast<uint32_t>(unit) * static_cast<uint32_t>(Form::kUnit.data_bytes) +
              threadIdx.x % 32 * sizeof(uint4)) {}

  // A stream without bytes has one unit, of one lane, which says so.
  __device__ bool is_active(const CommStream& stream) const {
    return first < max(stream.bytes, 1u);
  }
  __device__ void load_from(const CommStream& stream, uint4 (&data)[kVectors]) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      data[i] = load(stream, first + i * kStep);
    }
  }
  __device__ void store_to(const CommStream& stream, const uint4 (&data)[kVectors]) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      store(stream, first + i * kStep, data[i]);
    }
  }

  static constexpr uint32_t kStep = 32 * sizeof(uint4);
  uint32_t first;  // byte of the stream
};

template <class Form>
__device__ int units_of(const CommStream& stream) {
  constexpr uint32_t kBytes = static_cast<uint32_t>(Form::kUnit.data_bytes);
  return static_cast<int>((max(stream.bytes, 1u) + kBytes - 1) / kBytes);
}

// Units are dealt to the warps of a grid one by one, neighbours to different blocks.
__device__ int first_unit() { return static_cast<int>(threadIdx.x / 32 * gridDim.x + blockIdx.x); }
__device__ int unit_step() { return static_cast<int>(blockDim.x / 32 * gridDim.x); }

// The rank `distance` places after this one.
__device__ int rank_after(const CommWorld& world, int distance) {
  const int rank = world.rank + distance;
  return rank < world.ranks ? rank : rank - world.ranks;
}

template <class Form>
__device__ std::byte* slot_at(const CommWorld& world, const CommCall& call, int at) {
  return comm_slot(world, Form::slots(world), call.turn(), at, world.rank);
}
template <class Form>
__device__ std::byte* slot_from(const CommWorld& world, const CommCall& call, int from) {
  return comm_slot(world, Form::slots(world), call.turn(), world.rank, from);
}

// data, of this rank, becomes the sum of the unit over all ranks, in f32 and in their order; the
// others' are in `unit` of their slots. Whether all have come.
template <class T, class Form>
__device__ bool add_up(const CommWorld& world, const CommCall& call, int unit, bool active,
                       uint4 (&data)[Form::kVectors]) {
  constexpr int kCount = Numbers<T>::kCount;
  float sums[Form::kVectors * kCount];
  bool complete = true;
  for (int from = 0; from < world.ranks && complete; ++from) {
    uint4 part[Form::kVectors];
    if (from == world.rank) {
#pragma unroll
      for (int i = 0; i < Form::kVectors; ++i) {
        part[i] = data[i];
      }
    } else {
      complete = Form::receive(call, slot_from<Form>(world, call, from), unit, active, part);
    }
#pragma unroll
    for (int i = 0; i < Form::kVectors; ++i) {
      float numbers[kCount];
      Numbers<T>::unpack(part[i], numbers);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        float& sum = sums[i * kCount + j];
        sum = from == 0 ? numbers[j] : sum + numbers[j];
      }
    }
  }
#pragma unroll
  for (int i = 0; i < Form::kVectors; ++i) {
    data[i] = Numbers<T>::pack(sums + i * kCount);
  }
  return complete;
}

// Kernels load and send before they look whether everything has ended, so that they do not wait for
// one load after the other; what is sent then is nobody's result.

// One shot: every rank sends all of y to all others, and adds up all of it. A warp has whole units,
// which it sends before it waits for the first.
template <class T, class Form>
__global__ void __launch_bounds__(kMaxThreads)
    all_reduce_one_shot_kernel(const __grid_constant__ CommWorld world,
                               const __grid_constant__ CommStream y) {
  CommCall call = CommCall::begin(world);
  const int units = units_of<Form>(y);
  uint4 data[Form::kVectors];
  for (int unit = first_unit(); unit < units; unit += unit_step()) {
    const LaneOfUnit<Form> lane(unit);
    lane.load_from(y, data);
    for (int distance = 1; distance < world.ranks; ++distance) {
      const int to = rank_after(world, distance);
      Form::send(call, slot_at<Form>(world, call, to), unit, lane.is_active(y), data);
    }
  }
  bool complete = call.goes_on();
  for (int unit = first_unit(); unit < units && complete; unit += unit_step()) {
    const LaneOfUnit<Form> lane(unit);
    lane.load_from(y, data);
    complete = add_up<T, Form>(world, call, unit, lane.is_active(y), data);
    if (complete) {
      lane.store_to(y, data);
    }
  }
  call.finish(complete);
}

// Two shots: rank r adds up the units from units * r / ranks to units * (r + 1) / ranks, at least
// one, of which the others send it theirs, and sends the sums to all. Of a slot the first half is
// for what is added up, the second for sums.
template <class T, class Form>
__global__ void __launch_bounds__(kMaxThreads)
    all_reduce_two_shot_kernel(const __grid_constant__ CommWorld world,
                               const __grid_constant__ CommStream y) {
  CommCall call = CommCall::begin(world);
  const int units = units_of<Form>(y);
  const int64_t half = Form::slots(world).slot_bytes / 2;
  const auto begin_of = [&](int rank) { return units * rank / world.ranks; };
  uint4 data[Form::kVectors];
  for (int distance = 1; distance < world.ranks; ++distance) {
    const int to = rank_after(world, distance);
    const int begin = begin_of(to);
    const int count = begin_of(to + 1) - begin;
    for (int unit = first_unit(); unit < count; unit += unit_step()) {
      const LaneOfUnit<Form> lane(begin + unit);
      lane.load_from(y, data);
      Form::send(call, slot_at<Form>(world, call, to), unit, lane.is_active(y), data);
    }
  }
  bool complete = call.goes_on();
  const int begin = begin_of(world.rank);
  const int count = begin_of(world.rank + 1) - begin;
  for (int unit = first_unit(); unit < count && complete; unit += unit_step()) {
    const LaneOfUnit<Form> lane(begin + unit);
    lane.load_from(y, data);
    complete = add_up<T, Form>(world, call, unit, lane.is_active(y), data);
    if (complete) {
      for (int distance = 1; distance < world.ranks; ++distance) {
        const int to = rank_after(world, distance);
        Form::send(call, slot_at<Form>(world, call, to) + half, unit, lane.is_active(y), data);
      }
      lane.store_to(y, data);
    }
  }
  for (int distance = 1; distance < world.ranks; ++distance) {
    const int from = rank_after(world, distance);
    const int their_begin = begin_of(from);
    const int their_count = begin_of(from + 1) - their_begin;
    for (int unit = first_unit(); unit < their_count && complete; unit += unit_step()) {
      const LaneOfUnit<Form> lane(their_begin + unit);
      complete = Form::receive(call, slot_from<Form>(world, call, from) + half, unit,
                               lane.is_active(y), data);
      if (complete) {
        lane.store_to(y, data);
      }
    }
  }
  call.finish(complete);
}

// Every rank sends its part to all others, and writes down those of all. Who has no part sends a
// unit all the same: in every call each rank hears from every other.
template <class Form>
__global__ void __launch_bounds__(kMaxThreads)
    exchange_kernel(const __grid_constant__ CommWorld world,
                    const __grid_constant__ CommExchange exchange) {
  CommCall call = CommCall::begin(world);
  uint4 data[Form::kVectors];
  const CommStream& part = exchange.part;
  for (int unit = first_unit(); unit < units_of<Form>(part); unit += unit_step()) {
    const LaneOfUnit<Form> lane(unit);
    lane.load_from(part, data);
    for (int distance = 1; distance < world.ranks; ++distance) {
      const int to = rank_after(world, distance);
      Form::send(call, slot_at<Form>(world, call, to), unit, lane.is_active(part), data);
    }
    if (exchange.copies_own) {
      lane.store_to(exchange.whole[world.rank], data);
    }
  }
  bool complete = call.goes_on();
  for (int distance = 1; distance < world.ranks; ++distance) {
    const int from = rank_after(world, distance);
    const CommStream& theirs = exchange.whole[from];
    for (int unit = first_unit(); unit < units_of<Form>(theirs) && complete; unit += unit_step()) {
      const LaneOfUnit<Form> lane(unit);
      complete = Form::receive(call, slot_from<Form>(world, call, from), unit,
                               lane.is_active(theirs), data);
      if (complete) {
        lane.store_to(theirs, data);
      }
    }
  }
  call.finish(complete);
}

LaunchShape shape_of(int64_t units, int max_blocks) {
  const CommShape shape = CommShape::of(units, max_blocks);
  return {.blocks = static_cast<unsigned>(shape.blocks),
          .threads = static_cast<unsigned>(32 * shape.warps),
          .pdl = true};
}

template <class T, class Form>
void all_reduce(bool two_shot, const CommStream& y, const CommWorld& world, int max_blocks,
                const ExecContext& ctx) {
  const int64_t units = comm_units(y.bytes, Form::kUnit);
  two_shot = two_shot && units >= world.ranks;
  const auto kernel =
      two_shot ? all_reduce_two_shot_kernel<T, Form> : all_reduce_one_shot_kernel<T, Form>;
  launch(ctx, kernel, shape_of(units, max_blocks), world, y);
}

template <class Kernel>
void load_kernel(Kernel* kernel) {
  cudaFuncAttributes attributes{};
  check_cuda(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)));
}

template <class T, class Form>
void load_kernels() {
  load_kernel(all_reduce_one_shot_kernel<T, Form>);
  load_kernel(all_reduce_two_shot_kernel<T, Form>);
}

template <class Form>
void load_kernels_of_form() {
  load_kernels<float, Form>();
  load_kernels<__half, Form>();
  load_kernels<__nv_bfloat16, Form>();
  load_kernel(exchange_kernel<Form>);
}

}  // namespace

void load_comm_kernels() {
  load_kernels_of_form<CommPackets>();
  load_kernels_of_form<CommTiles>();
}

void comm_all_reduce(CommWay way, DType dtype, const CommStream& y, const CommWorld& world,
                     int max_blocks, const ExecContext& ctx) {
  const auto with = [&]<class T>(T) {
    if (is_packets(way)) {
      all_reduce<T, CommPackets>(is_two_shot(way), y, world, max_blocks, ctx);
    } else {
      all_reduce<T, CommTiles>(is_two_shot(way), y, world, max_blocks, ctx);
    }
  };
  switch (dtype) {
    case DType::f32:
      return with(float{});
    case DType::f16:
      return with(__half{});
    case DType::bf16:
      return with(__nv_bfloat16{});
    default:
      fail("ranks cannot add up {}", name_of(dtype));
  }
}

void comm_exchange(bool packets, const CommExchange& exchange, const CommWorld& world,
                   int max_blocks, const ExecContext& ctx) {
  const CommUnit& unit = packets ? kPacketUnit : kTileUnit;
  int64_t units = comm_units(exchange.part.bytes, unit);
  for (int rank = 0; rank < world.ranks; ++rank) {
    units = std::max(units, comm_units(exchange.whole[static_cast<size_t>(rank)].bytes, unit));
  }
  launch(ctx, packets ? exchange_kernel<CommPackets> : exchange_kernel<CommTiles>,
         shape_of(units, max_blocks), world, exchange);
}

}  // namespace sparsellm
