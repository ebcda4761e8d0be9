#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "sparse/general_sparse/format/layout.h"

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

// The same for entries of which each has to be within 127 columns after the one before, or 128
// before it, wherever this is so in the order of the columns. At entry e lane l reads the first
// column that is left and is (l + e) modulo 8, if it is near enough and leaves all others near
// enough, else the first one that is left. Of 32 columns that 4 wavefronts could read, this takes
// 4.8 at 50 % of zeros, 5.5 at 70 % and 6.3 at 80 %, an order by columns 9.8.
class NearbyBankOrder {
 public:
  // positions of a lane, ascending. Returns their indices in the new order, valid until the next
  // call.
  const std::vector<uint32_t>& order(const std::vector<uint32_t>& positions, size_t lane) {
    order_.clear();
    for (size_t begin = 0; begin < positions.size();) {
      size_t end = begin + 1;
      while (end < positions.size() && positions[end] - positions[end - 1] <= kReach) {
        ++end;
      }
      order_run(positions, begin, end, lane);
      begin = end;
    }
    return order_;
  }

 private:
  static constexpr size_t kClasses = 8;
  static constexpr int64_t kReach = most_difference(PositionCode::i8);

  // What lies between two gaps that are too long. The last one of it stays the last.
  void order_run(const std::vector<uint32_t>& positions, size_t begin, size_t end, size_t lane) {
    for (std::vector<uint32_t>& entries : classes_) {
      entries.clear();
    }
    taken_.fill(0);
    for (size_t i = begin; i < end; ++i) {
      classes_[positions[i] % kClasses].push_back(static_cast<uint32_t>(i));
    }
    done_.assign(end - begin, false);
    size_t first_left = begin;
    // Where the bridges to the run end.
    int64_t before = begin == 0 ? 0 : int64_t{positions[begin - 1]};
    before += bridges_of(positions[begin] - before, kReach) * kReach;
    for (size_t count = begin; count < end; ++count) {
      while (done_[first_left - begin]) {
        ++first_left;
      }
      size_t of_class = (lane + order_.size()) % kClasses;
      // When first_left is taken, what comes next is at most the one after `wanted`.
      const auto is_near = [&](size_t wanted) {
        return wanted == first_left ||
               (wanted + 1 < end && positions[wanted + 1] - positions[first_left] <= kReach &&
                positions[wanted] - before <= kReach);
      };
      if (taken_[of_class] == classes_[of_class].size() ||
          !is_near(classes_[of_class][taken_[of_class]])) {
        of_class = positions[first_left] % kClasses;
      }
      const uint32_t next = classes_[of_class][taken_[of_class]++];
      order_.push_back(next);
      done_[next - begin] = true;
      before = positions[next];
    }
  }

  std::array<std::vector<uint32_t>, kClasses> classes_;
  std::array<size_t, kClasses> taken_{};
  std::vector<bool> done_;
  std::vector<uint32_t> order_;
};

}  // namespace sparsellm::general_sparse
