#pragma once

#include <cstdint>

#include "kernels/base/pdl.cuh"
#include "kernels/device/cuda_types.cuh"
#include "sparse/general_sparse/cuda/slice_matrix.h"
#include "sparse/general_sparse/format/layout.h"

// Products of few tokens with interleaved encodings: a lane has the entries of one row group of a
// slice (format/layout.h), so that all loads of the matrix are of whole lines and no row is added
// up over lanes (the paper's thread level with whole rows, THREAD_TOTAL). A thread block has a list
// of slices (slice_plan.h), whose entries its warps share evenly, as one run: a warp may begin and
// end within a slice. Then the warp that has the slice's first entries adds the sums of the others,
// in their order (BLOCK_TOTAL). x of a panel lies in shared memory as [column][token]: the tokens
// of a column are one load. That of one token may also be read as it is, through the L1: a matrix
// with few nonzeros is multiplied sooner than x is copied by every block.
namespace sparsellm::general_sparse {

// kBytes consecutive bytes that a lane loads. They bypass the L1, since each is read once.
template <int kBytes>
struct LaneBytes {
  static constexpr int kWords = (kBytes + 3) / 4;
  uint32_t words[kWords] = {};

  // If unit < end. Registers are loaded in place: had the load a branch of its own, its result
  // would be copied behind it, and so waited for at once.
  __device__ void load(const uint8_t* from, uint32_t unit, uint32_t end) {
    if constexpr (kBytes % 16 == 0) {
#pragma unroll
      for (int i = 0; i < kBytes / 16; ++i) {
        asm volatile(
            "{\n.reg .pred p;\nsetp.lt.u32 p, %5, %6;\n"
            "@p ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
            : "+r"(words[4 * i]), "+r"(words[4 * i + 1]), "+r"(words[4 * i + 2]),
              "+r"(words[4 * i + 3])
            : "l"(from + 16 * i), "r"(unit), "r"(end));
      }
    } else if constexpr (kBytes == 8) {
      asm volatile(
          "{\n.reg .pred p;\nsetp.lt.u32 p, %3, %4;\n"
          "@p ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];\n}"
          : "+r"(words[0]), "+r"(words[1])
          : "l"(from), "r"(unit), "r"(end));
    } else if constexpr (kBytes == 4) {
      asm volatile(
          "{\n.reg .pred p;\nsetp.lt.u32 p, %2, %3;\n"
          "@p ld.global.nc.L1::no_allocate.u32 %0, [%1];\n}"
          : "+r"(words[0])
          : "l"(from), "r"(unit), "r"(end));
    } else if constexpr (kBytes == 2) {
      asm volatile(
          "{\n.reg .pred p;\nsetp.lt.u32 p, %2, %3;\n"
          "@p ld.global.nc.L1::no_allocate.u16 %0, [%1];\n}"
          : "+r"(words[0])
          : "l"(from), "r"(unit), "r"(end));
    } else {
      static_assert(kBytes == 1);
      asm volatile(
          "{\n.reg .pred p;\nsetp.lt.u32 p, %2, %3;\n"
          "@p ld.global.nc.L1::no_allocate.u8 %0, [%1];\n}"
          : "+r"(words[0])
          : "l"(from), "r"(unit), "r"(end));
    }
  }
  __device__ uint16_t half(int i) const {
    return static_cast<uint16_t>(words[i / 2] >> (16 * (i % 2)));
  }
};

// Where the x of an entry is: its address in shared memory, or how far from x (ColumnBytes). A
// column has kColumnBytes.
template <PositionCode kCode, int V, int kColumnBytes>
struct PositionReader;

template <int V, int kColumnBytes>
struct PositionReader<PositionCode::i8, V, kColumnBytes> {
  using Bytes = LaneBytes<V>;
  uint32_t at;

