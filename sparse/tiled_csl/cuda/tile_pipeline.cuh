#pragma once

#include <cstdint>

#include "kernels/device/async_copy.cuh"
#include "sparse/tiled_csl/cuda/tile_extractor.cuh"
#include "sparse/tiled_csl/format/tile_record.h"

// What the kernels over tiles (tile_matmul.cuh, tile_wgmma.cuh, tile_multistage.cuh) share: which
// tiles a warp or a thread block has, and how their records come to shared memory.
namespace sparsellm::tiled_csl {

constexpr int kTileBytes = kTileElements * 2;
constexpr int kMaxSlots = 4;   // of a tile
constexpr int kMaxWarps = 12;  // tiles of a thread block, with a warp each or two

// What kernels have in shared memory beside tiles and slots: barriers, and for each warp 8 bytes
// more. Tiles begin at the next multiple of 1,024 bytes; two slots of 8 tiles need all that is
// left.
constexpr int kStaticBytes = 8 * kMaxWarps * (kMaxSlots + 1);

struct TileParameters {
  const uint8_t* records;
  const uint32_t* starts;
  const void* x;
  int64_t x_stride;
  void* y;
  int64_t y_stride;
  const void* bias;    // null: none
  float4* partials;    // sums of rows of tiles that several blocks or warps share
  uint32_t* arrivals;  // [blocks]; 0 before and after
  int rows;
  int columns;
  int tokens;
  int row_tiles;  // of a row of tiles
  int share;      // tiles of a warp, or steps of a block
  int longer;     // the first ones, which have one more
  int slots;      // of a tile
  int slot_bytes;
  bool stage_ahead;  // the next step's products are issued before those of a step have ended
  bool relu;
  bool y_in_lines;  // eight rows of a token, from a multiple of 8 on, are 16-byte aligned
  bool x_aligned;   // rows of x begin where the kernel's loads take several elements
};

struct TileRange {
  int first = 0;
  int end = 0;
};
__device__ inline int first_tile_of(const TileParameters& p, int index) {
  return index * p.share + min(index, p.longer);
}

// Every `stride`-th tile of a range, from number `from` on. Rows of tiles come from the last to the
// first, the tiles of each in their order.
class TileCursor {
 public:
  __device__ TileCursor(TileRange range, int row_tiles, int from, int stride)
      : row_tiles_(row_tiles), stride_(stride), first_(range.first), end_(range.end) {
    row_begin_ = done() ? 0 : (end_ - 1) / row_tiles * row_tiles;
    tile_ = max(first_, row_begin_) + from;
    settle();
  }
  __device__ bool done() const { return end_ <= first_; }
  __device__ int tile() const { return tile_; }
  __device__ int column() const { return tile_ - row_begin_; }
  // The first tile of the row, and the tiles of it that are in the range, whoever has them.
  __device__ int row_begin() const { return row_begin_; }
  __device__ TileRange row_range() const { return {max(first_, row_begin_), end_}; }
  __device__ void advance(int tiles = 1) {  // nothing once it is done
    tile_ += tiles * stride_;
    settle();
  }
  __device__ void skip_row() {  // of a cursor over all tiles
    tile_ = end_;
    settle();
  }

 private:
  __device__ void settle() {
    while (tile_ >= end_ && !done()) {
      const int past = tile_ - end_;
      end_ = max(first_, row_begin_);
      row_begin_ -= row_tiles_;
      tile_ = max(first_, row_begin_) + past;
    }
  }

  int row_tiles_;
  int stride_;
  int first_;
  int end_;  // of the tiles that are left
  int row_begin_;
  int tile_;
};

// Sixteen elements as pairs, from an address that is a multiple of 16 bytes. By ordinary loads:
// those for constant memory (ld.global.nc) may not be used, since the kernel before may still write
// x.
__device__ inline void load_columns(uint32_t (&to)[8], const void* from) {
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "l"(from)
               : "memory");
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4 + 16];"
               : "=r"(to[4]), "=r"(to[5]), "=r"(to[6]), "=r"(to[7])
               : "l"(from)
               : "memory");
}
// Pairs of the first `count` of 16 elements; zeros after them.
__device__ inline void load_some_columns(uint32_t (&to)[8], const uint16_t* from, int count) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint32_t low = 2 * i < count ? from[2 * i] : 0;
    const uint32_t high = 2 * i + 1 < count ? from[2 * i + 1] : 0;
    to[i] = low | high << 16;
  }
}

