#include "sparse/activation/sign_words.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/checks.h"
#include "sparse/activation/sign_words_device.h"

namespace sparsellm {
namespace {

struct Word {
  uint32_t signs;
  uint32_t nonzero;
};

// 32 elements as stored: float, or f16 and bf16, whose sign and zeros are the same bits.
Word pack_word(const uint32_t* elements) {
  Word word{};
  for (int i = 0; i < 32; ++i) {
    word.signs |= (elements[i] >> 31) << i;
    word.nonzero |= static_cast<uint32_t>((elements[i] & 0x7fffffffu) != 0) << i;
  }
  return word;
}

// Of four 16-bit elements at once the highest bits, which a multiplication brings together.
Word pack_word(const uint16_t* elements) {
  constexpr uint64_t kHighest = 0x8000800080008000;
  const auto gather = [](uint64_t highest) {
    constexpr uint64_t kShifts = 1ull << 48 | 1ull << 33 | 1ull << 18 | 1ull << 3;
    return static_cast<uint32_t>((highest >> 15) * kShifts >> 48 & 0xf);
  };
  Word word{};
  for (int i = 0; i < 32; i += 4) {
    uint64_t four = 0;
    std::memcpy(&four, elements + i, sizeof(four));
    word.signs |= gather(four & kHighest) << i;
    // The sum carries into the highest bit unless all others are 0.
    word.nonzero |= gather(((four & ~kHighest) + ~kHighest) & kHighest) << i;
  }
  return word;
}

// Whether an element is zero.
template <class T>
bool pack_row(const T* row, int64_t columns, uint32_t* signs, uint32_t* nonzero) {
  uint32_t all = ~0u;
  int64_t column = 0;
  const auto store = [&](const T* elements, uint32_t outside) {
    const Word word = pack_word(elements);
    *signs++ = word.signs;
    *nonzero++ = word.nonzero;
    all &= word.nonzero | outside;
  };
  for (; column + 32 <= columns; column += 32) {
    store(row + column, 0);
  }
  if (column < columns) {
    T last[32] = {};
    std::copy(row + column, row + columns, last);
    store(last, ~0u << (columns - column));
  }
  return all != ~0u;
}

}  // namespace

SignWords SignWords::slice(Range range) const {
  return {columns, signs.rows(range.begin, range.count),
          nonzero.empty() ? Tensor() : nonzero.rows(range.begin, range.count)};
}

SignPacker::SignPacker(int64_t rows, int64_t columns) {
  require(rows >= 0 && columns >= 0, "sign words of a weight [{}, {}]", rows, columns);
  const auto allocate = [&] {
    return allocate_tensor({}, DType::u32, {rows, sign_word_count(columns)}, "sign words");
  };
  words_.columns = columns;
  words_.signs = allocate();
  words_.nonzero = allocate();
}

void SignPacker::pack(const Tensor& w, int64_t first_row, ThreadPool& threads) {
  const SignWords all = words_.view();
  require(
      w.rank() == 2 && is_floating(w.dtype()) && !w.device().is_cuda() && w.size(1) == all.columns,
      "sign words of {} {} on {}; expected a floating dtype and {} columns, on cpu",
      name_of(w.dtype()), w.shape_string(), to_string(w.device()), all.columns);
  const SignWords to = all.slice({.begin = first_row, .count = w.size(0)});
  if (all.columns == 0) {
    packed_rows_ += w.size(0);  // there is no memory
    return;
  }
  constexpr int64_t kElementsPerRange = 64 << 10;
  const int64_t grain = kElementsPerRange / all.columns + 1;
  threads.parallel_for(w.size(0), grain, [&](int64_t begin, int64_t end) {
    bool found = false;
    const auto pack_rows = [&]<class T>(T) {
      for (int64_t row = begin; row < end; ++row) {
        found |= pack_row(static_cast<const T*>(w.raw()) + row * w.row_stride(), all.columns,
                          to.signs.row<uint32_t>(row), to.nonzero.row<uint32_t>(row));
      }
    };
    if (w.dtype() == DType::f32) {
      pack_rows(uint32_t{});
    } else {
      pack_rows(uint16_t{});
    }
    if (found) {
      has_zeros_ = true;
    }
  });
  packed_rows_ += w.size(0);
}

OwnedSignWords SignPacker::finish() && {
  const int64_t rows = words_.view().rows();
  require(packed_rows_ == rows, "sign words of {} rows of {}", packed_rows_.load(), rows);
  if (!has_zeros_) {
    words_.nonzero = {};
  }
  return std::move(words_);
}

OwnedSignWords pack_sign_words(const Tensor& w, ThreadPool& threads) {
  require(w.rank() == 2, "sign words of a tensor {}", w.shape_string());
  SignPacker packer(w.size(0), w.size(1));
  packer.pack(w, 0, threads);
  return std::move(packer).finish();
}

OwnedSignWords pack_sign_words(const Tensor& w, ExecContext& ctx) {
  check_tensor({"sign words", "w"}, w, Elements::floating, {kAnySize, kAnySize}, ctx);
  return ctx.device.is_cuda() ? pack_sign_words_cuda(w, ctx) : pack_sign_words(w, ctx.threads);
}

}  // namespace sparsellm
