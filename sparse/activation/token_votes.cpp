#include "sparse/activation/token_votes.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/base/simd.h"

namespace sparsellm::token_votes {
namespace {

constexpr int64_t kBits = 32;  // of a word, elements that are packed together
constexpr int64_t kVectors = kBits / F32x8::kWidth;

// The elements of a word, with zeros beyond the last column.
struct Elements {
  std::array<F32x8, kVectors> v;

  static Elements load(const float* x, int64_t count) {
    float padded[kBits] = {};
    if (count < kBits) {
      std::copy_n(x, count, padded);
      x = padded;
    }
    Elements elements;
    for (size_t i = 0; i < kVectors; ++i) {
      elements.v[i] = F32x8::load(x + i * F32x8::kWidth);
    }
    return elements;
  }
};

// In pairs of neighbours. Sums of as many elements are added up as soon as there are two.
float sum_of_squares(const float* x, int64_t columns) {
  std::array<float, 64> sums;  // of more and more elements
  size_t count = 0;
  const auto add_last = [&] {
    --count;
    sums[count - 1] += sums[count];
  };
  for (int64_t word = 0; word * kBits < columns; ++word) {
    const Elements e = Elements::load(x + word * kBits, columns - word * kBits);
    float quarters[kVectors];
    sum4(e.v[0] * e.v[0], e.v[1] * e.v[1], e.v[2] * e.v[2], e.v[3] * e.v[3], quarters);
    sums[count++] = (quarters[0] + quarters[1]) + (quarters[2] + quarters[3]);
    for (int pairs = std::countr_one(static_cast<uint64_t>(word)); pairs > 0; --pairs) {
      add_last();
    }
  }
  while (count > 1) {
    add_last();
  }
  return count > 0 ? sums[0] : 0.0f;
}

bool all_finite(const float* x, int64_t columns) {
  // What is left of finite numbers is 0, of all others NaN.
  F32x8 left = F32x8::zero();
  for (int64_t column = 0; column < columns; column += kBits) {
    const Elements e = Elements::load(x + column, columns - column);
    for (const F32x8& v : e.v) {
      left = left + (v - v);
    }
  }
  return sum(left) == 0.0f;
}

// Of each of 32 bytes the lowest bit.
uint32_t lowest_bits(const uint8_t* bytes, int shift) {
  uint32_t word = 0;
  for (int i = 0; i < kBits; i += 8) {
    uint64_t eight = 0;
    std::memcpy(&eight, bytes + i, sizeof(eight));
    const uint64_t bits = eight >> shift & 0x0101010101010101;
    word |= static_cast<uint32_t>(bits * 0x0102040810204080 >> 56) << i;
  }
  return word;
}

void quantise(const Elements& e, float c, uint8_t* q) {
  constexpr float kLargest = 15.0f;
  float rounded[kBits];
  for (size_t i = 0; i < kVectors; ++i) {
    const F32x8 magnitude = max(F32x8::zero() - e.v[i], e.v[i]);
    round(min(magnitude * F32x8::all(c), F32x8::all(kLargest))).store(rounded + i * F32x8::kWidth);
  }
  for (int i = 0; i < kBits; ++i) {
    q[i] = static_cast<uint8_t>(rounded[i]);
  }
}

}  // namespace

int64_t words_of(int64_t columns, Votes votes) {
  constexpr int64_t kVector = vote_kernels::kVectorWords;
  const int64_t words = (sign_word_count(columns) + kVector - 1) / kVector * kVector;
  return words * (1 + planes_of(votes));
}

vote_kernels::TokenVotes pack(const float* x, int64_t columns, Votes votes, uint32_t* words) {
  const int planes = planes_of(votes);
  const int64_t all_words = words_of(columns, votes);
  const int64_t stride = all_words / (1 + planes);
  vote_kernels::TokenVotes result{.signs = words, .stride = stride, .planes = planes, .total = 0};
  std::fill_n(words, all_words, 0u);
  float c = 1.0f;
  if (votes == Votes::weighted) {
    c = 5.0f / std::sqrt(sum_of_squares(x, columns) / static_cast<float>(columns));
  } else if (!all_finite(x, columns)) {
    return result;  // no votes
  }
  if (!(c > 0.0f && std::isfinite(c))) {
    return result;
  }
  for (int64_t word = 0; word * kBits < columns; ++word) {
    const Elements e = Elements::load(x + word * kBits, columns - word * kBits);
    float values[kBits];
    uint8_t negative[kBits];
    uint8_t q[kBits];
    for (size_t i = 0; i < kVectors; ++i) {
      e.v[i].store(values + i * F32x8::kWidth);
    }
    for (int i = 0; i < kBits; ++i) {
      negative[i] = static_cast<uint8_t>(std::bit_cast<uint32_t>(values[i]) >> 31);
      q[i] = values[i] != 0.0f ? 1 : 0;
    }
    if (votes == Votes::weighted) {
      quantise(e, c, q);
    }
    words[word] = lowest_bits(negative, 0);
    for (int plane = 0; plane < planes; ++plane) {
      const uint32_t bits = lowest_bits(q, plane);
      words[(1 + plane) * stride + word] = bits;
      result.total += std::popcount(bits) << plane;
    }
  }
  return result;
}

}  // namespace sparsellm::token_votes
