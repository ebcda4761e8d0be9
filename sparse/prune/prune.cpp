#include "sparse/prune/prune.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/base/error.h"
#include "sparse/prune/block_scores.h"
#include "sparse/prune/score.h"
#include "sparse/prune/zero_lowest.h"

namespace sparsellm {
namespace {

using Kind = PruneMethod::Kind;

constexpr int64_t kMinElementsPerRange = 8 << 10;  // worth the waking of a thread

int64_t grain(const Tensor& w) {
  return kMinElementsPerRange / std::max<int64_t>(w.size(1), 1) + 1;
}

void check_settings(const Tensor& w, const PruneSettings& settings) {
  const auto& [method, scope, sparsity, seed, block, norms] = settings;
  require(w.rank() == 2, "pruning takes a matrix, not a tensor {}", w.shape_string());
  require(w.device() == Device{}, "pruning takes a matrix in host memory, not on {}",
          to_string(w.device()));
  require(sparsity >= 0.0 && sparsity <= 1.0, "the sparsity {} is not in [0, 1]", sparsity);
  require(scope == PruneScope::row || method.kind == Kind::magnitude || method.kind == Kind::random,
          "{} pruning is per row, not per matrix", to_string(method));
  require(block.in_range(), "blocks of {}; expected {}", to_string(block), kBlockShapeSyntax);
  require(block == BlockShape() || method.kind == Kind::magnitude || method.kind == Kind::random,
          "{} pruning chooses elements, not blocks", to_string(method));
  if (method.kind == Kind::n_m) {
    parse_prune_method(to_string(method));
  }
  require(method.kind != Kind::wanda || !norms.empty(),
          "pruning by Wanda takes the norms of the inputs");
}

// The norms that the method uses; nullptr if it uses none.
const float* checked_norms(const Tensor& w, const PruneSettings& settings) {
  const Tensor& norms = settings.norms;
  const Kind kind = settings.method.kind;
  if (norms.empty() || (kind != Kind::wanda && kind != Kind::n_m)) {
    return nullptr;
  }
  require(norms.device() == Device{} && norms.rank() == 1 && norms.size(0) == w.size(1),
          "the norms {} on {} of a weight {}; expected [{}] on cpu", norms.shape_string(),
          to_string(norms.device()), w.shape_string(), w.size(1));
  const float* const values = norms.data<float>();
  for (int64_t i = 0; i < norms.size(0); ++i) {
    require(values[i] >= 0.0f, "the norm of input {} is {}", i, values[i]);
  }
  return values;
}

// Throws Error that names the first element without a score.
template <class T, class Score>
void check_scores(const Tensor& w, const Score& score, ThreadPool& threads) {
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  std::atomic<int64_t> first = kNone;
  threads.parallel_for(w.size(0), grain(w), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* const values = w.row<T>(row);
      int64_t column = 0;
      while (column < w.size(1) && score.has_score(values[column], column)) {
        ++column;
      }
      if (column < w.size(1)) {
        int64_t seen = first.load();
        const int64_t here = row * w.size(1) + column;
        while (here < seen && !first.compare_exchange_weak(seen, here)) {
        }
        return;
      }
    }
  });
  if (first != kNone) {
    const int64_t row = first / w.size(1);
    const int64_t column = first % w.size(1);
    const float value = to_float(w.row<T>(row)[column]);
    require(!is_nan(value), "the weight in row {}, column {} is NaN", row, column);
    fail("the weight in row {}, column {} is {}, but its input's norm is 0: they have no score",
         row, column, value);
  }
}

template <class T, class Score>
void prune_to_sparsity(const Tensor& w, const PruneSettings& settings, const Score& score,
                       ThreadPool& threads) {
  const auto prune_rows = [&](Range rows) {
    const auto elements = static_cast<double>(rows.count * w.size(1));
    LowestElements<T, Score>(w, rows, score, threads)
        .zero(std::llround(settings.sparsity * elements));
  };
  if (settings.scope == PruneScope::matrix) {
    prune_rows({0, w.size(0)});
    return;
  }
  threads.parallel_for(w.size(0), grain(w), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      prune_rows({row, 1});
    }
  });
}

// w [size] of one group; the element at i is chosen if fewer than `zeros` come before it.
template <class T>
void prune_group(T* w, const uint32_t* keys, int64_t size, int64_t zeros) {
  for (int64_t i = 0; i < size; ++i) {
    int64_t rank = 0;
    for (int64_t j = 0; j < size; ++j) {
      rank += keys[j] < keys[i] || (keys[j] == keys[i] && j < i) ? 1 : 0;
    }
    w[i] = rank < zeros ? T{} : w[i];
  }
}

template <class T, class Score>
void prune_n_m(const Tensor& w, PruneMethod method, const Score& score, ThreadPool& threads) {
  threads.parallel_for(w.size(0), grain(w), [&](int64_t begin, int64_t end) {
    std::vector<uint32_t> keys(static_cast<size_t>(method.group));
    for (int64_t row = begin; row < end; ++row) {
      T* const values = w.row<T>(row);
      for (int64_t first = 0; first < w.size(1); first += method.group) {
        const int64_t size = std::min<int64_t>(method.group, w.size(1) - first);
        for (int64_t i = 0; i < size; ++i) {
          keys[static_cast<size_t>(i)] = score.key(values[first + i], row, first + i);
        }
        prune_group(values + first, keys.data(), size, size - method.kept);
      }
    }
  });
}

template <class T>
void prune_blocks(const Tensor& w, const PruneSettings& settings, ThreadPool& threads) {
  check_scores<T>(w, MagnitudeScore<T>{}, threads);
  const Kind kind = settings.method.kind;
  const OwnedTensor scores = block_scores(w, settings.block, kind, threads);
  if (kind == Kind::random) {
    prune_to_sparsity<float>(scores.view, settings,
                             RandomScore<float>{settings.seed, scores.view.size(1)}, threads);
  } else {
    prune_to_sparsity<float>(scores.view, settings, MagnitudeScore<float>{}, threads);
  }
  zero_blocks(w, settings.block, scores.view, threads);
}

template <class T, class Score>
void prune_by(const Tensor& w, const PruneSettings& settings, const Score& score,
              ThreadPool& threads) {
  check_scores<T>(w, score, threads);
  if (settings.method.kind == Kind::n_m) {
    prune_n_m<T>(w, settings.method, score, threads);
  } else {
    prune_to_sparsity<T>(w, settings, score, threads);
  }
}

}  // namespace

void prune(Tensor w, const PruneSettings& settings, ThreadPool& threads) {
  check_settings(w, settings);
  const float* const norms = checked_norms(w, settings);
  if (settings.method.kind == Kind::none) {
    return;
  }
  visit_float(w.dtype(), [&]<class T>(T) {
    if (settings.block != BlockShape()) {
      prune_blocks<T>(w, settings, threads);
    } else if (settings.method.kind == Kind::random) {
      prune_by<T>(w, settings, RandomScore<T>{settings.seed, w.size(1)}, threads);
    } else if (norms != nullptr) {
      prune_by<T>(w, settings, WandaScore<T>{norms}, threads);
    } else {
      prune_by<T>(w, settings, MagnitudeScore<T>{}, threads);
    }
  });
}

}  // namespace sparsellm