  __device__ void start(uint32_t x, uint32_t position) { at = x + position * kColumnBytes; }
  template <int j>
  __device__ uint32_t next(const Bytes& bytes) {
    // The byte, times the bytes of a column, is added by one instruction.
    static_assert(kColumnBytes <= 127);
    at = static_cast<uint32_t>(__dp4a(static_cast<int>(bytes.words[j / 4]),
                                      kColumnBytes << (8 * (j % 4)), static_cast<int>(at)));
    return at;
  }
};

template <int V, int kColumnBytes>
struct PositionReader<PositionCode::u16, V, kColumnBytes> {
  using Bytes = LaneBytes<2 * V>;
  uint32_t first;

  __device__ void start(uint32_t x, uint32_t) { first = x; }
  template <int j>
  __device__ uint32_t next(const Bytes& bytes) {
    static_assert(kColumnBytes <= 255);
    return __dp2a_lo(bytes.words[j / 2], static_cast<uint32_t>(kColumnBytes) << (8 * (j % 2)),
                     first);
  }
};

// The tokens of a column.
template <int kBytes>
struct ColumnBytes {
  // Where they are 16 bytes, their address in shared memory is computed whole, by the instruction
  // that decodes the position; of fewer the compiler finds a better order of loads by itself.
  static constexpr bool kByAddress = kBytes == 16;
  uint32_t words[(kBytes + 3) / 4];

  // at: that address, or how far from x, which is in shared memory if it is staged.
  template <bool kStaged>
  __device__ void load(const uint8_t* x, uint32_t at) {
    if constexpr (!kStaged) {
      static_assert(kBytes == 2);
      words[0] = __ldg(reinterpret_cast<const uint16_t*>(x + at));
    } else if constexpr (kByAddress) {
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                   : "r"(at));
    } else if constexpr (kBytes == 2) {
      words[0] = *reinterpret_cast<const uint16_t*>(x + at);
    } else {
      const auto column = *reinterpret_cast<const Vector<uint32_t, kBytes / 4>*>(x + at);
#pragma unroll
      for (int i = 0; i < kBytes / 4; ++i) {
        words[i] = column.elements[i];
      }
    }
  }
  __device__ uint16_t half(int i) const {
    return static_cast<uint16_t>(words[i / 2] >> (16 * (i % 2)));
  }
};

// NaN stays NaN.
template <class Value>
__device__ inline void store_sum(const SliceOperands& o, int token, int row, float sum) {
  if (o.bias != nullptr) {
    sum += f32_of(static_cast<const Value*>(o.bias)[row]);
  }
  static_cast<Value*>(o.y)[token * o.y_stride + row] =
      from_f32<Value>(o.relu && sum < 0.0f ? 0.0f : sum);
}

// C has the parameters of a kernel:
//   Value        of the matrix, of x and of y; 16 bits
//   kCode, R, V  PositionCode, rows of a group, entries of a unit: 16 bytes of values a lane
//   T            tokens of a tile
//   kStaged      x is copied to shared memory; else T is 1
//   kBatch       units that a lane loads while it multiplies as many others
//   kEarlyPieces where a piece is, is found out before the one before it is multiplied
//   kThreads     of a block, at most
template <class C>
struct SliceProduct {
  using Value = typename C::Value;
  static constexpr int R = C::R;
  static constexpr int V = C::V;
  static constexpr int T = C::T;
  static constexpr int kColumnBytes = T * static_cast<int>(sizeof(Value));
  static constexpr int kValueBytes = V * R * static_cast<int>(sizeof(Value));
  using Positions = PositionReader<C::kCode, V, kColumnBytes>;
  using PositionBytes = typename Positions::Bytes;
  using ValueBytes = LaneBytes<kValueBytes>;
  using Column = ColumnBytes<kColumnBytes>;
  static constexpr int kLanes = kSliceLanes;
  static constexpr unsigned kWholeWarp = 0xffffffffu;
  static constexpr uint32_t kNone = 0xffffffffu;

