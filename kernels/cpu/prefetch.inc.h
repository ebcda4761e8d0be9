// What products of one instruction set prefetch while they compute; included inside the unnamed
// namespace of each file, as multiply_rows.inc.h is.

constexpr int64_t kLineBytes = 64;

// The first `lines` cache lines of each of the rows that are read next, which are `stride` bytes
// apart.
struct Ahead {
  const uint8_t* from;
  int64_t stride;
  int64_t lines;

  const uint8_t* row(int r) const { return from + r * stride; }
  void advance(int64_t bytes) { from += bytes; }
};

// The share of a tile among several.
inline Ahead share_of(const Ahead& ahead, int64_t tile, int64_t tiles) {
  const int64_t begin = ahead.lines * tile / tiles;
  const int64_t end = ahead.lines * (tile + 1) / tiles;
  return {ahead.from + begin * kLineBytes, ahead.stride, end - begin};
}
