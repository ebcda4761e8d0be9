#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/base/cuda_context.h"
#include "kernels/base/error.h"
#include "sparse/tiled_csl/ablation/ablation.h"
#include "sparse/tiled_csl/ablation/ablation_kernels.cuh"
#include "sparse/tiled_csl/ablation/word_records.h"
#include "sparse/tiled_csl/cuda/tile_encode_cuda.h"
#include "sparse/tiled_csl/cuda/tile_launch.cuh"
#include "sparse/tiled_csl/host/record_view.h"
#include "sparse/tiled_csl/tiled_csl.h"

namespace sparsellm::tiled_csl {
namespace {

constexpr AblationVariant kVariants[] = {
    // In the order of Ablation.
    {"ours", true},
    {"memory only: load", false},
    {"extract only", false},
    {"tensor cores only", false},
    {"without overlap", true},
    {"words, bank after bank", true},
    {"words in random order", true},
};

template <class Stages>
TileVariant few_tokens(DType, int, bool, int64_t tokens) {
  return tokens <= 8 ? tile_variant<__half, 8, kMostTiles, Stages>()
                     : tile_variant<__half, 16, kMostTiles, Stages>();
}

// For what has kernels of its own.
std::optional<TileVariants> variants_of(Ablation ablation) {
  switch (ablation) {
    case Ablation::memory_only:
      return TileVariants{.variant_for = &few_tokens<MemoryOnly>};
    case Ablation::extract_only:
      return TileVariants{.variant_for = &few_tokens<ExtractOnly>, .most_slots = 1};
    case Ablation::tensor_cores_only:
      return TileVariants{.variant_for = &few_tokens<TensorCoresOnly>, .most_slots = 0};
    case Ablation::no_overlap:
      return TileVariants{.variant_for = &few_tokens<NoOverlap>, .most_slots = 1};
    default:
      return std::nullopt;
  }
}

Buffer copy_of(Device from, Device to, int64_t bytes, const void* data) {
  Buffer copy(to, bytes, "an encoded weight");
  copy_bytes(to, copy.data(), from, data, bytes);
  return copy;
}
DeviceTiles copy_of(const DeviceTiles& tiles) {
  const auto copy = [](const Buffer& from) {
    return copy_of(from.device(), from.device(), from.bytes(), from.data());
  };
  return {.nonzeros = tiles.nonzeros,
          .largest_record = tiles.largest_record,
          .starts = copy(tiles.starts),
          .records = copy(tiles.records)};
}

DeviceTiles encode_as_words_for(const Tensor& w, WordOrder order, ExecContext& ctx) {
  ctx.cuda->synchronize();
  const OwnedTensor on_host = allocate_tensor({}, w.dtype(), {w.size(0), w.size(1)}, "a weight");
  copy_bytes({}, on_host.view.raw(), ctx.device, w.raw(), on_host.buffer.bytes());
  const EncodedWeight e = encode_as_words(on_host.view, order, ctx.threads);
  const auto upload = [&](const EncodedPart& part) {
    return copy_of(Device{}, ctx.device, std::ssize(part.bytes), part.bytes.data());
  };
  DeviceTiles made{.nonzeros = e.nonzeros,
                   .starts = upload(e.part(kStarts)),
                   .records = upload(e.part(kRecords))};
  const auto starts = e.part(kStarts).values<uint32_t>();
  for (size_t tile = 0; tile + 1 < starts.size(); ++tile) {
    made.largest_record =
        std::max(made.largest_record, int64_t{starts[tile + 1] - starts[tile]} * kRecordAlignment);
  }
  return made;
}

class TileProduct : public AblatedProduct {
 public:
  struct Parts {
    Ablation ablation;
    std::vector<TileMatrix> copies;
    TileMatmulConfig config;
    Tensor x;
    Tensor y;
  };
  explicit TileProduct(Parts parts) : parts_(std::move(parts)) {}

  std::string configuration() const override { return tile_matmul_name(parts_.config); }
  void enqueue(int64_t copy, const ExecContext& ctx) override {
    const auto& [ablation, copies, config, x, y] = parts_;
    const TileMatrix& matrix = copies[static_cast<size_t>(copy)];
    const CudaProductOperands operands{.x = x.raw(),
                                       .x_stride = x.row_stride(),
                                       .y = y.raw(),
                                       .y_stride = y.row_stride(),
                                       .tokens = x.size(0),
                                       .dtype = x.dtype()};
    if (const std::optional<TileVariants> variants = variants_of(ablation)) {
      tile_matmul_by(*variants, matrix, operands, config, ctx);
    } else {
      tile_matmul_cuda(matrix, operands, config, ctx);
    }
  }

