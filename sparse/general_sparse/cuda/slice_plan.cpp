#include "sparse/general_sparse/cuda/slice_plan.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <queue>
#include <set>
#include <utility>

namespace sparsellm::general_sparse {
namespace {

constexpr int64_t kScheduledWords = sizeof(ScheduledSlice) / sizeof(uint32_t);
constexpr int64_t kSliceUnits = 2;  // what it takes to begin and to end a slice

struct Slice {
  uint32_t number = 0;
  uint32_t first_unit = 0;
  uint32_t units = 0;

  int64_t work() const { return units + kSliceUnits; }
};

// The longest first.
std::vector<Slice> slices_of_panel(const ChunkGrid& grid, std::span<const uint32_t> starts,
                                   int64_t panel, uint32_t first_number) {
  std::vector<Slice> slices;
  for (int64_t window = 0; window < grid.windows(); ++window) {
    const Chunk chunk = grid.chunk(window, panel);
    for (int64_t i = chunk.first_slice; i < chunk.first_slice + chunk.slices; ++i) {
      const uint32_t begin = starts[static_cast<size_t>(i)];
      slices.push_back({.number = first_number + static_cast<uint32_t>(slices.size()),
                        .first_unit = begin,
                        .units = starts[static_cast<size_t>(i) + 1] - begin});
    }
  }
  std::ranges::stable_sort(slices, std::greater(), &Slice::units);
  return slices;
}

// The slices of all panels, for schedules.
class Panels {
 public:
  Panels(const ChunkGrid& grid, std::span<const uint32_t> starts) {
    uint32_t count = 0;
    for (int64_t panel = 0; panel < grid.panels(); ++panel) {
      slices_.push_back(slices_of_panel(grid, starts, panel, count));
      count += static_cast<uint32_t>(slices_.back().size());
      work_before_.push_back(work_before_.back());
      for (const Slice& slice : slices_.back()) {
        work_before_.back() += slice.work();
      }
    }
  }

  // Each share has a run of the work of all panels, of which slices of a panel take as much as that
  // panel is of it.
  SliceSchedule schedule(int shares) const {
    std::vector<std::vector<Scheduled>> all(static_cast<size_t>(shares));
    const double run = static_cast<double>(work_before_.back()) / shares;
    for (size_t panel = 0; panel < slices_.size(); ++panel) {
      const auto begin = static_cast<double>(work_before_[panel]);
      const auto end = static_cast<double>(work_before_[panel + 1]);
      std::priority_queue<Load, std::vector<Load>, std::greater<>> least;
      for (int number = 0; number < shares; ++number) {
        const double room = std::min(end, run * (number + 1)) - std::max(begin, run * number);
        if (room > 0.0) {
          least.emplace(-room, number);
        }
      }
      if (least.empty()) {  // a panel of nothing
        least.emplace(0.0, shares - 1);
      }
      for (const Slice& slice : slices_[panel]) {
        const auto [load, number] = least.top();
        least.pop();
        all[static_cast<size_t>(number)].push_back({slice, panel});
        least.emplace(load + static_cast<double>(slice.work()), number);
      }
    }
    SliceSchedule schedule;
    uint32_t units = 0;
    for (const std::vector<Scheduled>& share : all) {
      schedule.share_begins.push_back(static_cast<uint32_t>(schedule.slices.size()));
      add_share(share, units, schedule.slices);
    }
    schedule.share_begins.push_back(static_cast<uint32_t>(schedule.slices.size()));
    schedule.slices.push_back({.units_before = units});
    return schedule;
  }

 private:
  using Load = std::pair<double, int>;  // work, less what there is room for, and number of a share
  struct Scheduled {
    Slice slice;
    size_t panel = 0;
  };

  static void add_share(const std::vector<Scheduled>& share, uint32_t& units,
                        std::vector<ScheduledSlice>& scheduled) {
    const size_t begin = scheduled.size();
    for (const auto& [slice, panel] : share) {
      scheduled.push_back(
          {.slice = slice.number, .units_before = units, .first_unit = slice.first_unit});
      units += slice.units;
    }
    auto end = static_cast<uint32_t>(scheduled.size());
    for (size_t i = share.size(); i-- > 0;) {
      if (i + 1 < share.size() && share[i + 1].panel != share[i].panel) {
        end = static_cast<uint32_t>(begin + i + 1);
      }
      scheduled[begin + i].panel_end = end;
    }
  }

