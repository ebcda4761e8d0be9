#pragma once

#include <cstdint>

#include "kernels/base/pdl.cuh"
#include "kernels/device/cuda_types.cuh"
#include "sparse/general_sparse/cuda/slice_matrix.h"
#include "sparse/general_sparse/format/layout.h"

// Products of few tokens with interleaved encodings: a lane has the entries of one row group of a
// slice (format/layout.h), or G lanes have, each for other tokens, so that all loads of the matrix
// are of whole lines and no row is added up over lanes (the paper's thread level with whole rows,
// THREAD_TOTAL). What a group of warps has is one slice at a time, which its warps share by their
// entries (BLOCK_TOTAL); what a thread block has is a run of slices of one panel after the other.
// x of a panel lies in shared memory as [column][token]: the tokens of a column are one load. That
// of one token may also be read as it is, through the L1: a matrix with few nonzeros is multiplied
// sooner than x is copied by every block.
namespace sparsellm::general_sparse {

// kBytes consecutive bytes that a lane loads. They bypass the L1, since each is read once.
template <int kBytes>
struct LaneBytes {
  static constexpr int kWords = (kBytes + 3) / 4;
  uint32_t words[kWords];

  __device__ void load(const uint8_t* from) {
    if constexpr (kBytes % 16 == 0) {
#pragma unroll
      for (int i = 0; i < kBytes / 16; ++i) {
        asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(words[4 * i]), "=r"(words[4 * i + 1]), "=r"(words[4 * i + 2]),
                       "=r"(words[4 * i + 3])
                     : "l"(from + 16 * i));
      }
    } else if constexpr (kBytes == 8) {
      asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
                   : "=r"(words[0]), "=r"(words[1])
                   : "l"(from));
    } else if constexpr (kBytes == 4) {
      asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(words[0]) : "l"(from));
    } else if constexpr (kBytes == 2) {
      uint16_t half;
      asm volatile("ld.global.nc.L1::no_allocate.u16 %0, [%1];" : "=h"(half) : "l"(from));
      words[0] = half;
    } else {
      static_assert(kBytes == 1);
      words[0] = *from;
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
//   T, G         tokens of a thread; threads with the same rows: T * G are the tile's
//   kStaged      x is copied to shared memory; else T * G is 1
//   kAhead       units that a lane loads before it multiplies the first of them
//   kEarlyItems  where a slice is, is found out before the one before it is multiplied
//   kThreads     of a block, at most
template <class C>
struct SliceProduct {
  using Value = typename C::Value;
  static constexpr int R = C::R;
  static constexpr int V = C::V;
  static constexpr int T = C::T;
  static constexpr int G = C::G;
  static constexpr int kTile = T * G;
  static constexpr int kColumnBytes = kTile * static_cast<int>(sizeof(Value));
  static constexpr int kValueBytes = V * R * static_cast<int>(sizeof(Value));
  using Positions = PositionReader<C::kCode, V, kColumnBytes>;
  using PositionBytes = typename Positions::Bytes;
  using ValueBytes = LaneBytes<kValueBytes>;
  using Column = ColumnBytes<T* static_cast<int>(sizeof(Value))>;
  static constexpr int kLanes = 32;

  struct Item {
    int panel;
    int window;
    int first_place;  // in the order of the chunk
    int window_groups;
    int64_t order_at;  // in row_order, of the first place of the chunk
    uint32_t begin;    // units of this warp
    uint32_t end;
    int stored;  // which slice
    // Loaded early, by each lane for itself.
    uint32_t position;  // of the entry before the first one of the part
    int group;          // of rows; -1: there is none
  };

  const SliceMatrix& m;
  const SliceOperands& o;
  int parts;         // warps that share a slice
  int part;          // of this warp
  uint8_t* x_panel;  // in shared memory, if it is staged
  float* part_sums;  // [2][warps][T][32]

  __device__ Item item(uint32_t number) const {
    Item item;
    item.panel = static_cast<int>(number) / m.panel_slices;
    const int in_panel = static_cast<int>(number) - item.panel * m.panel_slices;
    item.window = in_panel / m.window_slices;
    const int in_window = in_panel - item.window * m.window_slices;
    const int first_group = item.window * m.window_groups;
    item.window_groups = min(m.window_groups, m.groups - first_group);
    const int slices = (item.window_groups + kLanes - 1) / kLanes;
    const int stored = item.window * m.window_slices * m.panels + item.panel * slices + in_window;
    item.first_place = in_window * kLanes;
    item.order_at = static_cast<int64_t>(first_group) * m.panels +
                    static_cast<int64_t>(item.panel) * item.window_groups;
    const uint32_t begin = m.starts[stored];
    const uint32_t units = m.starts[stored + 1] - begin;
    const auto step = static_cast<uint32_t>(kMostParts / parts);
    item.begin = begin + part_border(units, part * step);
    item.end = begin + part_border(units, (part + 1) * step);
    item.stored = stored;
    of_pass(item, 0);
    return item;
  }

  // The fields of an item that depend on the rows of the lane in this pass.
  __device__ void of_pass(Item& item, int pass) const {
    const int row_lane = pass * (kLanes / G) + static_cast<int>(threadIdx.x) % kLanes / G;
    const int place = item.first_place + row_lane;
    item.group = -1;
    if (place < item.window_groups) {
      item.group = item.window * m.window_groups +
                   (m.row_order != nullptr ? m.row_order[item.order_at + place] : place);
    }
    item.position = 0;
    if (C::kCode == PositionCode::i8 && part > 0) {
      const int border = part * (kMostParts / parts) - 1;
      item.position =
          m.border_positions[(int64_t{item.stored} * (kMostParts - 1) + border) * kLanes +
                             row_lane];
    }
  }

  // The units that are on their way to a lane.
  struct Stream {
    ValueBytes values[C::kAhead];
    PositionBytes positions[C::kAhead];
  };

  __device__ void load(Stream& stream, const Item& item, int pass, uint32_t unit, int slot) const {
    if (unit < item.end) {
      const int row_lane = pass * (kLanes / G) + static_cast<int>(threadIdx.x) % kLanes / G;
      const int64_t at = static_cast<int64_t>(unit) * kLanes + row_lane;
      stream.values[slot].load(m.values + at * kValueBytes);
      stream.positions[slot].load(m.positions + at * (C::kCode == PositionCode::i8 ? V : 2 * V));
    }
  }
  __device__ void prime(Stream& stream, const Item& item, int pass) const {
#pragma unroll
    for (int i = 0; i < C::kAhead; ++i) {
      load(stream, item, pass, item.begin + i, i);
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

  __device__ void multiply(Stream& stream, const Item& item, int pass, float (&sums)[R][T]) const {
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int t = 0; t < T; ++t) {
        sums[r][t] = 0.0f;
      }
    }
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
    const uint8_t* const x = C::kStaged ? x_panel + lane % G * (T * static_cast<int>(sizeof(Value)))
                                        : static_cast<const uint8_t*>(o.x) +
                                              int64_t{item.panel} * m.panel_columns * kColumnBytes;
    Positions positions;
    positions.start(Column::kByAddress ? static_cast<uint32_t>(__cvta_generic_to_shared(x)) : 0u,
                    item.position);
#pragma unroll 1
    for (uint32_t unit = item.begin; unit < item.end; unit += C::kAhead) {
#pragma unroll
      for (int i = 0; i < C::kAhead; ++i) {
        if (unit + i < item.end) {
          const ValueBytes values = stream.values[i];
          const PositionBytes bytes = stream.positions[i];
          load(stream, item, pass, unit + i + C::kAhead, i);
          multiply_entry<0>(values, bytes, positions, x, sums);
        }
      }
    }
  }

  // A sum of row r of the lane's group.
  __device__ void store(const Item& item, int r, int token, float sum) const {
    if (item.group < 0) {
      return;
    }
    const int row = item.group * R + r;
    if (R > 1 && row >= m.rows) {
      return;
    }
    if (m.panels > 1) {
      o.partials[(static_cast<int64_t>(item.panel) * m.rows + row) * kTile + token] = sum;
    } else if (token < o.tokens) {
      store_sum<Value>(o, token, row, sum);
    }
  }

  // The tokens of the tile for the panel's columns; zeros for tokens that are not there.
  __device__ void stage_x(int panel) const {
    const int first = panel * m.panel_columns;
    const int columns = min(m.panel_columns, m.columns - first);
    const auto* const x = static_cast<const Value*>(o.x) + first;
    if constexpr (kTile < 8) {
      auto* const to = reinterpret_cast<Value*>(x_panel);
      if (kTile == 1 && o.x_pairs) {
        for (int c = static_cast<int>(threadIdx.x) * 8; c < columns; c += blockDim.x * 8) {
          if (c + 8 <= columns && reinterpret_cast<uintptr_t>(x + c) % 16 == 0) {
            *reinterpret_cast<uint4*>(to + c) = *reinterpret_cast<const uint4*>(x + c);
          } else {
            for (int i = c; i < min(c + 8, columns); ++i) {
              to[i] = x[i];
            }
          }
        }
        return;
      }
      for (int c = static_cast<int>(threadIdx.x); c < columns; c += blockDim.x) {
#pragma unroll
        for (int t = 0; t < kTile; ++t) {
          to[c * kTile + t] = t < o.tokens ? x[t * o.x_stride + c] : from_f32<Value>(0.0f);
        }
      }
    } else {
      // A thread has two columns of 8 tokens, of which it stores one first where a neighbour stores
      // the other, so that stores do not conflict.
      constexpr int kTokens = 8;
      constexpr int kParts = kTile / kTokens;
      const int token = static_cast<int>(threadIdx.x) % kParts * kTokens;
      for (int pair = static_cast<int>(threadIdx.x) / kParts; pair * 2 < columns;
           pair += static_cast<int>(blockDim.x) / kParts) {
        const int c = pair * 2;
        uint32_t both[kTokens];
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
          const Value* const from = x + (token + t) * o.x_stride + c;
          both[t] = 0;
          if (token + t < o.tokens) {
            if (o.x_pairs) {
              both[t] = *reinterpret_cast<const uint32_t*>(from);
            } else {
              const auto* const halves = reinterpret_cast<const uint16_t*>(from);
              both[t] = halves[0] | (c + 1 < columns ? uint32_t{halves[1]} << 16 : 0u);
            }
          }
        }
        uint32_t columns_of[2][kTokens / 2];
#pragma unroll
        for (int t = 0; t < kTokens; t += 2) {
          columns_of[0][t / 2] = __byte_perm(both[t], both[t + 1], 0x5410);
          columns_of[1][t / 2] = __byte_perm(both[t], both[t + 1], 0x7632);
        }
        constexpr int kPairsOfLine = 128 / (2 * kColumnBytes) > 0 ? 128 / (2 * kColumnBytes) : 1;
        const bool second_first = pair / kPairsOfLine % 2 != 0;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const bool second = (i == 1) != second_first;
          uint4 vector;
          vector.x = second ? columns_of[1][0] : columns_of[0][0];
          vector.y = second ? columns_of[1][1] : columns_of[0][1];
          vector.z = second ? columns_of[1][2] : columns_of[0][2];
          vector.w = second ? columns_of[1][3] : columns_of[0][3];
          const int column = c + (second ? 1 : 0);
          *reinterpret_cast<uint4*>(x_panel + column * kColumnBytes +
                                    token * static_cast<int>(sizeof(Value))) = vector;
        }
      }
    }
  }

  __device__ void run(uint32_t first_item, uint32_t end_item) {
    const int warp = static_cast<int>(threadIdx.x) / kLanes;
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
    const int groups = static_cast<int>(blockDim.x) / kLanes / parts;
    const int group = warp / parts;
    part = warp % parts;
    uint32_t number = first_item + group;
    int turn = 0;
    Item current;
    Stream stream;
    if (number < end_item) {
      current = item(number);
      prime(stream, current, 0);
    }
    wait_on_dependencies();
    int panel = static_cast<int>(first_item) / m.panel_slices;
    for (uint32_t from = first_item; from < end_item; ++panel) {
      const uint32_t panel_end =
          min(end_item, static_cast<uint32_t>(panel + 1) * static_cast<uint32_t>(m.panel_slices));
      if constexpr (C::kStaged) {
        if (from != first_item) {
          __syncthreads();
        }
        stage_x(panel);
        __syncthreads();
      }
      for (; number < panel_end;) {
        const uint32_t next = number + groups;
#pragma unroll 1
        for (int pass = 0; pass < G; ++pass) {
          float sums[R][T];
          if (pass > 0) {
            of_pass(current, pass);
          }
          const Item now = current;
          if constexpr (C::kEarlyItems) {
            if (next < end_item) {
              current = item(next);
            }
          }
          multiply(stream, now, pass, sums);
          if (pass + 1 < G) {
            prime(stream, now, pass + 1);
          } else if (next < end_item) {
            if constexpr (!C::kEarlyItems) {
              current = item(next);
            }
            prime(stream, current, 0);
          }
#pragma unroll
          for (int r = 0; r < R; ++r) {
            if (parts == 1) {
#pragma unroll
              for (int t = 0; t < T; ++t) {
                store(now, r, lane % G * T + t, sums[r][t]);
              }
            } else {
              add_parts(now, r, turn++, group, groups, sums[r]);
            }
          }
        }
        number = next;
      }
      from = panel_end;
    }
  }

  // Adds the sums of all parts of a slice, for row r of each group, in the order of the parts: they
  // pass through shared memory. Two buffers take turns. A warp that writes one again has passed the
  // barrier of the other, and so have all that have read the first.
  __device__ void add_parts(const Item& item, int r, int turn, int group, int groups,
                            const float (&sums)[T]) const {
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
    float* const place = part_sums + (turn % 2 * groups + group) * parts * T * kLanes;
#pragma unroll
    for (int t = 0; t < T; ++t) {
      place[(part * T + t) * kLanes + lane] = sums[t];
    }
    asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "r"(parts * kLanes) : "memory");
    for (int t = part; t < T; t += parts) {
      float sum = place[t * kLanes + lane];
      for (int p = 1; p < parts; ++p) {
        sum += place[(p * T + t) * kLanes + lane];
      }
      store(item, r, lane % G * T + t, sum);
    }
  }
};