 private:
  Parts parts_;
};

class TileAblation : public AblatedWeight {
 public:
  TileAblation(const Tensor& w, const std::function<int64_t(int64_t)>& copies, ExecContext& ctx)
      : weight_(w), multiprocessors_(tile_matmul_multiprocessors(ctx.device)) {
    require(w.dtype() == DType::f16 && w.contiguous(),
            "the stages of a kernel are erased in f16, not in {}", name_of(w.dtype()));
    require(multiprocessors_ > 0, "this GPU does not run the kernel of tiled_csl for few tokens");
    encoded_.push_back(encode_tiles_cuda(w, ctx));
    copies_ = copies(bytes(0));
    complete(encoded_);
  }

  std::span<const AblationVariant> variants() const override { return kVariants; }
  int64_t copies() const override { return copies_; }
  int64_t bytes(size_t variant) const override {
    const std::vector<DeviceTiles>* const own = words_of(static_cast<Ablation>(variant));
    const DeviceTiles& first = own != nullptr && !own->empty() ? own->front() : encoded_.front();
    return first.starts.bytes() + first.records.bytes();
  }

  std::unique_ptr<AblatedProduct> bind(size_t variant, const Tensor& x, const Tensor& y,
                                       ExecContext& ctx) override {
    const auto ablation = static_cast<Ablation>(variant);
    require(x.size(0) <= kMaxAblationTokens,
            "the stages of a kernel are erased for up to {} tokens, not {}", kMaxAblationTokens,
            x.size(0));
    std::vector<TileMatrix> copies = matrices(ablation, ctx);
    const std::optional<TileMatmulConfig> config = tile_matmul_rule(copies.front(), x.size(0));
    require(config && config->groups == 0 && !config->multistage,
            "the rule of {} does not choose the kernel for few tokens for {}", kName, x.size(0));
    return std::make_unique<TileProduct>(TileProduct::Parts{
        .ablation = ablation, .copies = std::move(copies), .config = *config, .x = x, .y = y});
  }

 private:
  const std::vector<DeviceTiles>* words_of(Ablation ablation) const {
    return ablation == Ablation::ordered_words  ? &words_[0]
           : ablation == Ablation::random_words ? &words_[1]
                                                : nullptr;
  }

  void complete(std::vector<DeviceTiles>& encoded) const {
    while (std::ssize(encoded) < copies_) {
      encoded.push_back(copy_of(encoded.front()));
    }
  }

  std::vector<TileMatrix> matrices(Ablation ablation, ExecContext& ctx) {
    const bool words = words_of(ablation) != nullptr;
    const bool random = ablation == Ablation::random_words;
    std::vector<DeviceTiles>& encoded = words ? words_[random ? 1 : 0] : encoded_;
    if (encoded.empty()) {
      encoded.push_back(
          encode_as_words_for(weight_, random ? WordOrder::random : WordOrder::round_banks, ctx));
      complete(encoded);
    }
    std::vector<TileMatrix> all;
    for (const DeviceTiles& tiles : encoded) {
      all.push_back({.records = static_cast<const uint8_t*>(tiles.records.data()),
                     .starts = static_cast<const uint32_t*>(tiles.starts.data()),
                     .rows = weight_.size(0),
                     .columns = weight_.size(1),
                     .largest_record = tiles.largest_record,
                     .multiprocessors = multiprocessors_});
    }
    return all;
  }

  Tensor weight_;
  int multiprocessors_;
  int64_t copies_ = 1;
  std::vector<DeviceTiles> encoded_;
  std::array<std::vector<DeviceTiles>, 2> words_;  // ordered, random; once they are needed
};

}  // namespace

std::unique_ptr<AblatedWeight> ablate(const Tensor& w,
                                      const std::function<int64_t(int64_t bytes)>& copies,
                                      ExecContext& ctx) {
  return std::make_unique<TileAblation>(w, copies, ctx);
}

}  // namespace sparsellm::tiled_csl