  // Where the entries of one warp end and those of the next begin: after this many of the
  // kMostParts parts of a slice of the schedule.
  struct Border {
    uint32_t slice;
    uint32_t part;
  };

  // What a warp has of a slice. What a lane loads early for itself is not waited for.
  struct Piece {
    uint32_t begin;  // units
    uint32_t end;
    LaneBytes<2> position;  // of the entry before the first one
    LaneBytes<2> order;     // of its row group, after ScheduledSlice::first_group
  };

  const SliceMatrix& m;
  const SliceOperands& o;
  uint8_t* x_panel;      // in shared memory, if it is staged
  float* warp_sums;      // there: [warps][R][T][kLanes], of a continued piece
  uint32_t* warp_slice;  // there: [warps], which slice that is of, or kNone

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % kLanes; }
  __device__ static int warp() { return static_cast<int>(threadIdx.x) / kLanes; }
  __device__ static int warps() { return static_cast<int>(blockDim.x) / kLanes; }

  // The slices of the schedule from `first` to `end`, all of one panel, which the warps of a block
  // share.
  struct Round {
    uint32_t first;
    uint32_t end;
    uint32_t units_before;
    uint32_t units;
    int panel;
    uint32_t lane_units_before;  // of slice first + lane()
  };

  // That begins with slice `first`, of a block whose slices end at `end`.
  __device__ Round round_from(uint32_t first, uint32_t end) const {
    const ScheduledSlice mine = m.schedule[min(first + lane(), end)];
    Round round;
    round.first = first;
    round.end = __shfl_sync(kWholeWarp, mine.panel_end, 0);
    round.units_before = __shfl_sync(kWholeWarp, mine.units_before, 0);
    round.panel = static_cast<int>(__shfl_sync(kWholeWarp, mine.panel, 0));
    round.lane_units_before = mine.units_before;
    const uint32_t count = round.end - first;
    const uint32_t after = __shfl_sync(kWholeWarp, mine.units_before, min(count, kLanes - 1u));
    round.units =
        (count < kLanes ? after : m.schedule[round.end].units_before) - round.units_before;
    return round;
  }

  // The border before warp `number`.
  __device__ Border border(const Round& round, int number) const {
    if (number == 0 || number == warps()) {
      return {number == 0 ? round.first : round.end, 0};
    }
    const uint32_t unit =
        round.units_before + first_unit_of_warp(round.units, number, 31 - __clz(warps()));
    uint32_t slice = round.first;  // the last one that does not begin after this unit
    for (uint32_t some = round.first; some < round.end; some += kLanes) {
      const uint32_t mine = some + lane();
      const bool is_before =
          mine < round.end &&
          (some == round.first ? round.lane_units_before : m.schedule[mine].units_before) <= unit;
      const int before_it = __popc(__ballot_sync(kWholeWarp, is_before));
      slice = before_it > 0 ? some + before_it - 1 : slice;
      if (before_it < kLanes) {
        break;
      }
    }
    const uint32_t begin = m.schedule[slice].units_before;
    const uint32_t units = m.schedule[slice + 1].units_before - begin;
    const uint32_t part = nearest_border(unit - begin, units);
    return part == kMostParts ? Border{slice + 1, 0} : Border{slice, part};
  }

  // Of a slice of the schedule, between the borders of this warp.
  __device__ Piece piece(uint32_t number, const Border& from, const Border& to) const {
    const ScheduledSlice s = m.schedule[number];
    const uint32_t units = m.schedule[number + 1].units_before - s.units_before;
    const uint32_t begin_part = number == from.slice ? from.part : 0;
    const uint32_t end_part = number == to.slice ? to.part : kMostParts;
    Piece piece;
    piece.begin = s.first_unit + part_border(units, begin_part);
    piece.end = s.first_unit + part_border(units, end_part);
    const auto my = static_cast<uint32_t>(lane());
    piece.order.words[0] = my;
    piece.order.load(reinterpret_cast<const uint8_t*>(m.row_order + s.first_place + my), my,
                     m.row_order != nullptr ? s.groups : 0);
    if constexpr (C::kCode == PositionCode::i8) {
      const int64_t border = static_cast<int64_t>(s.stored) * (kMostParts - 1) + begin_part - 1;
      piece.position.load(
          reinterpret_cast<const uint8_t*>(m.border_positions + border * kLanes + my), 0,
          begin_part);
    }
    return piece;
  }

  // Units that are on their way to a lane.
  struct Batch {
    ValueBytes values[C::kBatch];
    PositionBytes positions[C::kBatch];
  };

  // Those of a piece from `unit` on.
  __device__ void load(Batch& batch, const Piece& piece, uint32_t unit) const {
#pragma unroll
    for (int i = 0; i < C::kBatch; ++i) {
      const int64_t at = static_cast<int64_t>(unit + i) * kLanes + lane();
      batch.values[i].load(m.values + at * kValueBytes, unit + i, piece.end);
      batch.positions[i].load(m.positions + at * (C::kCode == PositionCode::i8 ? V : 2 * V),
                              unit + i, piece.end);
    }
  }

  template <int j>
  __device__ void multiply_entry(const ValueBytes& values, const PositionBytes& bytes,
                                 Positions& positions, const uint8_t* x,
                                 float (&sums)[R][T]) const {
    Column column;
    column.template load<C::kStaged>(x, positions.template next<j>(bytes));
    float xs[T];
#pragma unroll
    for (int t = 0; t < T; ++t) {
      const uint16_t bits = column.half(t);
      xs[t] = f32_of(reinterpret_cast<const Value&>(bits));
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const uint16_t bits = values.half(j * R + r);
      const float a = f32_of(reinterpret_cast<const Value&>(bits));
#pragma unroll
      for (int t = 0; t < T; ++t) {
        sums[r][t] = fmaf(a, xs[t], sums[r][t]);
      }
    }
    if constexpr (j + 1 < V) {
      multiply_entry<j + 1>(values, bytes, positions, x, sums);
    }
  }

  // Of a batch from `unit` on those before `end`; of a whole one all.
  template <bool kWhole>
  __device__ void multiply_batch(const Batch& batch, uint32_t unit, uint32_t end,
                                 Positions& positions, const uint8_t* x,
                                 float (&sums)[R][T]) const {
#pragma unroll
    for (int i = 0; i < C::kBatch; ++i) {
      if (kWhole || unit + i < end) {
        multiply_entry<0>(batch.values[i], batch.positions[i], positions, x, sums);
      }
    }
  }

  // The first batch is loaded. Two take turns: one is multiplied while the other one is loaded.
  __device__ void multiply(Batch (&batches)[2], const Piece& piece, int panel,
                           float (&sums)[R][T]) const {
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int t = 0; t < T; ++t) {
        sums[r][t] = 0.0f;
      }
    }
    const uint8_t* const x = C::kStaged ? x_panel
                                        : static_cast<const uint8_t*>(o.x) +
                                              int64_t{panel} * m.panel_columns * kColumnBytes;
    Positions positions;
    positions.start(Column::kByAddress ? static_cast<uint32_t>(__cvta_generic_to_shared(x)) : 0u,
                    piece.position.half(0));
    uint32_t unit = piece.begin;
    // Without branches, which loads would not be moved over.
