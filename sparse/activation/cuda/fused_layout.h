#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

// How the blocks of fused_mlp() share the work, and what is where in their shared memory.
//
// Blocks come in pairs, a cluster each. A pair has some columns of y, each block of it half of the
// neurons; for votes and for the products of gate and up each block has an equal share of them all.
namespace sparsellm::fused {

constexpr int kUnit = 16;         // neurons whose bits, of two tokens, are one word between blocks
constexpr int kRowsOfStage = 16;  // of down, that a warp multiplies at once
constexpr int kStepColumns = 64;  // of gate and up, that a warp multiplies at once
constexpr int kMostStages = 8;
constexpr int kWarpsOfBlock = 16;
constexpr int kMostTokens = 8;
constexpr int kMostCountedTokens = 2;  // whose votes are counted bit by bit
constexpr int kMostUnits = 64;         // of a block
constexpr int kMostShare = 512;        // neurons of gate and up of a block
constexpr int kMostBlocks = 256;
constexpr int kMostShared = 227 * 1024;
constexpr int kMostNeurons = 65520;
constexpr int kActiveWords = kMostNeurons / kUnit * kMostTokens / 2;  // of CudaQueue::tagged
constexpr int kWordsOfH = kMostNeurons * kMostTokens / 2;             // after them
constexpr int kStaticShared = 6 * 1024;                               // at most

constexpr int64_t up_to(int64_t x, int64_t multiple) {
  return (x + multiple - 1) / multiple * multiple;
}

struct FusedShape {
  int tokens = 0;
  int in = 0;
  int out = 0;
  int neurons = 0;
  int kinds = 0;  // of rows that a neuron has: 2 with a gate
  int tiles = 0;  // of 8 columns, of a pair of blocks

