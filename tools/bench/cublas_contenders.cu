#include <cublas_v2.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/cuda_state.cuh"
#include "kernels/gemm_tuning.cuh"
#include "tools/bench/cold_cache.h"
#include "tools/bench/fp8_rounding.h"
#include "tools/bench/library_contenders.h"
#include "tools/bench/library_handle.h"
#include "tools/bench/library_type.cuh"

namespace sparsellm {
namespace {

// The weight as it is, as often as the caches ask for.
class DenseCopies {
 public:
  DenseCopies(const Tensor& weight, int64_t rotation_bytes)
      : weight_(weight),
        count_(cold_copies(weight_.bytes(), rotation_bytes)),
        memory_(weight_.device(), checked_mul(pitch(), count_, "bytes of the weights"),
                "the copies of the weight") {
    for (int64_t copy = 0; copy < count_; ++copy) {
      copy_bytes(weight_.device(), data(copy), weight_.device(), weight_.raw(), weight_.bytes());
    }
  }

  int64_t count() const { return count_; }
  int64_t bytes() const { return weight_.bytes(); }  // of one
  cudaDataType_t type() const { return library_type(weight_.dtype(), "cuBLAS"); }
  int64_t out() const { return weight_.size(0); }
  int64_t in() const { return weight_.size(1); }
  void* data(int64_t copy) const {
    return static_cast<std::byte*>(memory_.data()) + copy * pitch();
  }
  Tensor tensor(int64_t copy) const {
    return {data(copy), weight_.dtype(), {out(), in()}, weight_.device()};
  }
  std::vector<Tensor> tensors() const {
    std::vector<Tensor> all;
    for (int64_t copy = 0; copy < count_; ++copy) {
      all.push_back(tensor(copy));
    }
    return all;
  }

 private:
  // Aligned as an allocation of its own would be.
  int64_t pitch() const { return (weight_.bytes() + 255) / 256 * 256; }

  Tensor weight_;
  int64_t count_;
  Buffer memory_;
};

int int_size(int64_t size) {
  require(size <= std::numeric_limits<int>::max(), "cuBLAS does not take a size of {}", size);
  return static_cast<int>(size);
}

class CublasKernel : public BoundKernel {
 public:
  CublasKernel(cublasHandle_t handle, const DenseCopies& weights, const Tensor& x, const Tensor& y)
      : handle_(handle), weights_(weights), x_(x), y_(y) {}

  std::string algorithm(Launches) const override { return "cublasGemmEx"; }
  void enqueue(int64_t copy, Launches) override {
    const float one = 1.0f;
    const float zero = 0.0f;
    const int out = int_size(weights_.out());
    const int in = int_size(weights_.in());
    const int tokens = int_size(x_.size(0));
    const cudaDataType_t type = weights_.type();
    check_cublas(cublasGemmEx(handle_, CUBLAS_OP_T, CUBLAS_OP_N, out, tokens, in, &one,
                              weights_.data(copy), type, in, x_.raw(), type, in, &zero, y_.raw(),
                              type, out, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT_TENSOR_OP));
  }

 private:
  cublasHandle_t handle_;
  const DenseCopies& weights_;
  Tensor x_;
  Tensor y_;
};

class CublasContender : public Contender {
 public:
  CublasContender(const ContenderInput& input, cublasMath_t math_mode)
      : weights_(input.weight, input.rotation_bytes),
        handle_(make_handle<Handle>([](auto* handle) { check_cublas(cublasCreate(handle)); })) {
    const CudaQueue& queue = cuda_queue(input.ctx);
    check_cublas(cublasSetStream(handle_.get(), queue.stream));
    check_cublas(cublasSetWorkspace(handle_.get(), queue.workspace,
                                    static_cast<size_t>(CudaContext::kWorkspaceBytes)));
    check_cublas(cublasSetMathMode(handle_.get(), math_mode));
  }