  std::vector<std::vector<Slice>> slices_;  // of each panel
  std::vector<int64_t> work_before_{0};     // of the panels
};

int64_t schedule_words(int64_t slices, int shares) {
  return (slices + 1) * kScheduledWords +
         ceil_div(shares + 1, kScheduledWords) * kScheduledWords;  // the next one is aligned
}

}  // namespace

SliceSchedule slice_schedule(const ChunkGrid& grid, std::span<const uint32_t> starts, int shares) {
  return Panels(grid, starts).schedule(shares);
}

std::vector<int> scheduled_shares(int multiprocessors, int64_t slices) {
  std::set<int> shares{1};
  const auto add = [&](int blocks, int tiles) {
    const int64_t wanted = int64_t{multiprocessors} * blocks / tiles;
    shares.insert(static_cast<int>(std::clamp<int64_t>(wanted, 1, std::max<int64_t>(slices, 1))));
  };
  for (const int blocks : {1, 2}) {
    for (const int tiles : {1, 2, 3, 4, 5, 6, 7, 8, 12, 16}) {
      add(blocks, tiles);
    }
  }
  add(4, 1);
  add(8, 1);
  return {shares.begin(), shares.end()};
}

std::vector<uint32_t> slice_schedules(const ChunkGrid& grid, std::span<const uint32_t> starts,
                                      std::span<const int> shares) {
  const Panels panels(grid, starts);
  std::vector<uint32_t> words;
  for (size_t i = 0; i < shares.size(); ++i) {
    const SliceSchedule schedule = panels.schedule(shares[i]);
    const SchedulePlace place = schedule_place(shares, grid.slices(), i);
    words.resize(static_cast<size_t>(place.slices + schedule_words(grid.slices(), shares[i])));
    std::memcpy(words.data() + place.slices, schedule.slices.data(),
                std::span(schedule.slices).size_bytes());
    std::ranges::copy(schedule.share_begins, words.begin() + place.share_begins);
  }
  return words;
}

SchedulePlace schedule_place(std::span<const int> share_counts, int64_t slices, size_t number) {
  SchedulePlace place;
  for (const int shares : share_counts.first(number)) {
    place.slices += schedule_words(slices, shares);
  }
  place.share_begins = place.slices + (slices + 1) * kScheduledWords;
  return place;
}

std::vector<uint16_t> border_positions(const Parts& parts, ThreadPool& threads) {
  const ChunkGrid& grid = parts.grid;
  const std::span<const uint8_t> differences = parts.positions.values<uint8_t>();
  const int64_t lanes = parts.layout.interleave;
  const int64_t vector = parts.layout.vector;
  constexpr int borders = kMostParts - 1;
  std::vector<uint16_t> positions(static_cast<size_t>(grid.slices() * borders * lanes));
  threads.parallel_for(grid.slices(), 64, [&](int64_t first, int64_t last) {
    std::vector<uint32_t> at(static_cast<size_t>(lanes));
    for (int64_t slice = first; slice < last; ++slice) {
      const uint32_t begin = parts.starts[static_cast<size_t>(slice)];
      const uint32_t units = parts.starts[static_cast<size_t>(slice) + 1] - begin;
      std::fill(at.begin(), at.end(), 0);
      uint32_t unit = 0;
      for (int border = 0; border < borders; ++border) {
        for (; unit < part_border(units, static_cast<uint32_t>(border) + 1); ++unit) {
          const uint8_t* next = differences.data() + (int64_t{begin} + unit) * lanes * vector;
          for (uint32_t& position : at) {
            for (int64_t i = 0; i < vector; ++i) {
              position += static_cast<uint32_t>(static_cast<int8_t>(*next++));
            }
          }
        }
        std::copy(at.begin(), at.end(), positions.begin() + (slice * borders + border) * lanes);
      }
    }
  });
  return positions;
}

}  // namespace sparsellm::general_sparse