// Blocks: for each share of the matrix one for each tile of tokens, side by side, so that the L2
// has what the others read. Of a block: whole groups of `parts` warps, at most 15 of them if there
// are several parts. Shared bytes: shared_bytes_of() of slice_product_cuda.cu.
template <class C>
__global__ void __launch_bounds__(C::kThreads)
    slice_product_kernel(const __grid_constant__ SliceMatrix m,
                         const __grid_constant__ SliceOperands all, int parts, int tiles) {
  extern __shared__ __align__(128) uint8_t shared[];
  launch_dependents();
  using Product = SliceProduct<C>;
  using Value = typename C::Value;
  const int tile = static_cast<int>(blockIdx.x) % tiles;
  const int share = static_cast<int>(blockIdx.x) / tiles;
  const int shares = static_cast<int>(gridDim.x) / tiles;
  const int first = tile * Product::kTile;
  SliceOperands o = all;
  o.x = static_cast<const Value*>(o.x) + first * o.x_stride;
  o.y = static_cast<Value*>(o.y) + first * o.y_stride;
  o.tokens = min(Product::kTile, o.tokens - first);
  o.partials += static_cast<int64_t>(tile) * m.panels * m.rows * Product::kTile;
  Product product{m, o, parts, 0, shared, nullptr};
  const int64_t staged_bytes = C::kStaged ? staged_columns(m) * Product::kColumnBytes : 0;
  product.part_sums = reinterpret_cast<float*>(shared + staged_bytes);
  const auto cut = [&](int i) { return m.share_cuts[static_cast<int64_t>(i) * m.cuts / shares]; };
  product.run(cut(share), cut(share + 1));
}

