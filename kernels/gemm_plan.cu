#include <charconv>
#include <cstdint>
#include <iterator>
#include <utility>

#include "kernels/gemm_plan.cuh"

namespace sparsellm {
namespace {

constexpr std::string_view kBlas = "cublaslt ";
constexpr std::string_view kTokenwiseBlas = "cublaslt each token ";
constexpr std::pair<StreamMemory, std::string_view> kStreams[] = {
    {StreamMemory::half, "stream half"},
    {StreamMemory::whole, "stream whole"},
};

std::string hex_of(const BlasPlan& plan) {
  std::string text;
  for (const uint64_t word : plan.algorithm.data) {
    text += fmt::format("{:016x}", word);
  }
  return text;
}

std::optional<BlasPlan> blas_plan_from(std::string_view hex) {
  constexpr size_t kDigits = 16;  // of a word
  BlasPlan plan;
  if (hex.size() != kDigits * std::size(plan.algorithm.data) ||
      hex.find_first_not_of("0123456789abcdef") != std::string_view::npos) {
    return std::nullopt;
  }
  const char* digits = hex.data();
  for (auto& word : plan.algorithm.data) {
    uint64_t value = 0;
    std::from_chars(digits, digits + kDigits, value, 16);
    word = value;
    digits += kDigits;
  }
  return plan;
}

}  // namespace

bool is_possible(const CudaContext::State& cuda, const GemmOperands& operands,
                 const GemmPlan& plan) {
  if (const auto* const tokenwise = std::get_if<TokenwiseBlasPlan>(&plan)) {
    return is_possible(cuda, operands.tokens(0, 1), tokenwise->token);
  }
  const auto* const blas = std::get_if<BlasPlan>(&plan);
  return blas != nullptr ? is_possible(cuda, operands, *blas) : gemm_stream_takes(cuda, operands);
}

cublasStatus_t enqueue_gemm(const GemmOperands& operands, const GemmPlan& plan,
                            const ExecContext& ctx) {
  if (const auto* const stream = std::get_if<StreamPlan>(&plan)) {
    gemm_stream_cuda(operands, stream->memory, ctx);
    return CUBLAS_STATUS_SUCCESS;
  }
  if (const auto* const blas = std::get_if<BlasPlan>(&plan)) {
    return enqueue_gemm(operands, *blas, ctx);
  }
  const BlasPlan& token = std::get<TokenwiseBlasPlan>(plan).token;
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  for (int64_t t = 0; t < operands.x.size(0) && status == CUBLAS_STATUS_SUCCESS; ++t) {
    status = enqueue_gemm(operands.tokens(t, 1), token, ctx);
  }
  return status;
}

std::string to_text(const GemmPlan& plan) {
  if (const auto* const stream = std::get_if<StreamPlan>(&plan)) {
    for (const auto& [memory, text] : kStreams) {
      if (memory == stream->memory) {
        return std::string(text);
      }
    }
  }
  if (const auto* const tokenwise = std::get_if<TokenwiseBlasPlan>(&plan)) {
    return fmt::format("{}{}", kTokenwiseBlas, hex_of(tokenwise->token));
  }
  return fmt::format("{}{}", kBlas, hex_of(std::get<BlasPlan>(plan)));
}

std::optional<GemmPlan> gemm_plan_from(std::string_view text) {
  for (const auto& [memory, name] : kStreams) {
    if (text == name) {
      return StreamPlan{memory};
    }
  }
  if (text.starts_with(kTokenwiseBlas)) {
    const std::optional<BlasPlan> token = blas_plan_from(text.substr(kTokenwiseBlas.size()));
    return token ? std::optional<GemmPlan>(TokenwiseBlasPlan{*token}) : std::nullopt;
  }
  if (text.starts_with(kBlas)) {
    const std::optional<BlasPlan> plan = blas_plan_from(text.substr(kBlas.size()));
    return plan ? std::optional<GemmPlan>(*plan) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace sparsellm
