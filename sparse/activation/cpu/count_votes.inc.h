// Votes on rows of sign words, for one instruction set. The file of each includes it inside its
// unnamed namespace, after
//   struct Vec;            // kWords words: load(const uint32_t*), load_partial(p, count), the rest
//   0 Vec operator&(Vec, Vec); Vec operator^(Vec, Vec); template <int kPlanes> struct Counter;  //
//   of votes: zero(), add(bits, planes), sum()

template <int kPlanes>
struct Planes {
  Vec of[kPlanes];
};

// Words [word, word + Vec::kWords) of the token, which are there, and of the row, up to its last.
template <int kPlanes, bool kHasZeros, class Load>
inline void count_words(const TokenVotes& token, int64_t word, const uint32_t* signs,
                        const uint32_t* nonzero, Load&& load, Counter<kPlanes>& negative,
                        Counter<kPlanes>& total) {
  Planes<kPlanes> planes;
#pragma GCC unroll 4
  for (int b = 0; b < kPlanes; ++b) {
    planes.of[b] = Vec::load(token.signs + (1 + b) * token.stride + word);
  }
  Vec differ = Vec::load(token.signs + word) ^ load(signs + word);
  if constexpr (kHasZeros) {
    const Vec counted = load(nonzero + word);
    differ = differ & counted;
    total.add(counted, planes.of);
  }
  negative.add(differ, planes.of);
}

constexpr int64_t kAhead = 1024;  // words that are fetched ahead: some rows

template <int kPlanes, bool kHasZeros>
void count_rows(const TokenVotes& token, const SignRows& w, int32_t* negative, int32_t* total) {
  for (int64_t row = 0; row < w.rows; ++row) {
    const uint32_t* const signs = w.signs + row * w.signs_stride;
    const uint32_t* const nonzero = kHasZeros ? w.nonzero + row * w.nonzero_stride : nullptr;
    Counter<kPlanes> differing = Counter<kPlanes>::zero();
    Counter<kPlanes> all = Counter<kPlanes>::zero();
    int64_t word = 0;
    for (; word + Vec::kWords <= w.words; word += Vec::kWords) {
      __builtin_prefetch(signs + word + kAhead);
      if constexpr (kHasZeros) {
        __builtin_prefetch(nonzero + word + kAhead);
      }
      count_words<kPlanes, kHasZeros>(
          token, word, signs, nonzero, [](const uint32_t* p) { return Vec::load(p); }, differing,
          all);
    }
    if (word < w.words) {
      const int64_t count = w.words - word;
      count_words<kPlanes, kHasZeros>(
          token, word, signs, nonzero,
          [count](const uint32_t* p) { return Vec::load_partial(p, count); }, differing, all);
    }
    negative[row] = differing.sum();
    total[row] = kHasZeros ? all.sum() : token.total;
  }
}

void count(const TokenVotes& token, const SignRows& w, int32_t* negative, int32_t* total) {
  const bool has_zeros = w.nonzero != nullptr;
  if (token.planes == 1) {
    (has_zeros ? count_rows<1, true> : count_rows<1, false>)(token, w, negative, total);
  } else {
    (has_zeros ? count_rows<kMaxPlanes, true> : count_rows<kMaxPlanes, false>)(token, w, negative,
                                                                               total);
  }
}
