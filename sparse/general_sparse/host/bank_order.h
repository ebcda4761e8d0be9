#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace sparsellm::general_sparse {

// An order of the entries of a lane in which the 32 lanes of a slice, each in its own order, read x
// from different banks of shared memory: at entry e lane l reads a column that is (l + e) modulo
// 32, as long as it has one. Where x has 16 bytes for a column (8 tokens of 16 bits) one wavefront
// has the columns of 8 lanes, of fewer bytes those of 16 or 32 lanes: their remainders modulo 8, 16
// and 32 differ. Without one a lane takes the next best, a column with that remainder modulo 8, of
// the class that has the most left; at last any of the largest class. Columns of a class ascend.
class BankOrder {
 public:
  static constexpr size_t kClasses = 32;

  // positions of a lane, ascending. Returns their indices in the new order, valid until the next
  // call.
  const std::vector<uint32_t>& order(const std::vector<uint32_t>& positions, size_t lane) {
    for (std::vector<uint32_t>& entries : classes_) {
      entries.clear();
    }
    for (size_t i = 0; i < positions.size(); ++i) {
      classes_[positions[i] % kClasses].push_back(static_cast<uint32_t>(i));
    }
    taken_.fill(0);
    order_.clear();
    for (size_t entry = 0; entry < positions.size(); ++entry) {
      const size_t best = next_class((lane + entry) % kClasses);
      order_.push_back(classes_[best][taken_[best]++]);
    }
    return order_;
  }

 private:
  static constexpr size_t kSimilar = 8;  // classes of one remainder are so far apart

  size_t left(size_t of_class) const { return classes_[of_class].size() - taken_[of_class]; }

  // The first of the largest among every step-th class.
  size_t largest(size_t first, size_t step) const {
    size_t best = first;
    for (size_t other = first; other < kClasses; other += step) {
      best = left(other) > left(best) ? other : best;
    }
    return best;
  }

  size_t next_class(size_t wanted) const {
    if (left(wanted) > 0) {
      return wanted;
    }
    const size_t similar = largest(wanted % kSimilar, kSimilar);
    return left(similar) > 0 ? similar : largest(0, 1);
  }

  std::array<std::vector<uint32_t>, kClasses> classes_;
  std::array<size_t, kClasses> taken_{};
  std::vector<uint32_t> order_;
};

}  // namespace sparsellm::general_sparse
