#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/activation.h"
#include "kernels/base/buffer.h"
#include "models/weights/linear.h"

namespace sparsellm {

struct OwnedSignWords;  // sparse/activation/sign_words.h

// Where a model's weights come from: the builders ask for them under their Hugging Face names. The
// tensors have their memory at once, and their values when finish() returns. When a builder throws
// on the way, what it has asked for is dropped, and finish() must not be called.
class WeightLoader {
 public:
  virtual ~WeightLoader() = default;
  WeightLoader(const WeightLoader&) = delete;
  WeightLoader& operator=(const WeightLoader&) = delete;

  OwnedTensor vector(const std::string& name, int64_t size);
  OwnedTensor matrix(const std::string& name, int64_t rows, int64_t columns);

  // One of the linear layers that `linear` joins by rows: "<module>.weight" [out, in] and
  // "<module>.bias" [out].
  struct Part {
    std::string module;
    int64_t out = 0;
  };
  enum class Bias : uint8_t { no, yes };
  Linear linear(const std::vector<Part>& parts, int64_t in, Bias bias, Activation activation = {});

  // A linear layer whose neurons are read one by one, of an MLP with activation sparsity: dense
  // whatever it is stored as, as it is or as its transpose, which is then the one copy of it.
  // Throws Error on CUDA, where there is no such MLP yet.
  struct DenseLinear {
    OwnedTensor weight;  // [out, in], or [in, out]
    OwnedTensor bias;    // [out], or empty
  };
  enum class Order : uint8_t { rows, transposed };
  // `signs`, which exists until finish() returns, gets the sign words of the first part's weight.
  DenseLinear dense_linear(const std::vector<Part>& parts, int64_t in, Bias bias, Order order,
                           OwnedSignWords* signs = nullptr);

  // f32 [values.size()] that the model needs but no checkpoint holds; `what` names it in messages.
  virtual OwnedTensor constants(std::string_view what, std::span<const float> values);

  // A loader without memory that, asked for the same, says how much this one takes: at least, for
  // weights whose size is known when they are encoded.
  virtual std::unique_ptr<WeightLoader> shapes() const;
  // Takes the memory of what is asked for from now on in one piece, since many pieces of a GPU's
  // memory take long. `bytes` is the footprint() of shapes() that has been asked for the same.
  virtual void reserve(int64_t bytes);
  // The piece, for the owner of the tensors.
  Buffer take_memory();

  // Throws Error if there are weights that were not asked for: a bias or a projection that the
  // config denies would be lost in silence. Tensors that end with one of `ignored` may stay.
  virtual void require_all_used(
      [[maybe_unused]] std::initializer_list<std::string_view> ignored) const {}

  // Fills the tensors, all of which still exist. Throws Error for values that cannot be loaded.
  virtual void finish() {}

  Device device() const { return device_; }
  // What the model computes in: f32 on the CPU, f16 or bf16 on CUDA. There all weights have it too.
  DType activation_dtype() const { return activation_dtype_; }
  // Memory of the weights that were asked for, as they are on the device.
  int64_t loaded_bytes() const { return loaded_bytes_; }
  // Part of them, of weights that dense_linear() had to decode, and what these take as stored.
  struct Decoded {
    int64_t bytes = 0;
    int64_t stored_bytes = 0;
  };
  const Decoded& decoded() const { return decoded_; }
  // The same of tensors alone, with the gaps between them: encoded weights have their own memory.
  int64_t footprint() const { return footprint_; }

 protected:
  // A tensor of one or of several stored ones, joined by rows: [rows, columns], a vector [rows].
  struct Wanted {
    enum class Kind : uint8_t {
      vector,
      matrix,  // an embedding or the head
      linear,  // the weight of a linear layer
    };
    struct Rows {
      std::string name;
      int64_t count = 0;
    };
    Kind kind = Kind::vector;
    std::vector<Rows> parts;  // at least one
    int64_t columns = 1;      // 1 for a vector
    // Of a linear layer: what its products end with.
    Bias bias = Bias::no;
    Activation activation = {};
    // Of dense_linear().
    Order order = Order::rows;
    OwnedSignWords* signs = nullptr;
  };

  // Throws Error for activations that the device does not compute in.
  WeightLoader(Device device, DType activation_dtype);

  virtual OwnedTensor load(const Wanted& wanted) = 0;
  // The weight of a linear layer; dense, unless a loader knows better.
  virtual std::unique_ptr<WeightMatrix> load_weight(const Wanted& wanted);
  // The weight of dense_linear(), in wanted.order, with wanted.signs.
  virtual OwnedTensor load_dense(const Wanted& wanted) { return load(wanted); }

  static int64_t rows_of(const Wanted& wanted);
  // Of the tensor as it is loaded, in wanted.order.
  static std::pair<int64_t, int64_t> shape_of(const Wanted& wanted);
  void pack_signs(const Tensor& weight, OwnedSignWords& signs, ExecContext& ctx);
  OwnedTensor allocate(const Wanted& wanted, DType dtype);  // named after the first part
  OwnedTensor count(OwnedTensor tensor);                    // among the loaded bytes
  void count_bytes(int64_t bytes) { loaded_bytes_ += bytes; }
  void count_decoded(const Decoded& more);

 private:
  static Wanted joined(Wanted::Kind kind, const std::vector<Part>& parts, int64_t columns);
  OwnedTensor load_bias(const std::vector<Part>& parts, Bias bias);

  Device device_;
  DType activation_dtype_;
  int64_t loaded_bytes_ = 0;
  int64_t footprint_ = 0;
  Decoded decoded_;
  Buffer memory_;  // of reserve()
  int64_t memory_used_ = 0;
};

}  // namespace sparsellm
