#include "kernels/base/error.h"
#include "kernels/base/launch.cuh"
#include "kernels/checks.h"
#include "kernels/device/mma.cuh"
#include "sparse/tca_bme/ablation/ablation_kernels.cuh"

namespace sparsellm::tca_bme {
namespace {

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kLanes = 32;
constexpr int kTilesInChunk = 4;   // of 16 x 16 elements
constexpr int kBitmapsInTile = 4;  // of 8 x 8
// Nothing is left of the kernels before compute capability 9.0, where these have no use.
[[maybe_unused]] constexpr int kMaskBytes = 128;   // of a chunk
[[maybe_unused]] constexpr int kOffsetBytes = 64;  // likewise
// Chunks that have as many bytes of masks as A has in a tile.
[[maybe_unused]] constexpr int kMasksOfFragment = 4;

// acc += record * x, as multiply_record() of sparse/tca_bme/cuda/record_tile.cuh multiplies, but
// fragment(c, i, a) says what A is for tile i of chunk c.
template <class T, int NT, int CH, class FRAGMENT>
__device__ void multiply_fragments(float (&acc)[4][NT][4], uint32_t xa, uint32_t pitch,
                                   const FRAGMENT& fragment) {
  uint32_t b[(NT + 1) / 2][4];
#pragma unroll
  for (int c = 0; c < CH; ++c) {
    if (NT > 1 || (c & 1) == 0) {
#pragma unroll
      for (int n = 0; n < (NT + 1) / 2; ++n) {
        load_matrices(b[n], xa + n * 16 * pitch + c * 32);
      }
    }
#pragma unroll
    for (int i = 0; i < kTilesInChunk; ++i) {
      uint32_t a[4];
      fragment(c, i, a);
#pragma unroll
      for (int n = 0; n < NT; ++n) {
        const int h = NT == 1 ? (c & 1) * 2 : (n & 1) * 2;
        mma<T>(acc[i][n], a, b[n / 2][h], b[n / 2][h + 1]);
      }
    }
  }
}

// SpInfer's decoding in shared memory (Fan et al. 2025, section 4.3.3): a lane has bits 2 lane and
// 2 lane + 1 of every bitmap. First the bits below them are counted for the place of the first
// value; the second one follows it.
template <int CH>
struct PaperDecoder {
  int shift;
  uint64_t below;

  __device__ explicit PaperDecoder(int lane)
      : shift(2 * lane), below((uint64_t{1} << (2 * lane)) - 1) {}

