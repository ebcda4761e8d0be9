#include <string_view>

#include "kernels/base/error.h"
#include "sparse/activation/active_rows_device.h"
#include "sparse/activation/fused_mlp_device.h"
#include "sparse/activation/sign_predictor_device.h"
#include "sparse/activation/sign_words_device.h"

// Stands in for the CUDA side of activation sparsity in a CPU-only build.
namespace sparsellm {
namespace {

[[noreturn]] void fail_on_rows(std::string_view op) {
  fail("{} has no CUDA implementation in this build", op);
}

}  // namespace

OwnedSignWords pack_sign_words_cuda(const Tensor&, ExecContext&) {
  fail("sign words are not packed on GPUs in this build");
}

void predict_active_cuda(const Tensor&, const SignWords&, const SignPrediction&, Tensor,
                         ExecContext&) {
  fail_on_rows("predict_active");
}
void count_votes_cuda(const Tensor&, const SignWords&, Votes, Tensor, Tensor, ExecContext&) {
  fail_on_rows("count_votes");
}

void gated_rows_cuda(const Tensor&, const GatedRows&, const Tensor&, Tensor, ExecContext&) {
  fail_on_rows("gated_rows");
}
void plain_rows_cuda(const Tensor&, const PlainRows&, const Tensor&, Tensor, ExecContext&) {
  fail_on_rows("plain_rows");
}
void up_rows_cuda(const Tensor&, const UpRows&, const Tensor&, Tensor, ExecContext&) {
  fail_on_rows("up_rows");
}
void down_rows_cuda(const Tensor&, const RowAccess&, const Tensor&, const NeuronTally&, Tensor,
                    ExecContext&) {
  fail_on_rows("down_rows");
}

bool fused_mlp_fits_cuda(const FusedMlp&, const ExecContext&) { return false; }
void fused_mlp_cuda(const Tensor&, const Tensor&, const FusedMlp&, Tensor, ExecContext&) {
  fail_on_rows("fused_mlp");
}

}  // namespace sparsellm
