#include <algorithm>
#include <array>
#include <optional>

#include "kernels/gemm_blas.cuh"

namespace sparsellm {
namespace {

constexpr uintptr_t kBiasAlignment = 16;  // that of a vector access

cudaDataType_t cuda_type(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return CUDA_R_16F;
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::f32:
      return CUDA_R_32F;
    case DType::u8:
      return CUDA_R_8F_E4M3;  // gemm() takes none
    default:
      fail("gemm: cuBLAS is not used with {}", name_of(dtype));
  }
}

// cuBLAS counts in columns: a row-major [rows, columns] is a column-major [columns, rows].
void set_layout(cublasLtMatrixLayoutOpaque_t& layout, const Tensor& x) {
  check_cublas(cublasLtMatrixLayoutInit(&layout, cuda_type(x.dtype()),
                                        static_cast<uint64_t>(x.size(1)),
                                        static_cast<uint64_t>(x.size(0)), x.row_stride()));
}

// The descriptors of a product, on the stack: they hold no resources.
class Description {
 public:
  explicit Description(const GemmOperands& operands) {
    check_cublas(cublasLtMatmulDescInit(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const bool is_transposed = operands.order == WeightOrder::in_out;
    set(CUBLASLT_MATMUL_DESC_TRANSA, is_transposed ? CUBLAS_OP_N : CUBLAS_OP_T);
    const bool has_bias = !operands.bias.empty();
    if (has_bias) {
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias.raw());
    }
    const cublasLtEpilogue_t with_bias =
        operands.relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS;
    const cublasLtEpilogue_t without_bias =
        operands.relu ? CUBLASLT_EPILOGUE_RELU : CUBLASLT_EPILOGUE_DEFAULT;
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, has_bias ? with_bias : without_bias);
    if (!operands.fp8_scale.empty()) {
      const float* const scale = operands.fp8_scale.data<float>();
      set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scale);
      set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, scale);
    }
    set_layout(w_, operands.w);
    set_layout(x_, operands.x);
    set_layout(y_, operands.y);
  }

  cublasLtMatmulDesc_t operation() { return &operation_; }
  cublasLtMatrixLayout_t w() { return &w_; }
  cublasLtMatrixLayout_t x() { return &x_; }
  cublasLtMatrixLayout_t y() { return &y_; }

 private:
  template <class Value>
  void set(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    check_cublas(cublasLtMatmulDescSetAttribute(&operation_, attribute, &value, sizeof(value)));
  }

  cublasLtMatmulDescOpaque_t operation_;
  cublasLtMatrixLayoutOpaque_t w_;
  cublasLtMatrixLayoutOpaque_t x_;
  cublasLtMatrixLayoutOpaque_t y_;
};

class Preference {
 public:
  Preference() { check_cublas(cublasLtMatmulPreferenceInit(&preference_)); }

  template <class Value>
  void set(cublasLtMatmulPreferenceAttributes_t attribute, const Value& value) {
    check_cublas(
        cublasLtMatmulPreferenceSetAttribute(&preference_, attribute, &value, sizeof(value)));
  }
  cublasLtMatmulPreference_t get() { return &preference_; }

 private:
  cublasLtMatmulPreferenceOpaque_t preference_;
};

template <class Value>
Value setting(const cublasLtMatmulAlgo_t& algorithm,
              cublasLtMatmulAlgoConfigAttributes_t attribute) {
  Value value{};
  size_t written = 0;
  check_cublas(
      cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, sizeof(value), &written));
  return value;
}

int64_t alignment_of(uint64_t address_and_stride) {
  const auto lowest_bit = static_cast<int64_t>(address_and_stride & (~address_and_stride + 1));
  return lowest_bit == 0 ? kMaxAlignment : std::min(lowest_bit, kMaxAlignment);
}

}  // namespace

GemmOperands GemmOperands::tokens(int64_t begin, int64_t count) const {
  GemmOperands part = *this;
  part.x = x.rows(begin, count);
  part.y = y.rows(begin, count);
  return part;
}

int64_t row_alignment(const Tensor& x) {
  const auto stride = static_cast<uint64_t>(x.row_stride() * size_of(x.dtype()));
  return alignment_of(reinterpret_cast<uintptr_t>(x.raw()) | stride);
}

void check_gemm_operands(const GemmOperands& operands) {
  const DType x = operands.x.dtype();
  const DType w = operands.w.dtype();
  const DType y = operands.y.dtype();
  require(w == x, "gemm: w and x are {} and {}; on CUDA they have one dtype", name_of(w),
          name_of(x));
  require(y == x || y == DType::f32, "gemm: the result is {}; x is {}", name_of(y), name_of(x));
  if (!operands.bias.empty()) {
    require(operands.bias.dtype() == y && y == x,
            "gemm: the bias is {}, x {} and the result {}; on CUDA they have one dtype",
            name_of(operands.bias.dtype()), name_of(x), name_of(y));
    // How far an algorithm relies on the alignment of a bias cannot be told to cuBLASLt.
    require(reinterpret_cast<uintptr_t>(operands.bias.raw()) % kBiasAlignment == 0,
            "gemm: the bias does not start at a multiple of {} bytes", kBiasAlignment);
  }
  require(operands.in() > 0, "gemm: x is {}; on CUDA it has columns", operands.x.shape_string());
}

