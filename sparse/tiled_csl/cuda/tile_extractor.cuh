#pragma once

#include <cstdint>

#include "sparse/tiled_csl/format/tile_record.h"

// How a warp turns a piece of a record (tile_record.h), which lies in shared memory, into nonzeros
// of a dense tile there. Addresses in shared memory are 32-bit.
namespace sparsellm::tiled_csl {

__device__ inline uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selector) {
  uint32_t d;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
  return d;
}
// 0 from a shift by 32 on.
__device__ inline uint32_t shift_left(uint32_t v, uint32_t by) {
  uint32_t d;
  asm("shl.b32 %0, %1, %2;" : "=r"(d) : "r"(v), "r"(by));
  return d;
}
// The compiler must not compute it again, each time that it is used, from the lane's number.
__device__ inline uint32_t computed_once(uint32_t v) {
  uint32_t d;
  asm volatile("mov.u32 %0, %1;" : "=r"(d) : "r"(v));
  return d;
}

template <class T>
__device__ const T* computed_once(const T* v) {
  const T* d;
  asm volatile("mov.u64 %0, %1;" : "=l"(d) : "l"(v));
  return d;
}

__device__ inline uint32_t load_shared8(uint32_t a) {
  uint32_t v;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(a) : "memory");
  return v;
}
__device__ inline uint32_t load_shared32(uint32_t a) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(a) : "memory");
  return v;
}
__device__ inline uint2 load_shared64(uint32_t a) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(a) : "memory");
  return v;
}
__device__ inline uint4 load_shared128(uint32_t a) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(a)
               : "memory");
  return v;
}
// 0 where there is no such word.
__device__ inline uint32_t load_shared32_if(bool is_there, uint32_t a) {
  uint32_t v;
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\nmov.u32 %0, 0;\n@p ld.shared.u32 %0, [%1];\n}"
      : "=&r"(v)
      : "r"(a), "r"(static_cast<uint32_t>(is_there))
      : "memory");
  return v;
}
__device__ inline void store_low16(uint32_t a, uint32_t v) {
  asm volatile("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %1;\nst.shared.b16 [%0], l;\n}" ::"r"(a), "r"(v)
               : "memory");
}
__device__ inline void store_high16(uint32_t a, uint32_t v) {
  asm volatile("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %1;\nst.shared.b16 [%0], h;\n}" ::"r"(a), "r"(v)
               : "memory");
}
__device__ inline void store_low16_if(bool is_there, uint32_t a, uint32_t v) {
  asm volatile(
      "{\n.reg .b16 l, h;\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\nmov.b32 {l, h}, %1;\n"
      "@p st.shared.b16 [%0], l;\n}" ::"r"(a),
      "r"(v), "r"(static_cast<uint32_t>(is_there))
      : "memory");
}
__device__ inline void store_zeros128(uint32_t a) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(a), "r"(0) : "memory");
}

// The four places that four location bytes name in banks that are given as bytes, 4 times their
// number: as two bytes each, the lower ones of all and the upper ones.
struct FourPlaces {
  uint32_t low;   // row & 1, bank, column & 1
  uint32_t high;  // row / 2

  __device__ FourPlaces(uint32_t locations, uint32_t banks)
      : low(((locations >> 5) & 0x02020202u) | banks | (locations & 0x80808080u)),
        high(locations & 0x3f3f3f3fu) {}
  template <int I>
  __device__ uint32_t place() const {
    // The bytes above are the sign of the upper one, which is 0.
    return permute_bytes(low, high, 0xcc40u + I * 0x1111u);
  }
};

// Of kParts warps that share a tile, one's; for one tile of 16 KiB that begins as dense zeros.
// kKeeps: it remembers where it stored, to clear the tile with fewer stores.
template <int kParts, bool kKeeps>
class TileExtractor {
 public:
  __device__ TileExtractor(uint32_t tile, int lane, int part = 0)
      : tile_(tile),
        part_(part),
        lane_(part * kWarp + lane),
        lane4_(computed_once(lane_ * 4)),
        lane8_(computed_once(lane * 8)),
        lane16_(computed_once(lane * 16)),
        bank_(computed_once(lane * 0x04040404u)) {}

  // What the extraction of a piece says of its record.
  struct Extracted {
    bool last;  // it has no further piece
    bool kept;  // clear_places() knows where everything of this piece is
  };

  __device__ Extracted extract(uint32_t piece) {
    const uint32_t header = load_shared32(piece);
    groups_ = header & 0xff;
    words_ = header >> 16;
    const uint32_t has_hosts = header >> 8 & kHasHosts;
    const uint32_t host_bytes = has_hosts * (kWarp / kHasHosts);
    const uint32_t head = (kPieceHeader + host_bytes + words_ * kWordBytes + kRecordAlignment - 1) &
                          ~static_cast<uint32_t>(kRecordAlignment - 1);
    take_hosts(has_hosts && part_ == 0, piece + kPieceHeader);
    store_words(piece + kPieceHeader + host_bytes);
    store_groups(piece + head, piece + head + groups_ * kGroupValueBytes);
    return {.last = (header >> 8 & kLastPiece) != 0,
            .kept = kKeeps && words_ <= kKeptWords * kLanes};
  }

