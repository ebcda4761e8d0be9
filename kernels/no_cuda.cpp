#include <string_view>

#include "kernels/activation_device.h"
#include "kernels/add_device.h"
#include "kernels/adjust_logits_device.h"
#include "kernels/attention_device.h"
#include "kernels/base/error.h"
#include "kernels/embedding_device.h"
#include "kernels/fill_random_device.h"
#include "kernels/gemm_device.h"
#include "kernels/kv_append_device.h"
#include "kernels/log_probs_device.h"
#include "kernels/norm_device.h"
#include "kernels/rope_device.h"
#include "kernels/sample_device.h"
#include "kernels/take_chosen_device.h"
#include "kernels/transpose_device.h"
#include "kernels/tune/make_meter.h"

// Stands in for every CUDA op that a build does not have, so that the ops need no #ifdef.
namespace sparsellm {
namespace {

[[noreturn]] void fail_without_cuda(std::string_view op) {
  fail("{} has no CUDA implementation in this build", op);
}

}  // namespace

void activate_cuda(const Activation&, const NeuronTally&, Tensor, ExecContext&) {
  fail_without_cuda("activate");
}

void activate_gated_cuda(const Activation&, const Tensor&, const NeuronTally&, Tensor,
                         ExecContext&) {
  fail_without_cuda("activate_gated");
}

void add_cuda(const Tensor&, Tensor, ExecContext&, float) { fail_without_cuda("add"); }

void adjust_logits_cuda(const Tensor&, const Tensor&, Tensor, int64_t, Tensor, ExecContext&) {
  fail_without_cuda("adjust_logits");
}

void attention_cuda(const Tensor&, const KvLayer&, const PagedBatch&, const AttentionParams&,
                    Tensor, ExecContext&) {
  fail_without_cuda("attention");
}

bool append_attention_cuda(const QkTransform&, const QkvRows&, const PagedBatch&, const KvLayer&,
                           const AttentionParams&, Tensor, ExecContext&) {
  fail_without_cuda("append_attention");
}

void embedding_cuda(const Tensor&, const Tensor&, const EmbeddingTables&, Tensor, ExecContext&) {
  fail_without_cuda("embedding");
}

void fill_random_cuda(const RandomFill&, const ZeroThresholds&, Tensor, ExecContext&) {
  fail_without_cuda("fill_random");
}

void gemm_cuda(const Tensor&, const Tensor&, WeightOrder, const Epilogue&, Tensor, ExecContext&) {
  fail_without_cuda("gemm");
}

int64_t tune_gemm_cuda(const GemmTuning&, TuneCache&, ExecContext&) {
  fail_without_cuda("tune_gemm");
}

void kv_append_cuda(const Tensor&, const Tensor&, const PagedBatch&, const KvLayer&, ExecContext&) {
  fail_without_cuda("kv_append");
}

void layer_norm_cuda(const Tensor&, const Tensor&, const NormParams&, const Tensor&, ExecContext&) {
  fail_without_cuda("layer_norm");
}

void log_probs_cuda(const Tensor&, const Tensor&, int64_t, const Tensor&, Tensor, ExecContext&) {
  fail_without_cuda("log_probs");
}

void restore_logits_cuda(const Tensor&, const Tensor&, int64_t, Tensor, ExecContext&) {
  fail_without_cuda("restore_logits");
}

void rms_norm_cuda(const Tensor&, const Tensor&, const NormParams&, const Tensor&, ExecContext&) {
  fail_without_cuda("rms_norm");
}

void rope_angles_cuda(const Tensor&, const Tensor&, Tensor, ExecContext&) {
  fail_without_cuda("rope_angles");
}

void rope_kv_append_cuda(const QkTransform&, const QkvRows&, const PagedBatch&, const KvLayer&,
                         ExecContext&) {
  fail_without_cuda("rope_kv_append");
}

void sample_cuda(const Tensor&, const Tensor&, const Tensor&, Tensor, ExecContext&) {
  fail_without_cuda("sample");
}

std::unique_ptr<TuneMeter> make_cuda_meter(ExecContext&) { fail_without_cuda("a meter"); }

std::string cuda_device_key(Device) { fail_without_cuda("a meter"); }

void take_chosen_cuda(const Tensor&, Tensor, ExecContext&) { fail_without_cuda("take_chosen"); }

void transpose_cuda(const Tensor&, Tensor, ExecContext&) { fail_without_cuda("transpose"); }

}  // namespace sparsellm