#pragma unroll 1
    for (; unit + 2 * C::kBatch <= piece.end; unit += 2 * C::kBatch) {
      load(batches[1], piece, unit + C::kBatch);
      multiply_batch<true>(batches[0], unit, piece.end, positions, x, sums);
      load(batches[0], piece, unit + 2 * C::kBatch);
      multiply_batch<true>(batches[1], unit, piece.end, positions, x, sums);
    }
    if (unit < piece.end) {
      load(batches[1], piece, unit + C::kBatch);
      multiply_batch<false>(batches[0], unit, piece.end, positions, x, sums);
      multiply_batch<false>(batches[1], unit + C::kBatch, piece.end, positions, x, sums);
    }
  }

  // The sums of a lane's row group, of a slice of the schedule, which is read again: registers are
  // rare while entries are multiplied.
  __device__ void store(uint32_t number, const LaneBytes<2>& order, int panel,
                        const float (&sums)[R][T]) const {
    const ScheduledSlice& s = m.schedule[number];
    if (lane() >= static_cast<int>(s.groups)) {
      return;
    }
    const int group = static_cast<int>(s.first_group + order.half(0));
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const int row = group * R + r;
      if (R > 1 && row >= m.rows) {
        return;
      }
#pragma unroll
      for (int t = 0; t < T; ++t) {
        if (m.panels > 1) {
          o.partials[(static_cast<int64_t>(panel) * m.rows + row) * T + t] = sums[r][t];
        } else if (t < o.tokens) {
          store_sum<Value>(o, t, row, sums[r][t]);
        }
      }
    }
  }

  __device__ float* sums_of(int warp) const { return warp_sums + warp * (R * T * kLanes) + lane(); }

  __device__ void keep(const float (&sums)[R][T]) const {
    float* const to = sums_of(warp());
#pragma unroll
    for (int i = 0; i < R * T; ++i) {
      to[i * kLanes] = sums[i / T][i % T];
    }
  }
  // Of the warps after this one that have more of its last slice.
  __device__ void add_kept(uint32_t slice, float (&sums)[R][T]) const {
    for (int other = warp() + 1; other < warps() && warp_slice[other] == slice; ++other) {
      const float* const from = sums_of(other);
#pragma unroll
      for (int i = 0; i < R * T; ++i) {
        sums[i / T][i % T] += from[i * kLanes];
      }
    }
  }

  // The tokens of the tile for the panel's columns. Tokens that are not there have what the last
  // one has: their sums are not stored.
  __device__ void stage_x(int panel) const {
    const int first = panel * m.panel_columns;
    const int columns = min(m.panel_columns, m.columns - first);
    const auto* const x = static_cast<const Value*>(o.x) + first;
    const auto thread = static_cast<int>(threadIdx.x);
    const auto threads = static_cast<int>(blockDim.x);
    constexpr int kAtOnce = columns_at_once(T);
    const int in_vectors = o.x_aligned ? columns / kAtOnce * kAtOnce : 0;
    if constexpr (T == 1) {
      for (int c = thread * kAtOnce; c < in_vectors; c += threads * kAtOnce) {
        *reinterpret_cast<uint4*>(x_panel + c * kColumnBytes) =
            *reinterpret_cast<const uint4*>(x + c);
      }
    } else {
      // As many as 1,024 threads have on their way. The last ones may be copied twice.
      constexpr int kGroups = 1024 / C::kThreads;
      for (int some = thread * kAtOnce; some < in_vectors; some += kGroups * threads * kAtOnce) {
        uint32_t words[kGroups][T][2];
        const auto column = [&](int i) {
          return i == 0 ? some : min(some + i * threads * kAtOnce, in_vectors - kAtOnce);
        };
#pragma unroll
        for (int i = 0; i < kGroups; ++i) {
          load_columns(x, column(i), words[i]);
        }
#pragma unroll
        for (int i = 0; i < kGroups; ++i) {
          store_columns(column(i), words[i]);
        }
      }
    }
    auto* const to = reinterpret_cast<Value*>(x_panel);
    for (int c = in_vectors + thread; c < columns; c += threads) {
#pragma unroll
      for (int t = 0; t < T; ++t) {
        to[c * T + t] = x[min(t, o.tokens - 1) * o.x_stride + c];
      }
    }
  }

  // Four columns of all tokens, from column c on.
  __device__ void load_columns(const Value* x, int c, uint32_t (&words)[T][2]) const {
    // 0, which the compiler does not know: it would keep a distance for each token in registers,
    // which loaded entries need.
    int zero;
    asm("shr.s32 %0, %1, 31;" : "=r"(zero) : "r"(c));
    const int tokens = o.tokens + zero;
    x += c;
#pragma unroll
    for (int t = 0; t < T; ++t) {
      const uint2 both = *reinterpret_cast<const uint2*>(x);
      words[t][0] = both.x;
      words[t][1] = both.y;
      x += t + 1 < tokens ? o.x_stride : 0;
    }
  }

  // As T / 2 vectors of 16 bytes. The 8 lanes that store at once begin with different ones, so that
  // they do not conflict: with two halves of the loaded words exchanged, or words, or both.
  __device__ void store_columns(int c, const uint32_t (&words)[T][2]) const {
    constexpr unsigned kVectors = T / 2;
    constexpr unsigned kColumnWords = T / 2;
    const unsigned first = threadIdx.x % 8 * kVectors / 8;
    const bool other_words = kVectors > 1 && first >= kVectors / 2;
    const bool other_halves = kVectors == 4 && first % 2 != 0;
    uint32_t ordered[T][2];
#pragma unroll
    for (int t = 0; t < T; ++t) {
      ordered[t][0] = other_words ? words[t][1] : words[t][0];
      ordered[t][1] = other_words ? words[t][0] : words[t][1];
    }
    constexpr unsigned kLow = 0x5410;  // halves that __byte_perm() takes of two words
    constexpr unsigned kHigh = 0x7632;
    const unsigned halves[2] = {other_halves ? kHigh : kLow, other_halves ? kLow : kHigh};
#pragma unroll
    for (unsigned i = 0; i < kVectors; ++i) {
      uint32_t vector[4];
#pragma unroll
      for (unsigned w = 0; w < 4; ++w) {
        const unsigned column = (i * 4 + w) / kColumnWords;
        const unsigned pair = (i * 4 + w) % kColumnWords;
        vector[w] = __byte_perm(ordered[2 * pair][column / 2], ordered[2 * pair + 1][column / 2],
                                halves[column % 2]);
      }
      *reinterpret_cast<uint4*>(x_panel + c * kColumnBytes + (i ^ first) * 16) =
          make_uint4(vector[0], vector[1], vector[2], vector[3]);
    }
  }

  // The slices of the schedule from `first` to `end`.
  __device__ void run(uint32_t first, uint32_t end) const {
    bool is_first = true;
    Batch batches[2];
    while (first < end) {
      const Round round = round_from(first, end);
      const int panel = round.panel;
      const Border from = border(round, warp());
      const Border to = border(round, warp() + 1);
      const auto is_mine = [&](uint32_t slice) {
        return slice < to.slice || (slice == to.slice && to.part > 0);
      };
      uint32_t number = from.slice;
      Piece current;
      if (is_mine(number)) {
        current = piece(number, from, to);
        load(batches[0], current, current.begin);
      }
      if (is_first) {
        wait_on_dependencies();
        is_first = false;
      } else {
        __syncthreads();
      }
      if constexpr (C::kStaged) {
        stage_x(panel);
        __syncthreads();
      }
      float sums[R][T];
      LaneBytes<2> open_order;
      bool is_open = false;  // the warp begins its last slice, of which others have the rest
      while (is_mine(number)) {
        const Piece now = current;
        const bool has_next = is_mine(number + 1);
        if (C::kEarlyPieces && has_next) {
          current = piece(number + 1, from, to);
        }
        multiply(batches, now, panel, sums);
        if (has_next) {
          if (!C::kEarlyPieces) {
            current = piece(number + 1, from, to);
          }
          load(batches[0], current, current.begin);
        }
        if (number == from.slice && from.part > 0) {
          keep(sums);
        } else if (number == to.slice) {
          is_open = true;
          open_order = now.order;
        } else {
          store(number, now.order, panel, sums);
        }
        ++number;
      }
      if (lane() == 0) {
        warp_slice[warp()] = from.part > 0 ? from.slice : kNone;
      }
      __syncthreads();
      if (is_open) {
        add_kept(to.slice, sums);
        store(to.slice, open_order, panel, sums);
      }
      first = round.end;
    }
    if (is_first) {
      wait_on_dependencies();
    }
  }
};

