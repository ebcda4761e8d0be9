#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/tensor.h"

namespace sparsellm {

// A call that several plans compute equally well but not equally fast, with the weights that it
// will be made with: what Tuner (kernels/tune/tuner.h) chooses a plan for. A Plan is a value; those
// of an op or a format are a std::variant.
template <class Plan>
class Tunable {
 public:
  virtual ~Tunable() = default;

  // What the choice depends on besides the device and its libraries, with a version of the code
  // that rises when a choice of an earlier one may no longer be right. For files.
  virtual std::string key() const = 0;

  // Plans that are worth trying, the best guess first.
  virtual std::vector<Plan> candidates() const = 0;
  // Whether the plan can be taken for all weights of the key: others are never run.
  virtual bool fits_all(const Plan& plan) const = 0;
  // What is taken where no candidate could be measured.
  virtual Plan fallback() const = 0;

  // Where run() leaves its result [rows, columns], in rows that may be strided.
  virtual Tensor result() const = 0;
  // Enqueues what every plan has to compute with the first weight, into `expected`, contiguous and
  // of the result's dtype and shape.
  virtual void run_reference(const Tensor& expected) = 0;
  // Enqueues the call. Weights take turns, from turn 0, the first one's, on. Throws Error for a
  // plan that the device does not take.
  virtual void run(const Plan& plan, int64_t turn) = 0;
  // Takes the seconds of a candidate that is right, as soon as they are measured.
  virtual void timed(const Plan& /*plan*/, double /*seconds*/) {}
  // Whether candidates that are far slower than the best so far are measured, too.
  virtual bool times_slow_ones() const { return false; }

  // That calls read before one reads again what an earlier one has read: of all weights together.
  virtual int64_t bytes_in_turn() const = 0;

  // A line that says what a plan is, and back: nothing for other text.
  virtual std::string to_text(const Plan& plan) const = 0;
  virtual std::optional<Plan> plan_from(std::string_view text) const = 0;
};

}  // namespace sparsellm
