#include "sparse/quantize/quantize.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "kernels/base/error.h"
#include "sparse/count_nonzeros.h"
#include "sparse/quantize/code_values.h"

namespace sparsellm {
namespace {

constexpr int64_t kMinElementsQuantized = 4 << 10;  // worth the waking of a thread

// The nonzeros of weights that share a scale, and scratch memory for the search.
struct ScaleGroup {
  explicit ScaleGroup(int64_t size)
      : weights(static_cast<size_t>(size)),
        places(static_cast<size_t>(size)),
        errors(static_cast<size_t>(size)),
        scaled(static_cast<size_t>(size) + F32x8::kWidth) {}

  size_t count = 0;
  std::vector<double> weights;
  std::vector<int64_t> places;  // in the group
  std::vector<double> errors;
  std::vector<float> scaled;
  double lowest = 0.0;   // of the weights and 0
  double highest = 0.0;  // the same

  double largest() const { return std::max(-lowest, highest); }

  template <class T>
  void gather(const T* w, int64_t size) {
    count = 0;
    for (int64_t i = 0; i < size; ++i) {
      weights[count] = to_float(w[i]);
      places[count] = i;
      count += is_zero(w[i]) ? 0 : 1;
    }
    lowest = 0.0;
    highest = 0.0;
    for (size_t i = 0; i < count; ++i) {
      lowest = std::min(lowest, weights[i]);
      highest = std::max(highest, weights[i]);
    }
  }
};

// The sum of squared errors, as it will be.
template <class Values>
double squared_error(ScaleGroup& group, double scale) {
  for (size_t i = 0; i < group.count; ++i) {  // vectorised
    const double weight = group.weights[i];
    const double error = weight - Values::nearest(weight / scale) * scale;
    group.errors[i] = error * error;
  }
  double sum = 0.0;
  for (size_t i = 0; i < group.count; ++i) {
    sum += group.errors[i];
  }
  return sum;
}

template <class Values>
bool stays_below(const ScaleGroup& group, double scale, double limit) {
  return Values::nearest(group.highest / scale) * scale < limit &&
         Values::nearest(group.lowest / scale) * scale > -limit;
}

// A scale for `scaled`, in f32 and with magnitudes of less than 2: squares neither overflow nor
// underflow where they matter. Rounding x at a scale s to numbers q leaves r = x - s q; the scale
// that is best for these q is s + sum(q r) / sum(q q), and leaves sum(r r) - sum(q r)^2 / sum(q q).
template <class Values>
float searched_scale(std::span<const float> scaled, float largest) {
  float best = largest;
  float least = std::numeric_limits<float>::infinity();
  for (int i = 0; i < Values::kTrials; ++i) {
    const float scale = largest / Values::trial(i);
    const F32x8 inverse = F32x8::all(1.0f / scale);
    const F32x8 minus_scale = F32x8::all(-scale);
    F32x8 rr = F32x8::zero();
    F32x8 qr = F32x8::zero();
    F32x8 qq = F32x8::zero();
    for (size_t j = 0; j < scaled.size(); j += F32x8::kWidth) {
      const F32x8 x = F32x8::load(scaled.data() + j);
      const F32x8 q = Values::nearest(x * inverse);
      const F32x8 r = fma(q, minus_scale, x);
      rr = fma(r, r, rr);
      qr = fma(q, r, qr);
      qq = fma(q, q, qq);
    }
    float sums[4];
    sum4(rr, qr, qq, qq, sums);
    const float change = sums[1] / sums[2];  // the largest does not round to 0
    const float error = sums[0] - sums[1] * change;
    if (error < least) {
      least = error;
      best = scale + change;
    }
  }
  return best;
}

template <class Values>
double searched_scale(ScaleGroup& group) {
  const double unit = std::ldexp(1.0, std::ilogb(group.largest()));
  for (size_t i = 0; i < group.count; ++i) {
    const auto x = static_cast<float>(group.weights[i] / unit);
    group.scaled[i] = Values::kSymmetric ? std::fabs(x) : x;
  }
  const size_t width = F32x8::kWidth;
  const size_t padded = (group.count + width - 1) / width * width;
  std::fill(group.scaled.begin() + static_cast<int64_t>(group.count),
            group.scaled.begin() + static_cast<int64_t>(padded), 0.0f);
  const auto largest = static_cast<float>(group.largest() / unit);
  return unit * searched_scale<Values>({group.scaled.data(), padded}, largest);
}

// The scale of a group that has nonzeros.
template <class Values>
float scale_of_group(ScaleGroup& group, double limit) {
  float plain = Values::scale_of(group.largest() / Values::kLargest);
  if (!stays_below<Values>(group, plain, limit)) {
    plain = Values::scale_below(plain);  // it was rounded up
  }
  const float searched = Values::scale_of(searched_scale<Values>(group));
  const bool better = stays_below<Values>(group, searched, limit) &&
                      squared_error<Values>(group, searched) < squared_error<Values>(group, plain);
  return better ? searched : plain;
}

template <class Values, class T>
void quantize_row(const T* w, QuantizedMatrix& q, int64_t row, ScaleGroup& scratch) {
  int8_t* const codes = q.codes.data() + row * q.columns;
  float* const scales = q.scales.data() + row * q.groups();
  for (int64_t i = 0; i < q.groups(); ++i) {
    const int64_t first = i * q.group;
    scratch.gather(w + first, std::min(q.group, q.columns - first));
    if (scratch.count == 0) {
      continue;  // codes of 0 and a scale of 1
    }
    scales[i] = scale_of_group<Values>(scratch, quantization::infinite_from(T{}));
    const double scale = scales[i];
    for (size_t j = 0; j < scratch.count; ++j) {
      codes[first + scratch.places[j]] =
          Values::code_of(Values::nearest(scratch.weights[j] / scale));
    }
  }
}

template <class T>
bool is_finite_row(const T* values, int64_t count) {
  bool finite = true;  // without an early exit: vectorised
  for (int64_t i = 0; i < count; ++i) {
    finite &= std::isfinite(to_float(values[i]));
  }
  return finite;
}

// Names the first weight that is not.
template <class T>
void require_finite(const Tensor& w, int64_t grain, ThreadPool& threads) {
  std::atomic<bool> finite = true;
  threads.parallel_for(w.size(0), grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (!is_finite_row(w.row<T>(row), w.size(1))) {
        finite = false;
      }
    }
  });
  for (int64_t row = 0; !finite && row < w.size(0); ++row) {
    const T* const values = w.row<T>(row);
    for (int64_t column = 0; column < w.size(1); ++column) {
      const float value = to_float(values[column]);
      if (!std::isfinite(value)) {
        quantization::refuse_weight(row, column, value);
      }
    }
  }
}

