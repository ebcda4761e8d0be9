#include "tools/format_contender.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <string>
#include <utility>

#include "kernels/base/buffer.h"
#include "kernels/base/error.h"
#include "sparse/dense/dense.h"
#include "sparse/weight_matrix.h"
#include "tools/cold_cache.h"

namespace sparsellm {
namespace {

// Puts another copy of an encoded weight on the device.
using Loader = std::function<std::unique_ptr<WeightMatrix>()>;

Loader dense_loader(const Tensor& weight) {
  return [&weight] {
    OwnedTensor copy = allocate_tensor(weight.device(), weight.dtype(),
                                       {weight.size(0), weight.size(1)}, "a copy of the weight");
    copy_bytes(weight.device(), copy.view.raw(), weight.device(), weight.raw(), weight.bytes());
    return std::make_unique<DenseWeight>(std::move(copy));
  };
}

struct Format {
  std::string_view name;
  Loader (*encode)(const Tensor& weight);  // once for all copies; `weight` outlives the loader
};

constexpr Format kFormats[] = {
    {"dense", dense_loader},
};

class FormatKernel : public BoundKernel {
 public:
  FormatKernel(const std::vector<std::unique_ptr<WeightMatrix>>& copies, const Tensor& x,
               const Tensor& y, ExecContext& ctx)
      : copies_(copies), x_(x), y_(y), ctx_(ctx) {}

  const std::string& algorithm() const override { return algorithm_; }
  void enqueue(int64_t copy) override {
    copies_[static_cast<size_t>(copy)]->matmul(x_, y_, {}, ctx_);
  }

 private:
  const std::vector<std::unique_ptr<WeightMatrix>>& copies_;
  Tensor x_;
  Tensor y_;
  ExecContext& ctx_;
  std::string algorithm_;
};

class FormatContender : public Contender {
 public:
  FormatContender(const Format& format, const ContenderInput& input) : ctx_(input.ctx) {
    const Loader load = format.encode(input.weight);
    copies_.push_back(load());
    const int64_t copies = cold_copies(bytes(), input.rotation_bytes);
    while (std::ssize(copies_) < copies) {
      copies_.push_back(load());
    }
  }

  int64_t copies() const override { return std::ssize(copies_); }
  int64_t bytes() const override { return std::max(copies_.front()->bytes(), int64_t{1}); }
  std::vector<std::unique_ptr<BoundKernel>> bind(const Tensor& x, const Tensor& y) override {
    // As the engine does while it loads a model.
    std::vector<const WeightMatrix*> alike;
    for (const std::unique_ptr<WeightMatrix>& copy : copies_) {
      alike.push_back(copy.get());
    }
    TuneCache cache;
    const int64_t tokens[] = {x.size(0)};
    alike.front()->tune({.alike = alike, .epilogue = {}, .y = y.dtype(), .tokens = tokens}, cache,
                        ctx_);
    std::vector<std::unique_ptr<BoundKernel>> kernels;
    kernels.push_back(std::make_unique<FormatKernel>(copies_, x, y, ctx_));
    return kernels;
  }

 private:
  ExecContext& ctx_;
  std::vector<std::unique_ptr<WeightMatrix>> copies_;
};

}  // namespace

std::vector<std::string_view> benchmark_formats() {
  std::vector<std::string_view> names;
  for (const Format& format : kFormats) {
    names.push_back(format.name);
  }
  return names;
}

std::unique_ptr<Contender> make_format_contender(std::string_view format,
                                                 const ContenderInput& input) {
  for (const Format& known : kFormats) {
    if (known.name == format) {
      return std::make_unique<FormatContender>(known, input);
    }
  }
  fail("unknown format '{}'; use {}", format, fmt::join(benchmark_formats(), ", "));
}

}  // namespace sparsellm
