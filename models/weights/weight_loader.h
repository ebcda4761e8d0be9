#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/buffer.h"
#include "models/weights/linear.h"
#include "models/weights/shares.h"
#include "models/weights/weight_request.h"

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

  // The same on every rank.
  OwnedTensor vector(const std::string& name, int64_t size);
  OwnedTensor matrix(const std::string& name, int64_t rows, int64_t columns);

  using Bias = WeightRequest::Bias;
  // Of the rank's share, which may have no rows or no columns.
  Linear linear(const WeightRequest& request);
  // The output projection, a matrix "<module>.weight" that no converter encodes.
  Linear head(const WeightRequest& request);

  // A linear layer whose neurons are read one by one, of an MLP with activation sparsity: dense
  // whatever it is stored as, as it is or as its transpose, which is then the one copy of it. Of
  // the rank's share, which has rows and columns.
  struct DenseLinear {
    OwnedTensor weight;  // [out, in], or [in, out]
    OwnedTensor bias;    // [out], or empty
  };
  enum class Order : uint8_t { rows, transposed };
  // `signs`, which exists until finish() returns, gets the sign words of the first part's weight.
  DenseLinear dense_linear(const WeightRequest& request, Order order,
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
  virtual void require_all_used([[maybe_unused]] std::span<const std::string_view> ignored) const {}

  // Fills the tensors, all of which still exist. Throws Error for values that cannot be loaded.
  virtual void finish() {}

  Device device() const { return device_; }
  // Whose share of linear layers is loaded.
  const Shard& shard() const { return shard_; }
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
  // The rank's slices of one or of several stored tensors, joined by rows:
  // [rows_of(), columns.count], a vector [rows_of()].
  struct Wanted {
    enum class Kind : uint8_t {
      vector,
      matrix,  // an embedding or the head
      linear,  // the weight of a linear layer
    };
    struct Part {
      std::string name;
      int64_t rows = 0;  // that are stored
      Range slice;       // of them
    };
    Kind kind = Kind::vector;
    std::vector<Part> parts;     // at least one
    int64_t stored_columns = 1;  // 1 for a vector
    Range columns{.begin = 0, .count = 1};
    const WeightRequest* request = nullptr;  // of a linear layer
    // Of dense_linear().
    Order order = Order::rows;
    OwnedSignWords* signs = nullptr;

    // Whether the rank has all that is stored.
    bool whole_columns() const { return columns.count == stored_columns; }
    bool whole(const Part& part) const { return whole_columns() && part.slice.count == part.rows; }
    // What the rank has of a part; nothing if that is all.
    std::optional<Slice> slice_of(const Part& part) const {
      return whole(part) ? std::nullopt
                         : std::optional(Slice{.rows = part.slice, .columns = columns});
    }
  };

  // Throws Error for activations that the device does not compute in.
  WeightLoader(Device device, DType activation_dtype, const Shard& shard = {});

  virtual OwnedTensor load(const Wanted& wanted) = 0;
  // The weight of a linear layer; dense, unless a loader knows better.
  virtual std::unique_ptr<WeightMatrix> load_weight(const Wanted& wanted);
  // The weight of dense_linear(), in wanted.order, with wanted.signs.
  virtual OwnedTensor load_dense(const Wanted& wanted) { return load(wanted); }
  // Told what was asked for and of which the rank has nothing. Throws Error as for what it has.
  virtual void pass_over([[maybe_unused]] const Wanted& wanted) {}

  static int64_t rows_of(const Wanted& wanted);
  static bool is_empty(const Wanted& wanted) {
    return rows_of(wanted) == 0 || wanted.columns.count == 0;
  }
  // Of the tensor as it is loaded, in wanted.order.
  static std::pair<int64_t, int64_t> shape_of(const Wanted& wanted);
  void pack_signs(const Tensor& weight, OwnedSignWords& signs, ExecContext& ctx);
  OwnedTensor allocate(const Wanted& wanted, DType dtype);  // named after the first part
  OwnedTensor count(OwnedTensor tensor);                    // among the loaded bytes
  void count_bytes(int64_t bytes) { loaded_bytes_ += bytes; }
  void count_decoded(const Decoded& more);

 private:
  Wanted weight_of(const WeightRequest& request) const;
  OwnedTensor load_bias(const WeightRequest& request);
  Linear load_linear(const WeightRequest& request, Wanted::Kind kind);

  Device device_;
  DType activation_dtype_;
  Shard shard_;
  int64_t loaded_bytes_ = 0;
  int64_t footprint_ = 0;
  Decoded decoded_;
  Buffer memory_;  // of reserve()
  int64_t memory_used_ = 0;
};

}  // namespace sparsellm
