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
// More than a block multiplies in the time in which it copies the x of another panel.
constexpr int64_t kPanelUnits = 200;

struct Slice {
  ScheduledSlice scheduled;  // units_before and panel_end are 0 yet
  uint32_t units = 0;

  int64_t work() const { return units + kSliceUnits; }
};

// The longest first.
std::vector<Slice> slices_of_panel(const Layout& layout, const ChunkGrid& grid,
                                   std::span<const uint32_t> starts, int64_t panel) {
  std::vector<Slice> slices;
  for (int64_t window = 0; window < grid.windows(); ++window) {
    const Chunk chunk = grid.chunk(window, panel);
    for (int64_t i = 0; i < chunk.slices; ++i) {
      const int64_t stored = chunk.first_slice + i;
      const int64_t place = i * layout.interleave;  // in the chunk
      const uint32_t begin = starts[static_cast<size_t>(stored)];
      const auto groups = std::min<int64_t>(layout.interleave, chunk.groups - place);
      slices.push_back(
          {.scheduled = {.first_unit = begin,
                         .panel = static_cast<uint32_t>(panel),
                         .stored = static_cast<uint32_t>(stored),
                         .first_place = static_cast<uint32_t>(chunk.first_place + place),
                         .first_group =
                             static_cast<uint32_t>(chunk.first_group + (layout.sorted ? 0 : place)),
                         .groups = static_cast<uint32_t>(groups)},
           .units = starts[static_cast<size_t>(stored) + 1] - begin});
    }
  }
  std::ranges::stable_sort(slices, std::greater(), &Slice::units);
  return slices;
}

// The slices of all panels, for schedules.
class Panels {
 public:
  Panels(const Layout& layout, const ChunkGrid& grid, std::span<const uint32_t> starts) {
    for (int64_t panel = 0; panel < grid.panels(); ++panel) {
      slices_.push_back(slices_of_panel(layout, grid, starts, panel));
      work_before_.push_back(work_before_.back());
      for (const Slice& slice : slices_.back()) {
        work_before_.back() += slice.work();
      }
    }
  }

  SliceSchedule schedule(int shares) const {
    std::vector<std::vector<const Slice*>> all(static_cast<size_t>(shares));
    const std::vector<std::vector<Load>> loads = first_loads(shares);
    for (size_t panel = 0; panel < slices_.size(); ++panel) {
      std::priority_queue<Load, std::vector<Load>, std::greater<>> least(loads[panel].begin(),
                                                                         loads[panel].end());
      if (least.empty()) {  // of a small panel
        least.emplace(0.0, main_share(panel, shares));
      }
      for (const Slice& slice : slices_[panel]) {
        const auto [load, number] = least.top();
        least.pop();
        all[static_cast<size_t>(number)].push_back(&slice);
        least.emplace(load + static_cast<double>(slice.work()), number);
      }
    }
    SliceSchedule schedule;
    uint32_t units = 0;
    for (const std::vector<const Slice*>& share : all) {
      schedule.share_begins.push_back(static_cast<uint32_t>(schedule.slices.size()));
      add_share(share, units, schedule.slices);
    }
    schedule.share_begins.push_back(static_cast<uint32_t>(schedule.slices.size()));
    schedule.slices.push_back({.units_before = units});
    return schedule;
  }

 private:
  using Load = std::pair<double, int>;  // the work that a share has, less its room, and its number

  // For each panel the shares that get slices of it, and how much room they have for it. A share
  // is a run of the work of all panels. It gets slices of the panel in which most of its run is,
  // and of another one if its run has enough of that to be worth a copy of x.
  std::vector<std::vector<Load>> first_loads(int shares) const {
    std::vector<std::vector<Load>> loads(slices_.size());
    const double run = static_cast<double>(work_before_.back()) / shares;
    size_t first = 0;  // panel of the share
    for (int number = 0; number < shares; ++number) {
      const double begin = run * number;
      const double end = begin + run;
      while (first + 1 < slices_.size() && static_cast<double>(work_before_[first + 1]) <= begin) {
        ++first;
      }
      const auto overlap = [&](size_t panel) {
        return std::min(static_cast<double>(work_before_[panel + 1]), end) -
               std::max(static_cast<double>(work_before_[panel]), begin);
      };
      size_t main = first;
      size_t last = first;
      for (; last < slices_.size() && overlap(last) > 0.0; ++last) {
        main = overlap(last) > overlap(main) ? last : main;
      }
      double rest = run;
      for (size_t panel = first; panel < last; ++panel) {
        if (panel != main && overlap(panel) >= static_cast<double>(kPanelUnits)) {
          loads[panel].emplace_back(-overlap(panel), number);
          rest -= overlap(panel);
        }
      }
      if (main < loads.size()) {
        loads[main].emplace_back(-rest, number);
      }
    }
    return loads;
  }

  // The share in the middle of the panel's work.
  int main_share(size_t panel, int shares) const {
    const int64_t middle = (work_before_[panel] + work_before_[panel + 1]) / 2;
    const int64_t all = std::max<int64_t>(work_before_.back(), 1);
    return static_cast<int>(std::min<int64_t>(middle * shares / all, shares - 1));
  }

  static void add_share(const std::vector<const Slice*>& share, uint32_t& units,
                        std::vector<ScheduledSlice>& scheduled) {
    const size_t begin = scheduled.size();
    for (const Slice* const slice : share) {
      scheduled.push_back(slice->scheduled);
      scheduled.back().units_before = units;
      units += slice->units;
    }
    auto end = static_cast<uint32_t>(scheduled.size());
    for (size_t i = share.size(); i-- > 0;) {
      if (i + 1 < share.size() && share[i + 1]->scheduled.panel != share[i]->scheduled.panel) {
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

SliceSchedule slice_schedule(const Layout& layout, const ChunkGrid& grid,
                             std::span<const uint32_t> starts, int shares) {
  return Panels(layout, grid, starts).schedule(shares);
}

std::vector<int> scheduled_shares(int multiprocessors, int64_t slices) {
  std::set<int> shares{1};
  const auto add = [&](int blocks, int tiles) {
    const int64_t wanted = int64_t{multiprocessors} * blocks / tiles;
    shares.insert(static_cast<int>(std::clamp<int64_t>(wanted, 1, std::max<int64_t>(slices, 1))));
  };
  for (const int tiles : {1, 2, 3, 4, 5, 6, 7, 8, 16}) {
    add(1, tiles);
  }
  for (const int blocks : {2, 4, 8}) {
    add(blocks, 1);
  }
  return {shares.begin(), shares.end()};
}

std::vector<uint32_t> slice_schedules(const Layout& layout, const ChunkGrid& grid,
                                      std::span<const uint32_t> starts, std::span<const int> shares,
                                      ThreadPool& threads) {
  const Panels panels(layout, grid, starts);
  std::vector<uint32_t> words(
      static_cast<size_t>(schedule_place(shares, grid.slices(), shares.size()).slices));
  threads.parallel_for(std::ssize(shares), 1, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const SliceSchedule schedule = panels.schedule(shares[i]);
      const SchedulePlace place = schedule_place(shares, grid.slices(), i);
      std::memcpy(words.data() + place.slices, schedule.slices.data(),
                  std::span(schedule.slices).size_bytes());
      std::ranges::copy(schedule.share_begins, words.begin() + place.share_begins);
    }
  });
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