// A block's part of the schedule is read after share_begins says where it is. It is about here, and
// so on its way from memory before that, where shares have about as many slices each.
__device__ inline void prefetch_schedule(const SliceMatrix& m, int share) {
  if (threadIdx.x < kSliceLanes) {
    const auto before = static_cast<int64_t>(__fdividef(
        static_cast<float>(m.slices) * static_cast<float>(share), static_cast<float>(m.shares)));
    const ScheduledSlice* const near = m.schedule + min(before + threadIdx.x, m.slices);
    asm volatile("prefetch.global.L2 [%0];" ::"l"(near));
  }
}

// Blocks: m.shares for each tile of tokens, those of a share side by side, so that the L2 has what
// the others read. Shared bytes: shared_bytes_of() of slice_product_cuda.cu.
template <class C>
__global__ void __launch_bounds__(C::kThreads)
    slice_product_kernel(const __grid_constant__ SliceMatrix m,
                         const __grid_constant__ SliceOperands all, int tiles) {
  extern __shared__ __align__(128) uint8_t shared[];
  launch_dependents();
  using Product = SliceProduct<C>;
  using Value = typename C::Value;
  const int tile = static_cast<int>(blockIdx.x) % tiles;
  const int share = static_cast<int>(blockIdx.x) / tiles;
  prefetch_schedule(m, share);
  const int first = tile * C::T;
  SliceOperands o = all;
  o.x = static_cast<const Value*>(o.x) + first * o.x_stride;
  o.y = static_cast<Value*>(o.y) + first * o.y_stride;
  o.tokens = min(C::T, o.tokens - first);
  o.partials += static_cast<int64_t>(tile) * m.panels * m.rows * C::T;
  auto* const sums = reinterpret_cast<float*>(
      shared + (C::kStaged ? staged_columns(m) * Product::kColumnBytes : 0));
  const Product product{
      m, o, shared, sums,
      reinterpret_cast<uint32_t*>(sums + Product::warps() * C::R * C::T * kSliceLanes)};
  product.run(m.share_begins[share], m.share_begins[share + 1]);
}

// y = the sums over all panels, in their order.
template <class Value, int kTile>
__global__ void __launch_bounds__(256)
    add_panels_kernel(const __grid_constant__ SliceMatrix m,
                      const __grid_constant__ SliceOperands all) {
  launch_dependents();
  wait_on_dependencies();
  const int row = static_cast<int>(blockIdx.x) * 256 + static_cast<int>(threadIdx.x);
  const int tile = static_cast<int>(blockIdx.y);
  if (row >= m.rows) {
    return;
  }
  const float* const partials =
      all.partials + static_cast<int64_t>(tile) * m.panels * m.rows * kTile;
  float sums[kTile] = {};
  for (int panel = 0; panel < m.panels; ++panel) {
    float part[kTile];
    load_vector<float, kTile>(partials + (static_cast<int64_t>(panel) * m.rows + row) * kTile,
                              part);
#pragma unroll
    for (int t = 0; t < kTile; ++t) {
      sums[t] += part[t];
    }
  }
#pragma unroll
  for (int t = 0; t < kTile; ++t) {
    const int token = tile * kTile + t;
    if (token < all.tokens) {
      store_sum<Value>(all, token, row, sums[t]);
    }
  }
}

}  // namespace sparsellm::general_sparse
