#pragma once

#include "sparse/tiled_csl/cuda/tile_matmul.cuh"

// What multiply_share() does in the variants of the ablation, in place of AllStages.
namespace sparsellm::tiled_csl {

// Pieces come and go. A lane reads the header of each, which is what waits for it.
struct MemoryOnly {
  static constexpr bool kExtracts = false;
  static constexpr bool kMultiplies = false;
  static constexpr bool kXAhead = false;

  __device__ MemoryOnly(const TileParameters&, const TileCursor&) {}
  template <class Extractor, class Pieces>
  __device__ bool extract(Extractor&, Pieces& pieces) {
    for (bool last = false; !last;) {
      last = (load_shared32(pieces.wait()) >> 8 & kLastPiece) != 0;
      __syncwarp();
      pieces.release();
    }
    return true;
  }
};

// The first piece of the warp's first record is extracted for all of its tiles, as often as makes
// the bytes of that record for each of them. With one slot, which is never released.
struct ExtractOnly {
  static constexpr bool kExtracts = true;
  static constexpr bool kMultiplies = false;
  static constexpr bool kXAhead = false;

  __device__ ExtractOnly(const TileParameters& p, const TileCursor& tiles) {
    if (!tiles.done()) {
      record_ = __ldg(p.starts + tiles.tile() + 1) - __ldg(p.starts + tiles.tile());
      piece_ = min(record_, static_cast<uint32_t>(kPieceBytes / kRecordAlignment));
    }
  }
  template <class Extractor, class Pieces>
  __device__ bool extract(Extractor& extractor, Pieces& pieces) {
    const uint32_t piece = pieces.wait();
    bool kept = false;
    for (owed_ += record_; owed_ >= piece_; owed_ -= piece_) {
      kept = extractor.extract(piece).kept;
      __syncwarp();
    }
    return kept && piece_ == record_;
  }

 private:
  // In units of 16 bytes.
  uint32_t record_ = 1;
  uint32_t piece_ = 1;
  uint32_t owed_ = 0;  // that was not yet extracted
};

// Without slots: no pieces are requested.
struct TensorCoresOnly {
  static constexpr bool kExtracts = false;
  static constexpr bool kMultiplies = true;
  static constexpr bool kXAhead = true;

  __device__ TensorCoresOnly(const TileParameters&, const TileCursor&) {}
  template <class Extractor, class Pieces>
  __device__ bool extract(Extractor&, Pieces&) {
    return true;
  }
};

// With one slot, whose next piece is requested when it is needed.
struct NoOverlap {
  static constexpr bool kExtracts = true;
  static constexpr bool kMultiplies = true;
  static constexpr bool kXAhead = false;

  __device__ NoOverlap(const TileParameters&, const TileCursor&) {}
  template <class Extractor, class Pieces>
  __device__ bool extract(Extractor& extractor, Pieces& pieces) {
    OnDemand<Pieces> on_demand{pieces, released_};
    return extract_record(
        extractor, on_demand, [] { __syncwarp(); }, [] {});
  }

 private:
  template <class Pieces>
  struct OnDemand {
    Pieces& pieces;
    bool& released;  // what came last, and nothing was requested since

    __device__ uint32_t wait() {
      if (released) {
        pieces.release();
        released = false;
      }
      return pieces.wait();
    }
    __device__ void release() { released = true; }
  };

  bool released_ = false;
};

}  // namespace sparsellm::tiled_csl
