#include "sparse/expand_matmul.h"

#include <algorithm>
#include <array>

#include "kernels/base/cuda_context.h"
#include "kernels/gemm.h"

namespace sparsellm {
namespace {

// Pieces begin where the records and tiles of the formats do, and rows of y keep their alignment.
constexpr int64_t kPieceStep = 512;
constexpr int64_t kStreams = 2;
constexpr int64_t kBlasWords = CudaContext::kWorkspaceBytes / size_of(DType::f32);

int64_t row_bytes_of(int64_t in) { return std::max<int64_t>(in, 1) * size_of(DType::f16); }

int64_t max_piece_rows(int64_t out, int64_t in) {
  // Products of larger pieces waste less of their last wave, which is worth more than the L2.
  constexpr int64_t kMaxBytes = 64 << 20;
  constexpr int64_t kMaxLongRows = 2048;  // fewer leave a device half empty
  return std::min(std::max(kMaxBytes / row_bytes_of(in) / kPieceStep * kPieceStep, kMaxLongRows),
                  out);
}

}  // namespace

int64_t expand_piece_rows(int64_t out, int64_t in, int64_t tokens) {
  // The tiles that cuBLAS uses for large products, and the multiprocessors of an H100: what matters
  // is that they are not left idle by a piece a little too large.
  constexpr int64_t kTileRows = 128;
  constexpr int64_t kMultiprocessors = 132;
  const int64_t tile_tokens = tokens < 1024 ? 128 : 256;
  const int64_t token_tiles = (tokens + tile_tokens - 1) / tile_tokens;
  const auto waves = [&](int64_t rows) {
    const int64_t tiles = (rows + kTileRows - 1) / kTileRows * token_tiles;
    return (tiles + kMultiprocessors - 1) / kMultiprocessors;
  };
  const auto waves_of_pieces = [&](int64_t rows) {
    return out / rows * waves(rows) + waves(out % rows);
  };
  const int64_t most = max_piece_rows(out, in);
  int64_t best = most;
  // Smaller pieces stay in the L2, but take more launches.
  constexpr int64_t kMinBytes = 16 << 20;
  const int64_t least = std::max(kMinBytes / row_bytes_of(in), int64_t{1});
  for (int64_t rows = most / kPieceStep * kPieceStep; rows >= least; rows -= kPieceStep) {
    best = waves_of_pieces(rows) <= waves_of_pieces(best) ? rows : best;
  }
  return best;
}

std::vector<int64_t> expand_piece_choices(int64_t out, int64_t in, int64_t tokens) {
  // Others that fill the device: a partial wave of tiles costs more than launches.
  const int64_t rule = expand_piece_rows(out, in, tokens);
  std::vector<int64_t> choices{rule};
  for (const int64_t rows : {2 * rule, rule / 2, rule / 4}) {
    if (rows <= max_piece_rows(out, in) && rows >= kPieceStep && rows % kPieceStep == 0) {
      choices.push_back(rows);
    }
  }
  return choices;
}

int64_t expand_matmul_workspace_bytes(int64_t out, int64_t in) {
  return kStreams * Workspace::tensor_bytes(DType::f16, {max_piece_rows(out, in), in}) +
         Workspace::tensor_bytes(DType::f32, {kBlasWords});
}

int64_t expand_single_piece_rows(int64_t out, int64_t in) {
  constexpr int64_t kMaxBytes = 16 << 20;
  constexpr int64_t kStep = 64;  // where whole records begin
  const int64_t rows = std::max(kMaxBytes / row_bytes_of(in), int64_t{1});
  return std::min(rows < kStep ? rows : rows / kStep * kStep, out);
}

int64_t expand_single_piece_workspace_bytes(int64_t out, int64_t in) {
  return Workspace::tensor_bytes(DType::f16, {expand_single_piece_rows(out, in), in});
}

void expand_matmul(const ExpandMatmul& how, const Tensor& x, Tensor y, const Epilogue& epilogue,
                   ExecContext& ctx) {
  const int64_t out = how.weight.out();
  auto scratch = ctx.workspace.scope();
  const auto buffer = [&] { return scratch.tensor(x.dtype(), {how.piece_rows, how.weight.in()}); };
  const bool overlapped = how.overlapped && how.piece_rows < out;
  const int64_t streams = overlapped ? kStreams : 1;
  const std::array<Tensor, kStreams> buffers{buffer(), overlapped ? buffer() : Tensor()};
  const CudaQueue side = overlapped
                             ? ctx.cuda->side_queue(scratch.tensor(DType::f32, {kBlasWords}).raw())
                             : CudaQueue();
  StreamFence begun(*ctx.cuda);  // the workspace is free, and x there
  StreamFence done(*ctx.cuda);
  begun.set(ctx.queue);
  for (int64_t begin = 0; begin < out; begin += how.piece_rows) {
    const int64_t piece = begin / how.piece_rows;
    const bool on_side = piece % streams == 1;
    ExecContext piece_ctx = ctx;
    if (on_side) {
      piece_ctx.queue = &side;
      if (piece == 1) {
        begun.wait(&side);
      }
    }
    const int64_t count = std::min(how.piece_rows, out - begin);
    const Tensor dense = buffers[static_cast<size_t>(piece % streams)].rows(0, count);
    how.weight.expand({.begin = begin, .count = count}, dense, piece_ctx);
    // No PDL: the expanded piece is not to be read before the expansion has ended.
    piece_ctx.launches = Launches::ordinary;
    const Tensor bias = epilogue.bias.empty() ? Tensor() : epilogue.bias.rows(begin, count);
    gemm(x, dense, {.bias = bias, .activation = epilogue.activation}, y.columns(begin, count),
         piece_ctx);
    if (on_side) {
      done.set(&side);  // the last one counts
    }
  }
  if (overlapped) {
    done.wait(ctx.queue);
  }
}

}  // namespace sparsellm