// Finds the pieces of a warp's records, one after the other. By the whole warp. Tiles says which
// tiles: done(), tile(), advance() as of TileCursor.
template <class Tiles>
class PieceFinder {
 public:
  __device__ PieceFinder(const TileParameters& p, const Tiles& tiles)
      : p_(p), lane_(threadIdx.x % kWarp), cursor_(tiles) {
    look_up();
  }

  // use(its first byte, how many), both in units of 16 bytes, for the next piece; not called after
  // the last.
  template <class Use>
  __device__ void next(Use&& use) {
    if (start_ == end_) {
      if (next_ == kWarp) {
        look_up();
      }
      start_ = __shfl_sync(~0u, starts_, next_);
      end_ = __shfl_sync(~0u, ends_, next_);
      if (start_ == end_) {
        return;
      }
      ++next_;
    }
    constexpr uint32_t kPieceUnits = kPieceBytes / kRecordAlignment;
    const uint32_t units = min(end_ - start_, kPieceUnits);
    use(start_, units);
    start_ += units;
  }

 private:
  // Where the records of the next 32 tiles lie, one for each lane; nowhere after the last.
  __device__ void look_up() {
    Tiles mine = cursor_;
    mine.advance(lane_);
    starts_ = mine.done() ? 0 : __ldg(p_.starts + mine.tile());
    ends_ = mine.done() ? 0 : __ldg(p_.starts + mine.tile() + 1);
    cursor_.advance(kWarp);
    next_ = 0;
  }

  const TileParameters& p_;
  int lane_;
  Tiles cursor_;        // at the tiles that are looked up next
  uint32_t start_ = 0;  // of the part of a record that was not yet used
  uint32_t end_ = 0;
  uint32_t starts_;  // of the records that were looked up
  uint32_t ends_;
  int next_;  // of them
};

// Copies the pieces of a warp's records into its slots, in turn: bulk copies, which take compute
// capability 9.0. By the whole warp; if warps share them, the one that `requests`.
template <class Tiles>
class PieceQueue {
 public:
  __device__ PieceQueue(const TileParameters& p, const Tiles& tiles, uint32_t slots,
                        uint32_t barriers, bool requests = true)
      : p_(p),
        requests_(requests),
        slots_(slots),
        barriers_(barriers),
        policy_(evict_first()),
        piece_(slots),
        barrier_(barriers),
        finder_(p, tiles) {
    for (int i = 0; i < p.slots; ++i) {
      request(slots + i * p.slot_bytes, barriers + i * 8);
    }
  }

  // The shared address of the next piece, which is there.
  __device__ uint32_t wait() const {
    barrier_wait(barrier_, parity_);
    return piece_;
  }
  // Nothing reads the piece any more.
  __device__ void release() {
    request(piece_, barrier_);
    piece_ += p_.slot_bytes;
    barrier_ += 8;
    if (++slot_ == p_.slots) {
      slot_ = 0;
      parity_ ^= 1;
      piece_ = slots_;
      barrier_ = barriers_;
    }
  }

 private:
  __device__ void request(uint32_t slot, uint32_t barrier) {
    if (!requests_) {
      return;
    }
    finder_.next([&](uint32_t start, uint32_t units) {
      // One thread, chosen by the instruction that lets the compiler see that it is one.
      asm volatile(
          "{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\n"
          "@p mbarrier.arrive.expect_tx.shared.b64 _, [%3], %2;\n"
          "@p cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
          "[%0], [%1], %2, [%3], %4;\n}" ::"r"(slot),
          "l"(p_.records + uint64_t{start} * kRecordAlignment), "r"(units * kRecordAlignment),
          "r"(barrier), "l"(policy_)
          : "memory");
    });
  }

  const TileParameters& p_;
  bool requests_;
  uint32_t slots_;
  uint32_t barriers_;
  uint64_t policy_;
  uint32_t piece_;  // that comes next
  uint32_t barrier_;
  uint32_t parity_ = 0;
  int slot_ = 0;
  PieceFinder<Tiles> finder_;
};

// Stores the nonzeros of the next record. Returns whether extractor.clear_places() clears them all.
// meet(): all warps that share the tile have come so far. done(): all has been stored.
template <class Extractor, class Pieces, class Meet, class Done>
__device__ bool extract_record(Extractor& extractor, Pieces& pieces, Meet&& meet, Done&& done) {
  auto extracted = extractor.extract(pieces.wait());
  const bool one_piece = extracted.last;
  meet();
  while (!extracted.last) {
    pieces.release();
    extracted = extractor.extract(pieces.wait());
    meet();
  }
  done();
  pieces.release();
  return one_piece && extracted.kept;
}

}  // namespace sparsellm::tiled_csl