  constexpr int units() const { return (neurons + kUnit - 1) / kUnit; }
  constexpr int token_pairs() const { return (tokens + 1) / 2; }
  constexpr int words() const { return in / 32; }
  constexpr int segments() const { return (words() + 15) / 16; }  // of 512 columns
  // Bytes of the votes of a token, an odd number of times 64, so that tokens are in other banks.
  constexpr int vote_stride() const { return segments() * 512 + 64; }
  // Of a warp, for a row, at most; x of all of them is in registers.
  constexpr int most_steps() const { return tiles / 2; }
  constexpr int columns() const { return tiles * 8; }
  constexpr int pairs() const { return (out + columns() - 1) / columns(); }
  constexpr int blocks() const { return 2 * pairs(); }
  constexpr int own_units() const { return (units() + blocks() - 1) / blocks(); }  // at most
  constexpr int half_units() const { return (units() + 1) / 2; }                   // at most
  // Of a warp: 16 rows of down with their h; 64 columns of eight neurons.
  constexpr int down_stage() const { return kRowsOfStage * (columns() * 2 + 16 + kMostTokens * 2); }
  constexpr int neuron_stage() const { return kinds * 8 * (kStepColumns * 2 + 16); }
  // Of a warp, for a row.
  constexpr int steps() const {
    return (in + kStepColumns * kWarpsOfBlock - 1) / (kStepColumns * kWarpsOfBlock);
  }
  // That tell h of a neuron, each for two tokens: 1, 2 or 4.
  constexpr int h_words() const { return tokens <= 2 ? 1 : tokens <= 4 ? 2 : 4; }
  constexpr int item_shift() const {
    return tokens == 1 ? 0 : tokens == 2 ? 1 : tokens <= 4 ? 2 : 3;
  }
  // Groups of eight neurons between two barriers.
  constexpr int round() const { return tokens == 1 ? 8 : tokens == 2 ? 4 : tokens <= 4 ? 2 : 1; }
  // Stages of gate and up of a warp. Steps of a group are a multiple of them, some of them empty,
  // so that the slot of a step is known at compile time: as few empty ones as possible.
  constexpr int neuron_slots() const {
    const int most = kinds == 2 ? 4 : 7;
    int best = most;
    for (int slots = most; slots > most / 2; --slots) {
      const auto empty = [&](int n) { return (most_steps() + n - 1) / n * n - most_steps(); };
      best = empty(slots) < empty(best) ? slots : best;
    }
    return best;
  }
  constexpr int parts() const { return round() * kinds * kWarpsOfBlock * 8 * tokens; }
};

// Offsets in bytes.
struct FusedLayout {
  int exchange = 0;  // f32 [tokens, columns]: of the other block of the pair
  // Until votes are counted:
  int votes = 0;     // s8 [tokens, vote_stride]: the signed weights of votes
  int negative = 0;  // i32 [own units * 16, tokens]
  int signs = 0;     // u32 [resident units * 16, words]
  int resident = 0;  // units whose signs are there
  // After that, from `votes` on:
  int bits = 0;    // u32 [token pairs, units]: active neurons of two tokens
  int any = 0;     // u16 [units]: of all tokens
  int before = 0;  // u16 [half_units + 1]: neurons of the list before a unit
  int list = 0;    // u16 [half_units * 16]: active neurons of this block's half
  int parts = 0;   // f32 [2, round, kinds, warps, 8, tokens]: sums of gate and up
  int ring = 0;    // [warps, ring_bytes]: stages of gate and up, then of down
  int ring_bytes = 0;
  int down_stages = 0;
  int bytes = 0;
};

// Of what counts votes, from `begin` on; nothing if it does not fit.
inline std::optional<FusedLayout> vote_layout(const FusedShape& s, int64_t begin = 0) {
  const int64_t room = kMostShared - kStaticShared;
  FusedLayout at;
  at.votes = static_cast<int>(begin);
  int64_t end = begin + int64_t{s.tokens} * s.vote_stride();
  at.negative = static_cast<int>(end);
  end = up_to(end + int64_t{s.own_units()} * kUnit * s.tokens * 4, 128);
  if (end > room) {
    return {};
  }
  at.signs = static_cast<int>(end);
  const int64_t of_unit = int64_t{kUnit} * s.words() * 4;
  at.resident = static_cast<int>(std::min<int64_t>(s.own_units(), (room - end) / of_unit));
  at.bytes = static_cast<int>(end + at.resident * of_unit);
  return at;
}

// Nothing if it does not fit.
inline std::optional<FusedLayout> fused_layout(const FusedShape& s) {
  const int64_t room = kMostShared - kStaticShared;
  int64_t end = up_to(int64_t{s.tokens} * s.columns() * 4, 128);
  const std::optional<FusedLayout> voting = vote_layout(s, end);
  if (!voting) {
    return {};
  }
  FusedLayout at = *voting;
  at.bits = at.votes;
  end += int64_t{s.token_pairs()} * s.units() * 4;
  at.any = static_cast<int>(end);
  end += int64_t{s.units()} * 2;
  at.before = static_cast<int>(end);
  end += (s.half_units() + 1) * 2;
  at.list = static_cast<int>(end);
  end = up_to(end + s.half_units() * kUnit * 2, 128);
  at.parts = static_cast<int>(end);
  const int64_t sums = end + int64_t{kWarpsOfBlock + 1} * s.tokens * (s.columns() + 4) * 4;
  const int64_t ring = up_to(end + int64_t{2} * s.parts() * 4, 128);
  at.ring = static_cast<int>(ring);
  const int most = std::max(kMostStages * s.down_stage(), s.neuron_slots() * s.neuron_stage());
  at.ring_bytes =
      static_cast<int>(std::min<int64_t>((room - ring) / kWarpsOfBlock, most) / 128 * 128);
  if (s.steps() > s.most_steps() ||
      at.ring_bytes < std::max(2 * s.down_stage(), s.neuron_slots() * s.neuron_stage()) ||
      sums > room) {
    return {};
  }
  at.down_stages = std::min(kMostStages, at.ring_bytes / s.down_stage());
  at.bytes = static_cast<int>(
      std::max({int64_t{at.bytes}, ring + int64_t{kWarpsOfBlock} * at.ring_bytes, sums}));
  return at;
}

}  // namespace sparsellm::fused