// y = the sums over all panels, in their order.
template <class Value, int kTile>
__global__ void __launch_bounds__(256)
    add_panels_kernel(const __grid_constant__ SliceMatrix m,
                      const __grid_constant__ SliceOperands all) {
  launch_dependents();
  wait_on_dependencies();
  // A warp has 32 rows; each lane has some tokens of one.
  constexpr int kTokens = kTile < 8 ? kTile : 8;
  constexpr int kParts = kTile / kTokens;
  const int at = static_cast<int>(blockIdx.x) * 256 + static_cast<int>(threadIdx.x);
  const int row = at / 32 / kParts * 32 + at % 32;
  const int in_tile = at / 32 % kParts * kTokens;
  const int tile = static_cast<int>(blockIdx.y);
  if (row >= m.rows) {
    return;
  }
  const float* const partials =
      all.partials + static_cast<int64_t>(tile) * m.panels * m.rows * kTile;
  float sums[kTokens] = {};
  for (int panel = 0; panel < m.panels; ++panel) {
    float part[kTokens];
    load_vector<float, kTokens>(
        partials + (static_cast<int64_t>(panel) * m.rows + row) * kTile + in_tile, part);
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      sums[t] += part[t];
    }
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    const int token = tile * kTile + in_tile + t;
    if (token < all.tokens) {
      store_sum<Value>(all, token, row, sums[t]);
    }
  }
}

}  // namespace sparsellm::general_sparse