  int64_t copies() const override { return weights_.count(); }
  int64_t bytes() const override { return weights_.bytes(); }
  std::vector<std::unique_ptr<BoundKernel>> bind(const Tensor& x, const Tensor& y) override {
    std::vector<std::unique_ptr<BoundKernel>> kernels;
    kernels.push_back(std::make_unique<CublasKernel>(handle_.get(), weights_, x, y));
    return kernels;
  }

 private:
  using Handle = LibraryHandle<cublasHandle_t, cublasDestroy>;
  DenseCopies weights_;
  Handle handle_;
};

// A plan of cuBLASLt on the calls that are timed.
class CublasLtKernel : public BoundKernel {
 public:
  CublasLtKernel(const DenseCopies& weights, const GemmOperands& operands, const BlasPlan& plan,
                 ExecContext& ctx)
      : weights_(weights), operands_(operands), plan_(plan), ctx_(ctx) {}

  std::string algorithm(Launches) const override { return description_of(plan_); }
  void enqueue(int64_t copy, Launches) override {
    operands_.w = weights_.tensor(copy);
    check_cublas(enqueue_gemm(operands_, plan_, ctx_));
  }

 private:
  const DenseCopies& weights_;
  GemmOperands operands_;
  BlasPlan plan_;
  ExecContext& ctx_;
};

ExecContext with_ordinary_launches(const ExecContext& ctx) {
  return {.device = ctx.device,
          .workspace = ctx.workspace,
          .threads = ctx.threads,
          .cuda = ctx.cuda,
          .sums = Sums::fastest,
          .launches = Launches::ordinary};
}

// Chosen among the plans that the engine's own dense products are chosen among.
class CublasLtContender : public Contender {
 public:
  CublasLtContender(const ContenderInput& input, PartialSums partial_sums)
      : weights_(input.weight, input.rotation_bytes),
        ctx_(with_ordinary_launches(input.ctx)),
        tune_cache_(input.tune_cache),
        partial_sums_(partial_sums) {
    library_type(input.weight.dtype(), "cuBLAS");
  }

  int64_t copies() const override { return weights_.count(); }
  int64_t bytes() const override { return weights_.bytes(); }
  std::vector<std::unique_ptr<BoundKernel>> bind(const Tensor& x, const Tensor& y) override {
    const GemmOperands operands{.x = x,
                                .w = weights_.tensor(0),
                                .bias = {},
                                .y = y,
                                .relu = false,
                                .partial_sums = partial_sums_};
    std::vector<std::unique_ptr<BoundKernel>> kernels;
    kernels.push_back(std::make_unique<CublasLtKernel>(
        weights_, operands, tuned_blas_plan(operands, weights_.tensors(), tune_cache_, ctx_),
        ctx_));
    return kernels;
  }

 private:
  DenseCopies weights_;
  ExecContext ctx_;
  TuneCache& tune_cache_;
  PartialSums partial_sums_;
};

// The faster of both libraries with the settings of PyTorch, whose matrix products are
// cublasGemmEx in CUBLAS_DEFAULT_MATH and cublasLtMatmul without a mask of reduction schemes.
class ReducedCublasContender : public Contender {
 public:
  explicit ReducedCublasContender(const ContenderInput& input)
      : cublas_(input, CUBLAS_DEFAULT_MATH),
        cublaslt_(input, PartialSums::any),
        dtype_(input.weight.dtype()) {}

  int64_t copies() const override { return cublas_.copies(); }
  int64_t bytes() const override { return cublas_.bytes(); }
  // Sums of parts are rounded to y's dtype, which has 13 or 16 bits less than f32; in a sum that
  // comes out small they may be large.
  double error_limit() const override { return dtype_ == DType::f16 ? 32.0 : 256.0; }
  std::vector<std::unique_ptr<BoundKernel>> bind(const Tensor& x, const Tensor& y) override {
    std::vector<std::unique_ptr<BoundKernel>> kernels = cublas_.bind(x, y);
    kernels.push_back(std::move(cublaslt_.bind(x, y).front()));
    return kernels;
  }