  // Zeros in all places of the last piece, if they are kept.
  __device__ void clear_places() const {
    static_assert(kKeeps);
    const int mine = static_cast<int>(words_) - lane_;
#pragma unroll
    for (int i = 0; i < kKeptWords; i += 2) {
      if (i * kLanes < words_) {
        store_low16_if(mine > i * kLanes, tile_ + (places_[i / 2] & 0xffff), 0);
        store_low16_if(mine > (i + 1) * kLanes, tile_ + (places_[i / 2] >> 16), 0);
      }
    }
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      if (part_ + i * kParts < groups_) {
        put_four(locations_[i].x, 0, 0, i == 0 ? low_banks_ : bank_);
        put_four(locations_[i].y, 0, 0, i == 0 ? high_banks_ : bank_);
      }
    }
  }

  __device__ void clear_tile() const {
#pragma unroll
    for (int i = part_ * 16 * kWarp; i < kTileElements * 2; i += 16 * kLanes) {
      store_zeros128(tile_ + lane16_ + i);
    }
  }

 private:
  static constexpr int kLanes = kParts * kWarp;
  static constexpr int kGroups = kPieceGroups / kParts;  // of a part
  static constexpr int kKeptWords = 8 / kParts;          // of a lane
  static_assert(kPieceGroups % (2 * kParts) == 0);

  // From slot h % 8 of group 0 on, values go to bank h / 8.
  __device__ void take_hosts(bool has_hosts, uint32_t hosts) {
    low_banks_ = high_banks_ = bank_;
    if (has_hosts) {
      const uint32_t host = load_shared8(hosts + lane_);
      const uint32_t own_bits = host % kSlots * 8;
      const uint32_t other = host / kSlots * 0x04040404u;
      const uint32_t low = shift_left(~0u, own_bits);
      const uint32_t high = shift_left(~0u, own_bits > 32 ? own_bits - 32 : 0);
      low_banks_ = (bank_ & ~low) | (other & low);
      high_banks_ = (bank_ & ~high) | (other & high);
    }
  }

  __device__ void store_words(uint32_t words) {
    const int mine = static_cast<int>(words_) - lane_;
    words += lane4_;
#pragma unroll
    for (int i = 0; i < kKeptWords; i += 2) {
      if (i * kLanes < words_) {
        const bool first = mine > i * kLanes;
        const bool second = mine > (i + 1) * kLanes;
        const uint32_t a = load_shared32_if(first, words + i * (kLanes * kWordBytes));
        const uint32_t b = load_shared32_if(second, words + (i + 1) * (kLanes * kWordBytes));
        store_low16_if(first, tile_ + (a >> 16), a);
        store_low16_if(second, tile_ + (b >> 16), b);
        places_[i / 2] = permute_bytes(a, b, 0x7632);
      }
    }
#pragma unroll 1
    for (int i = kKeptWords * kLanes; i < mine; i += kLanes) {
      const uint32_t word = load_shared32(words + i * kWordBytes);
      store_low16(tile_ + (word >> 16), word);
    }
  }

  __device__ void store_groups(uint32_t values, uint32_t locations) {
    values += lane16_ + part_ * kGroupValueBytes;
    locations += lane8_ + part_ * (kWarp * kSlots);
#pragma unroll
    for (int i = 0; i < kGroups; i += 2) {
      if (part_ + i * kParts < groups_) {
        // Both are loaded before either is stored.
        const bool second = part_ + (i + 1) * kParts < groups_;
        uint4 v[2];
        v[0] = load_shared128(values + i * (kParts * kGroupValueBytes));
        locations_[i] = load_shared64(locations + i * (kParts * kWarp * kSlots));
        if (second) {
          v[1] = load_shared128(values + (i + 1) * (kParts * kGroupValueBytes));
          locations_[i + 1] = load_shared64(locations + (i + 1) * (kParts * kWarp * kSlots));
        }
        put_four(locations_[i].x, v[0].x, v[0].y, i == 0 ? low_banks_ : bank_);
        put_four(locations_[i].y, v[0].z, v[0].w, i == 0 ? high_banks_ : bank_);
        if (second) {
          put_four(locations_[i + 1].x, v[1].x, v[1].y, bank_);
          put_four(locations_[i + 1].y, v[1].z, v[1].w, bank_);
        }
      }
    }
  }

  __device__ void put_four(uint32_t locations, uint32_t a, uint32_t b, uint32_t banks) const {
    const FourPlaces places(locations, banks);
    store_low16(tile_ + places.template place<0>(), a);
    store_high16(tile_ + places.template place<1>(), a);
    store_low16(tile_ + places.template place<2>(), b);
    store_high16(tile_ + places.template place<3>(), b);
  }

  uint32_t tile_;
  int part_;
  int lane_;  // among those of all parts
  uint32_t lane4_;
  uint32_t lane8_;
  uint32_t lane16_;
  uint32_t bank_;  // 4 times the lane of the warp, in each byte
  // Of the last piece.
  uint32_t groups_ = 0;
  uint32_t words_ = 0;
  uint32_t low_banks_ = 0;  // of the slots of group 0
  uint32_t high_banks_ = 0;
  uint2 locations_[kGroups];
  uint32_t places_[kKeptWords / 2];  // of words, two in each
};

}  // namespace sparsellm::tiled_csl
