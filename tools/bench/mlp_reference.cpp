#include "tools/bench/mlp_reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/base/convert.h"
#include "kernels/base/error.h"
#include "sparse/activation/sign_words.h"
#include "tools/bench/verify_product_device.h"

namespace sparsellm {
namespace {

constexpr double kDeviations = 6.0;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

double rounding_error(double magnitude, DType dtype) {
  const Rounding rounding = rounding_of(dtype);
  return static_cast<double>(rounding.relative) * magnitude +
         static_cast<double>(rounding.absolute);
}

// In units of what is allowed; a comparison with NaN is false.
double error_ratio(double result, double right, double allowed) {
  const double ratio = std::abs(result - right) / allowed;
  return ratio <= std::numeric_limits<double>::max() ? ratio : kInfinity;
}

std::vector<double> doubles_of(const Tensor& x) {
  std::vector<double> values(static_cast<size_t>(x.element_count()));
  visit_float(x.dtype(), [&]<class T>(T) {
    const T* const elements = x.data<T>();
    std::transform(elements, elements + values.size(), values.begin(),
                   [](T element) { return static_cast<double>(to_float(element)); });
  });
  return values;
}

OwnedTensor on_host(DType dtype, int64_t rows, int64_t columns) {
  return allocate_tensor({}, dtype, {rows, columns}, "a reference");
}

OwnedTensor in_f32(const Tensor& x) {
  OwnedTensor converted = on_host(DType::f32, x.size(0), x.size(1));
  convert(x.dtype(), static_cast<const std::byte*>(x.raw()), DType::f32,
          static_cast<std::byte*>(converted.view.raw()), x.element_count());
  return converted;
}

// A sum in f32, which may then be rounded to the dtype of the activations.
struct Product {
  double value = 0.0;
  double error = 0.0;
};
Product product_at(const Tensor& values, const Tensor& magnitudes, size_t index, DType dtype) {
  const auto value = static_cast<double>(values.data<float>()[index]);
  const double in_sum =
      static_cast<double>(kSumTolerance) * static_cast<double>(magnitudes.data<float>()[index]);
  return {.value = value, .error = in_sum + rounding_error(std::abs(value) + in_sum, dtype)};
}

}  // namespace

MlpReference::MlpReference(const MlpCase& mlp, ThreadPool& threads) : shape_(mlp.shape) {
  check_shares(mlp.shares);
  require(mlp.tokens > 0 && shape_.neurons > 0 && shape_.hidden > 0, "{} tokens of an MLP {}",
          mlp.tokens, to_string(shape_));
  Workspace workspace({}, 0);
  ExecContext host{.device = {}, .workspace = workspace, .threads = threads};
  x_ = random_tokens(shape_, mlp.tokens, mlp.activations, mlp.seed, host);
  {
    const OwnedTensor up = random_up(shape_, mlp.weights, mlp.seed, host);
    predict(mlp, up.view, threads);
    const auto multiply = [&](const Tensor& weight, OwnedTensor& values, OwnedTensor& magnitudes) {
      values = on_host(DType::f32, mlp.tokens, shape_.neurons);
      magnitudes = on_host(DType::f32, mlp.tokens, shape_.neurons);
      product_reference_cpu(x_.view, weight, {.values = values.view, .magnitudes = magnitudes.view},
                            host);
    };
    OwnedTensor gates;
    OwnedTensor gate_magnitudes;
    OwnedTensor ups;
    OwnedTensor up_magnitudes;
    multiply(first_rows(up.view, shape_), gates, gate_magnitudes);
    if (shape_.gated) {
      multiply(last_rows(up.view, shape_), ups, up_magnitudes);
    }
    activation_.threshold = threshold_for(mlp.shares.zeros, gates.view, active_.view);
    for (const bool predicted : {true, false}) {
      (predicted ? predicted_ : dense_) =
          hidden_of(mlp, gates.view, gate_magnitudes.view, ups.view, up_magnitudes.view, predicted);
    }
  }
  const OwnedTensor down = random_down(shape_, mlp.weights, mlp.seed, host);
  outputs_ = outputs_of(predicted_, down.view, threads);
  dense_outputs_ = outputs_of(dense_, down.view, threads);
}

void MlpReference::predict(const MlpCase& mlp, const Tensor& up, ThreadPool& threads) {
  Workspace workspace({}, sign_predictor_workspace_bytes({}, shape_.hidden, mlp.tokens));
  ExecContext host{
      .device = {}, .workspace = workspace, .threads = threads, .isa = CpuIsa::portable};
  const OwnedSignWords signs = pack_sign_words(first_rows(up, shape_), threads);
  const OwnedTensor x = in_f32(x_.view);
  prediction_ = prediction_for(mlp.shares.predicted, mlp.votes, x.view, signs.view(), host);
  prediction_.alpha *= mlp.alpha_factor;
  active_ = on_host(DType::u8, mlp.tokens, shape_.neurons);
  predict_active(x.view, signs.view(), prediction_, active_.view, host);
}

MlpReference::Hidden MlpReference::hidden_of(const MlpCase& mlp, const Tensor& gate_values,
                                             const Tensor& gate_magnitudes, const Tensor& up_values,
                                             const Tensor& up_magnitudes, bool predicted) const {
  const auto count = static_cast<size_t>(gate_values.element_count());
  Hidden hidden{.h = on_host(mlp.activations, mlp.tokens, shape_.neurons),
                .error = std::vector<double>(count),
                .choice = std::vector<double>(count)};
  std::vector<float> values(count);
  const auto threshold = predicted ? static_cast<double>(activation_.threshold) : 0.0;
  for (size_t i = 0; i < count; ++i) {
    if (predicted && active_.view.data<uint8_t>()[i] == 0) {
      continue;
    }
    const Product gate = product_at(gate_values, gate_magnitudes, i, mlp.activations);
    const Product up = shape_.gated ? product_at(up_values, up_magnitudes, i, mlp.activations)
                                    : Product{.value = 1.0};
    const bool is_active = gate.value > threshold;
    const bool is_in_doubt = std::abs(gate.value - threshold) <= gate.error;
    const double product = std::abs(gate.value * up.value);
    const double error =
        std::abs(gate.value) * up.error + gate.error * (std::abs(up.value) + up.error);
    if (is_active) {
      values[i] = static_cast<float>(gate.value * up.value);
    }
    if (is_active || is_in_doubt) {
      hidden.error[i] = error + rounding_error(product + error, mlp.activations);
    }
    if (is_in_doubt) {
      hidden.choice[i] = product + error;
    }
  }
  convert(DType::f32, reinterpret_cast<const std::byte*>(values.data()), mlp.activations,
          static_cast<std::byte*>(hidden.h.view.raw()), static_cast<int64_t>(count));
  return hidden;
}

MlpReference::Outputs MlpReference::outputs_of(const Hidden& hidden, const Tensor& down,
                                               ThreadPool& threads) const {
  const int64_t tokens = hidden.h.view.size(0);
  const std::vector<double> h = doubles_of(hidden.h.view);
  const auto count = static_cast<size_t>(tokens * shape_.hidden);
  Outputs sums{.value = std::vector<double>(count),
               .magnitude = std::vector<double>(count),
               .variance = std::vector<double>(count),
               .choice = std::vector<double>(count)};
  const auto sum_columns = [&](int64_t begin, int64_t end) {
    const auto width = static_cast<size_t>(end - begin);
    std::vector<double> weights(width);
    for (int64_t neuron = 0; neuron < shape_.neurons; ++neuron) {
      bool is_read = false;
      for (int64_t token = 0; token < tokens; ++token) {
        const auto at = static_cast<size_t>(token * shape_.neurons + neuron);
        if (h[at] == 0.0 && hidden.error[at] == 0.0) {
          continue;
        }
        if (!is_read) {
          visit_float(down.dtype(), [&]<class T>(T) {
            const T* const row = down.row<T>(neuron) + begin;
            std::transform(row, row + width, weights.begin(),
                           [](T weight) { return static_cast<double>(to_float(weight)); });
          });
          is_read = true;
        }
        const auto first = static_cast<size_t>(token * shape_.hidden + begin);
        for (size_t i = 0; i < width; ++i) {
          const double term = h[at] * weights[i];
          const double error = hidden.error[at] * weights[i];
          sums.value[first + i] += term;
          sums.magnitude[first + i] += std::abs(term);
          sums.variance[first + i] += error * error;
        }
        for (size_t i = 0; i < width && hidden.choice[at] != 0.0; ++i) {
          sums.choice[first + i] += hidden.choice[at] * std::abs(weights[i]);
        }
      }
    }
  };
  constexpr int64_t kColumns = 256;
  threads.parallel_for(shape_.hidden, kColumns, sum_columns);
  return sums;
}

MlpShares MlpReference::shares(int64_t tokens) const {
  const std::vector<double> h = doubles_of(predicted_.h.view.rows(0, tokens));
  const auto* const active = active_.view.data<uint8_t>();
  MlpShares shares;
  for (int64_t neuron = 0; neuron < shape_.neurons; ++neuron) {
    bool is_read = false;
    bool is_active = false;
    for (int64_t token = 0; token < tokens; ++token) {
      const auto at = static_cast<size_t>(token * shape_.neurons + neuron);
      shares.predicted += active[at] == 0 ? 1.0 : 0.0;
      shares.zeros += h[at] == 0.0 ? 1.0 : 0.0;
      is_read = is_read || active[at] != 0;
      is_active = is_active || h[at] != 0.0;
    }
    shares.first_union += is_read ? 1 : 0;
    shares.active_union += is_active ? 1 : 0;
  }
  const auto count = static_cast<double>(tokens * shape_.neurons);
  shares.predicted /= count;
  shares.zeros /= count;
  return shares;
}

double MlpReference::active_error(const Tensor& active) const {
  const auto bytes = static_cast<size_t>(active.bytes());
  return std::memcmp(active.raw(), active_.view.raw(), bytes) == 0 ? 0.0 : kInfinity;
}

double MlpReference::h_error(const Tensor& h) const {
  const std::vector<double> results = doubles_of(h);
  const std::vector<double> right = doubles_of(predicted_.h.view);
  double worst = 0.0;
  for (size_t i = 0; i < results.size(); ++i) {
    const double allowed = predicted_.error[i] + predicted_.choice[i];
    worst = std::max(worst, allowed > 0.0 ? error_ratio(results[i], right[i], allowed)
                                          : (results[i] == 0.0 ? 0.0 : kInfinity));
  }
  return worst;
}

double MlpReference::output_error(const Tensor& y, const Outputs& right,
                                  Tolerance tolerance) const {
  const std::vector<double> results = doubles_of(y);
  double worst = 0.0;
  for (size_t i = 0; i < results.size(); ++i) {
    double allowed = static_cast<double>(kSumTolerance) * right.magnitude[i];
    if (tolerance == Tolerance::whole) {
      allowed += kDeviations * std::sqrt(right.variance[i]) + right.choice[i];
    }
    allowed += rounding_error(std::abs(right.value[i]) + allowed, y.dtype());
    worst = std::max(worst, error_ratio(results[i], right.value[i], allowed));
  }
  return worst;
}

double MlpReference::y_error(const Tensor& y) const {
  return output_error(y, outputs_, Tolerance::whole);
}

double MlpReference::dense_y_error(const Tensor& y) const {
  return output_error(y, dense_outputs_, Tolerance::whole);
}

double MlpReference::down_error(const Tensor& y) const {
  return output_error(y, outputs_, Tolerance::sums);
}

}  // namespace sparsellm