 private:
  CublasContender cublas_;
  CublasLtContender cublaslt_;
  DType dtype_;
};

// In FP8: of x, which was rounded to it, the codes.
class Fp8Kernel : public CublasLtKernel {
 public:
  Fp8Kernel(OwnedTensor x, const DenseCopies& weights, const GemmOperands& operands,
            const BlasPlan& plan, ExecContext& ctx)
      : CublasLtKernel(weights, operands, plan, ctx), x_(std::move(x)) {}

 private:
  OwnedTensor x_;
};

// Complete on return.
OwnedTensor fp8_codes(const Tensor& x, ExecContext& ctx) {
  OwnedTensor codes =
      allocate_tensor(ctx.device, DType::u8, {x.size(0), x.size(1)}, "an operand in FP8");
  encode_fp8_cuda(x, codes.view, ctx);
  ctx.cuda->synchronize();
  return codes;
}

OwnedTensor fp8_scale(Device device) {
  OwnedTensor made = allocate_tensor(device, DType::f32, {1}, "the scale of FP8");
  copy_bytes(device, made.view.raw(), {}, &kFp8Scale, sizeof(kFp8Scale));
  return made;
}

class Fp8Contender : public Contender {
 public:
  explicit Fp8Contender(const ContenderInput& input)
      : ctx_(checked(input.ctx)),
        tune_cache_(input.tune_cache),
        scale_(fp8_scale(ctx_.device)),
        codes_(fp8_codes(input.weight, ctx_)),
        weights_(codes_.view, input.rotation_bytes) {}

  int64_t copies() const override { return weights_.count(); }
  int64_t bytes() const override { return weights_.bytes(); }
  // Tensor cores add products in FP8 with 14 bits (DeepSeek-V3 Technical Report, section 3.3.2):
  // 2^10 times as coarse as f32, for some additions until the sum is moved to f32. Random sums were
  // wrong by 1.03 times the tolerance at most.
  double error_limit() const override { return 8.0; }
  std::vector<std::unique_ptr<BoundKernel>> bind(const Tensor& x, const Tensor& y) override {
    OwnedTensor x_codes = fp8_codes(x, ctx_);
    const GemmOperands operands{.x = x_codes.view,
                                .w = weights_.tensor(0),
                                .bias = {},
                                .y = y,
                                .relu = false,
                                .partial_sums = PartialSums::f32,
                                .fp8_scale = scale_.view};
    require(!heuristic_plans(cuda_state(ctx_), operands, 1).empty(),
            "cuBLASLt has no algorithm in FP8 for a weight {} and {} tokens",
            codes_.view.shape_string(), x.size(0));
    const BlasPlan plan = tuned_blas_plan(operands, weights_.tensors(), tune_cache_, ctx_);
    std::vector<std::unique_ptr<BoundKernel>> kernels;
    kernels.push_back(
        std::make_unique<Fp8Kernel>(std::move(x_codes), weights_, operands, plan, ctx_));
    return kernels;
  }

 private:
  static ExecContext checked(const ExecContext& ctx) {
    constexpr int kLeastCapability = 89;
    const int capability = cuda_state(ctx).compute_capability;
    require(capability >= kLeastCapability,
            "products in FP8 need a GPU of compute capability 8.9 or newer; this one has {}.{}",
            capability / 10, capability % 10);
    return with_ordinary_launches(ctx);
  }

  ExecContext ctx_;
  TuneCache& tune_cache_;
  OwnedTensor scale_;
  OwnedTensor codes_;
  DenseCopies weights_;
};

}  // namespace

std::unique_ptr<Contender> make_cublas_contender(const ContenderInput& input) {
  return std::make_unique<CublasContender>(input, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
}

std::unique_ptr<Contender> make_cublaslt_contender(const ContenderInput& input) {
  return std::make_unique<CublasLtContender>(input, PartialSums::f32);
}

std::unique_ptr<Contender> make_reduced_cublas_contender(const ContenderInput& input) {
  return std::make_unique<ReducedCublasContender>(input);
}

std::unique_ptr<Contender> make_fp8_contender(const ContenderInput& input) {
  return std::make_unique<Fp8Contender>(input);
}

}  // namespace sparsellm