std::vector<BlasPlan> heuristic_plans(const CudaContext::State& cuda, const GemmOperands& operands,
                                      int count) {
  Description description(operands);
  Preference preference;
  // Algorithms without a reduction are allowed by every mask; without a mask all are.
  if (operands.partial_sums == PartialSums::f32) {
    preference.set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                   uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  }
  const auto y_alignment = static_cast<uint32_t>(row_alignment(operands.y));
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                 static_cast<uint32_t>(row_alignment(operands.w)));
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                 static_cast<uint32_t>(row_alignment(operands.x)));
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, y_alignment);
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, y_alignment);
  preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                 static_cast<uint64_t>(CudaContext::kWorkspaceBytes));
  std::array<cublasLtMatmulHeuristicResult_t, kMaxProposals> results{};
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      cuda.blas, description.operation(), description.w(), description.x(), description.y(),
      description.y(), preference.get(), std::min(count, kMaxProposals), results.data(), &found);
  std::vector<BlasPlan> plans;
  if (status != CUBLAS_STATUS_SUCCESS) {
    return plans;
  }
  for (int i = 0; i < found; ++i) {
    if (results[i].state == CUBLAS_STATUS_SUCCESS) {
      plans.push_back({.algorithm = results[i].algo});
    }
  }
  return plans;
}

BlasPlan heuristic_plan(const CudaContext::State& cuda, const GemmOperands& operands) {
  const std::vector<BlasPlan> plans = heuristic_plans(cuda, operands, 1);
  require(!plans.empty(), "gemm: cuBLAS has no algorithm for {} tokens and a weight {} of {}",
          operands.x.size(0), operands.w.shape_string(), name_of(operands.w.dtype()));
  return plans.front();
}

bool is_possible(const CudaContext::State& cuda, const GemmOperands& operands,
                 const BlasPlan& plan) {
  Description description(operands);
  cublasLtMatmulHeuristicResult_t result{};
  const cublasStatus_t status =
      cublasLtMatmulAlgoCheck(cuda.blas, description.operation(), description.w(), description.x(),
                              description.y(), description.y(), &plan.algorithm, &result);
  if (status != CUBLAS_STATUS_SUCCESS ||
      result.workspaceSize > static_cast<size_t>(CudaContext::kWorkspaceBytes)) {
    return false;
  }
  if (operands.partial_sums == PartialSums::any) {
    return true;
  }
  const auto scheme = setting<uint32_t>(plan.algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME);
  return scheme == CUBLASLT_REDUCTION_SCHEME_NONE ||
         scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
}

int32_t k_splits(const BlasPlan& plan) {
  return setting<int32_t>(plan.algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
}

std::optional<BlasPlan> with_k_splits(BlasPlan plan, int32_t splits,
                                      cublasLtReductionScheme_t scheme) {
  const uint32_t reduction = splits == 1 ? CUBLASLT_REDUCTION_SCHEME_NONE : scheme;
  const auto set = [&plan](auto attribute, const auto& value) {
    return cublasLtMatmulAlgoConfigSetAttribute(&plan.algorithm, attribute, &value,
                                                sizeof(value)) == CUBLAS_STATUS_SUCCESS;
  };
  return set(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, splits) &&
                 set(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, reduction)
             ? std::optional(plan)
             : std::nullopt;
}

std::string description_of(const BlasPlan& plan) {
  // Not every algorithm has every setting.
  const auto text_of = [&plan](cublasLtMatmulAlgoConfigAttributes_t attribute) {
    uint32_t value = 0;
    size_t written = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoConfigGetAttribute(
        &plan.algorithm, attribute, &value, sizeof(value), &written);
    return status == CUBLAS_STATUS_SUCCESS ? std::to_string(value) : std::string("none");
  };
  std::string text =
      fmt::format("algorithm {}, tile {}, stages {}", text_of(CUBLASLT_ALGO_CONFIG_ID),
                  text_of(CUBLASLT_ALGO_CONFIG_TILE_ID), text_of(CUBLASLT_ALGO_CONFIG_STAGES_ID));
  if (const std::string splits = text_of(CUBLASLT_ALGO_CONFIG_SPLITK_NUM); splits != "1") {
    text += fmt::format(", {} splits of K", splits);
  }
  return text;
}

cublasStatus_t enqueue_gemm(const GemmOperands& operands, const BlasPlan& plan,
                            const ExecContext& ctx) {
  const CudaQueue& queue = cuda_queue(ctx);
  Description description(operands);
  const float alpha = 1.0f;
  const float beta = 0.0f;
  return cublasLtMatmul(cuda_state(ctx).blas, description.operation(), &alpha, operands.w.raw(),
                        description.w(), operands.x.raw(), description.x(), &beta, operands.y.raw(),
                        description.y(), operands.y.raw(), description.y(), &plan.algorithm,
                        queue.workspace, static_cast<size_t>(CudaContext::kWorkspaceBytes),
                        queue.stream);
}

}  // namespace sparsellm