template <class Body>
void visit_values(ValueType type, Body&& body) {
  switch (type) {
    case ValueType::i8:
      return body(quantization::I8Values{});
    case ValueType::f8:
      return body(quantization::F8Values{});
    case ValueType::i4:
      return body(quantization::I4Values{});
  }
  fail("there is no type {} of values", static_cast<int>(type));
}

}  // namespace

QuantizedMatrix quantize(const Tensor& w, ValueType type, int64_t group, ThreadPool& threads) {
  require(w.rank() == 2, "a matrix is quantised, not a tensor {}", w.shape_string());
  require(is_floating(w.dtype()), "weights of f16, bf16 or f32 are quantised, not of {}",
          name_of(w.dtype()));
  require(w.device() == Device{}, "a matrix is quantised in host memory, not on {}",
          to_string(w.device()));
  require(type != ValueType::i4 || std::ranges::find(kValueGroups, group) != std::end(kValueGroups),
          "{} columns of i4 share a scale; expected 32, 64 or 128", group);
  QuantizedMatrix q{.type = type,
                    .rows = w.size(0),
                    .columns = w.size(1),
                    .group = type == ValueType::i4 ? group : w.size(1)};
  const int64_t grain = kMinElementsQuantized / std::max<int64_t>(q.columns, 1) + 1;
  visit_float(w.dtype(), [&]<class T>(T) {
    require_finite<T>(w, grain, threads);
    q.codes.resize(static_cast<size_t>(q.rows * q.columns));
    q.scales.assign(static_cast<size_t>(q.rows * q.groups()), 1.0f);
    visit_values(type, [&]<class Values>(Values) {
      threads.parallel_for(q.rows, grain, [&](int64_t begin, int64_t end) {
        ScaleGroup scratch(std::min(q.group, q.columns));
        for (int64_t row = begin; row < end; ++row) {
          quantize_row<Values>(w.row<T>(row), q, row, scratch);
        }
      });
    });
  });
  return q;
}

}  // namespace sparsellm