  // values: where those of the bitmap begin; moves on after them.
  __device__ uint32_t decode(uint64_t bitmap, uint32_t& values) const {
    const uint32_t bits = static_cast<uint32_t>(bitmap >> shift);
    const uint32_t at = values + 2 * __popcll(bitmap & below);
    uint32_t pair = 0;
    if ((bits & 1) != 0) {
      pair = load_half<0>(at);
    }
    if ((bits & 2) != 0) {
      pair |= load_half<0>(at + 2 * (bits & 1)) << 16;
    }
    values += 2 * __popcll(bitmap);
    return pair;
  }
};

[[maybe_unused]] __device__ inline uint64_t load_bitmap(uint32_t a) {
  uint64_t v;
  asm volatile("ld.shared.u64 %0, [%1];" : "=l"(v) : "r"(a) : "memory");
  return v;
}

template <class T, int NT, int CH>
__device__ void multiply_record(float (&acc)[4][NT][4], uint32_t base, uint32_t xa, uint32_t pitch,
                                const PaperDecoder<CH>& decoder) {
  uint32_t values = 0;
  multiply_fragments<T, NT, CH>(acc, xa, pitch, [&](int c, int i, uint32_t(&a)[4]) {
    if (i == 0) {
      values = base + load_half<0>(base + CH * kMaskBytes + c * kOffsetBytes);
    }
    const uint32_t bitmaps = base + c * kMaskBytes + i * (kMaskBytes / kTilesInChunk);
#pragma unroll
    for (int q = 0; q < kBitmapsInTile; ++q) {
      a[q] = decoder.decode(load_bitmap(bitmaps + q * 8), values);
    }
  });
}

// The first bytes of a record, whatever they mean, go into the multiplication.
template <int CH>
struct NoDecoder {
  uint32_t lane16;
  __device__ explicit NoDecoder(int lane) : lane16(lane * 16) {}
};

template <class T, int NT, int CH>
__device__ void multiply_record(float (&acc)[4][NT][4], uint32_t base, uint32_t xa, uint32_t pitch,
                                const NoDecoder<CH>& decoder) {
  uint32_t own[4];
  multiply_fragments<T, NT, CH>(acc, xa, pitch, [&](int c, int i, uint32_t(&a)[4]) {
    if (i == 0 && c % kMasksOfFragment == 0) {
      load_matrices(own, base + decoder.lane16 + c * kMaskBytes);
    }
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      a[q] = own[q];
    }
  });
}

// Records are fetched, and nothing else; the product is 0.
template <int CH>
struct StreamOnly {
  __device__ explicit StreamOnly(int) {}
};

template <class T, int NT, int CH>
__device__ void multiply_record(float (&)[4][NT][4], uint32_t, uint32_t, uint32_t,
                                const StreamOnly<CH>&) {}

// Of records, only how wide they are matters to kernels that do not decode them.
template <template <int> class DECODER, int NT>
RecordKernel kernel_of(const RecordMatrix& matrix) {
  const auto kernel = [&]<int CH>() {
    return reinterpret_cast<RecordKernel>(
        &record_matmul_kernel<RecordProduct<__half, NT, CH, false, DECODER<CH>>, false>);
  };
  return matrix.chunks == 4 ? kernel.template operator()<4>() : kernel.template operator()<8>();
}

template <template <int> class DECODER>
RecordKernel kernel_for(const RecordMatrix& matrix, const TokenTile& tile, DType dtype) {
  require(dtype == DType::f16, "the stages of a kernel are erased in f16, not in {}",
          name_of(dtype));
  require(tile.tiles <= 2, "the stages of a kernel are erased for up to {} tokens, not {}",
          kMaxAblationTokens, 8 * tile.tiles);
  return tile.tiles == 1 ? kernel_of<DECODER, 1>(matrix) : kernel_of<DECODER, 2>(matrix);
}

// A warp encodes a record; a lane has the two elements of each bitmap that it gets as A.
__global__ void __launch_bounds__(kLanes)
    paper_order_kernel(const uint16_t* w, int64_t rows, int64_t columns, RecordLayout layout,
                       RecordGrid grid, const uint32_t* starts, uint8_t* records) {
  const int lane = threadIdx.x;
  const int64_t r = blockIdx.x;
  const int64_t first_row = grid.row_block(r) * kRecordRows + lane / 4;
  const int64_t first_column = grid.column(r) * layout.columns() + 2 * (lane % 4);
  uint8_t* const record = records + int64_t{starts[r]} * kRecordAlignment;
  auto* bitmap_at = reinterpret_cast<uint64_t*>(record);
  auto* const offsets = reinterpret_cast<uint16_t*>(record + layout.mask_bytes());
  int end = layout.header_bytes();  // of the values
  for (int chunk = 0; chunk < layout.chunks; ++chunk) {
    if (lane == 0) {
      offsets[offset_index(chunk, 0, 0, 0)] = static_cast<uint16_t>(end);
    }
    for (int q = 0; q < kTilesInChunk * kBitmapsInTile; ++q) {
      const int64_t row = first_row + 8 * (q / kBitmapsInTile * 2 + q % 2);
      const int64_t column = first_column + chunk * kChunkColumns + q / 2 % 2 * 8;
      uint16_t values[2];
      uint32_t bits = 0;
      for (int e = 0; e < 2; ++e) {
        values[e] = row < rows && column + e < columns ? w[row * columns + column + e] : 0;
        bits |= (values[e] & 0x7fff) != 0 ? 1u << e : 0u;
      }
      const uint32_t low = __reduce_or_sync(kAllLanes, lane < 16 ? bits << (2 * lane) : 0u);
      const uint32_t high = __reduce_or_sync(kAllLanes, lane < 16 ? 0u : bits << (2 * lane - 32));
      const uint64_t bitmap = low | uint64_t{high} << 32;
      if (lane == 0) {
        *bitmap_at = bitmap;
      }
      ++bitmap_at;
      auto* value = reinterpret_cast<uint16_t*>(record + end) +
                    __popcll(bitmap & ((uint64_t{1} << (2 * lane)) - 1));
      for (int e = 0; e < 2; ++e) {
        if ((bits >> e & 1u) != 0) {
          *value++ = values[e];
        }
      }
      end += 2 * __popcll(bitmap);
    }
  }
}

}  // namespace

RecordKernelFor ablation_kernels(Ablation ablation) {
  switch (ablation) {
    case Ablation::paper_decode:
      return &kernel_for<PaperDecoder>;
    case Ablation::no_decode:
      return &kernel_for<NoDecoder>;
    case Ablation::stream_only:
      return &kernel_for<StreamOnly>;
    default:
      fail("an ablation without kernels of its own");
  }
}

DeviceRecords encode_records_as_paper(const Tensor& w, int32_t chunks, ExecContext& ctx) {
  check_tensor({"encode as paper", "w"}, w, Elements::activation, {kAnySize, kAnySize}, ctx);
  require(w.dtype() == DType::f16 && w.contiguous(), "records as in the paper of {} {}",
          name_of(w.dtype()), w.shape_string());
  DeviceRecords made =
      encode_records_cuda(w, RecordLayout{.chunks = chunks, .values = RecordValues::single}, ctx);
  const RecordGrid grid = record_grid(w.size(0), w.size(1), made.layout);
  launch(ctx, paper_order_kernel,
         {.blocks = dim3(static_cast<unsigned>(grid.count())), .threads = kLanes},
         static_cast<const uint16_t*>(w.raw()), w.size(0), w.size(1), made.layout, grid,
         static_cast<const uint32_t*>(made.starts.data()),
         static_cast<uint8_t*>(made.records.data()));
  ctx.cuda->synchronize();
  return made;
}

}  // namespace sparsellm::tca_bme
