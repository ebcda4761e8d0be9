#include "engine/rank_message.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/base/error.h"
#include "kernels/base/token_buckets.h"
#include "kernels/paged_kv.h"

namespace sparsellm {
namespace {

static_assert(std::endian::native == std::endian::little, "messages are copied as they are");
static_assert(sizeof(SampleRow) == 40 && std::is_trivially_copyable_v<SampleRow> &&
                  sizeof(AdjustedRow) == 32 && std::is_trivially_copyable_v<AdjustedRow> &&
                  sizeof(LogitAdjustment) == 12 && std::is_trivially_copyable_v<LogitAdjustment>,
              "they have no gaps");

using Kind = RankMessage::Kind;

class RankMessageWriter {
 public:
  explicit RankMessageWriter(std::vector<std::byte>& bytes) : bytes_(bytes) { bytes_.clear(); }

  template <class T>
  void number(T value) {
    list(std::span<const T>(&value, 1));
  }
  template <class T>
  void list(std::span<const T> values) {
    const size_t before = bytes_.size();
    bytes_.resize(before + values.size_bytes());
    if (!values.empty()) {
      std::memcpy(bytes_.data() + before, values.data(), values.size_bytes());
    }
  }
  void part(const RankStep::Part& part) {
    const StepTables& tables = part.tables;
    for (const int64_t size :
         {tables.rows(), tables.requests(), tables.page_stride, std::ssize(tables.logit_rows),
          std::ssize(part.samples), tables.generated, std::ssize(part.adjusted_rows),
          std::ssize(part.adjustments)}) {
      number(static_cast<uint32_t>(size));
    }
    for (const std::vector<int32_t>* values :
         {&tables.token_ids, &tables.positions, &tables.query_start, &tables.kv_length,
          &tables.page_table, &tables.logit_rows}) {
      list(std::span(*values));
    }
    list(std::span(part.samples));
    list(std::span(part.adjusted_rows));
    list(std::span(part.adjustments));
  }

 private:
  std::vector<std::byte>& bytes_;
};

class RankMessageReader {
 public:
  explicit RankMessageReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <class T>
  T number() {
    T value{};
    std::memcpy(&value, take(1, sizeof(T)).data(), sizeof(T));
    return value;
  }
  template <class T>
  void list(int64_t count, std::vector<T>& values) {
    const auto bytes = take(count, sizeof(T));  // before there is memory for it
    values.resize(static_cast<size_t>(count));
    if (count > 0) {
      std::memcpy(values.data(), bytes.data(), bytes.size());
    }
  }
  void part(RankStep::Part& part) {
    part.clear();
    StepTables& tables = part.tables;
    const int64_t rows = number<uint32_t>();
    const int64_t requests = number<uint32_t>();
    tables.page_stride = number<uint32_t>();
    const int64_t logit_rows = number<uint32_t>();
    const int64_t samples = number<uint32_t>();
    tables.generated = number<uint32_t>();
    const int64_t adjusted_rows = number<uint32_t>();
    const int64_t adjustments = number<uint32_t>();
    list(rows, tables.token_ids);
    list(rows, tables.positions);
    list(requests + 1, tables.query_start);
    list(requests, tables.kv_length);
    list(checked_mul(requests, tables.page_stride, "a page table"), tables.page_table);
    list(logit_rows, tables.logit_rows);
    list(samples, part.samples);
    list(adjusted_rows, part.adjusted_rows);
    list(adjustments, part.adjustments);
    tables.has_unknown_ids =
        std::ranges::any_of(tables.token_ids, [](int32_t id) { return id < 0; });
  }
  void end() const {
    require(bytes_.empty(), "a message of rank 0 has {} bytes too many", bytes_.size());
  }

 private:
  std::span<const std::byte> take(int64_t count, size_t size) {
    const auto left = static_cast<int64_t>(bytes_.size() / size);
    require(count <= left, "a message of rank 0 ends {} elements of {} bytes too early",
            count - left, size);
    const auto taken = bytes_.first(static_cast<size_t>(count) * size);
    bytes_ = bytes_.subspan(taken.size());
    return taken;
  }

  std::span<const std::byte> bytes_;
};

void check_range(const char* what, int64_t value, int64_t least, int64_t most) {
  require(value >= least && value <= most, "a step has {} {}, which is not in [{}, {}]", what,
          value, least, most);
}

void check_token_ids(const StepTables& tables, const RankLimits& limits) {
  const int64_t unknown = limits.samples ? limits.max_requests : 0;
  for (const int32_t id : tables.token_ids) {
    check_range("the token id", id, -unknown, limits.vocabulary - 1);
  }
}

// Request `r`, whose rows come in succession and whose pages are there. Padding is a request with a
// row and without a length.
void check_request(const StepTables& tables, int64_t r, const RankLimits& limits) {
  const auto at = static_cast<size_t>(r);
  const int64_t begin = tables.query_start[at];
  const int64_t end = tables.query_start[at + 1];
  const int64_t length = tables.kv_length[at];
  check_range("the end of a request", end, begin + 1, tables.rows());
  const bool padding = length == 0 && end == begin + 1;
  if (!padding) {
    check_range("the length", length, end - begin, tables.page_stride * kPageSize);
  }
  for (int64_t row = begin; row < end; ++row) {
    const int64_t position = length - (end - row);
    check_range("the position", tables.positions[static_cast<size_t>(row)], position, position);
  }
  for (int64_t i = 0; i < tables.page_stride; ++i) {
    const bool used = i < pages_for(length);
    check_range("the page", tables.page_table[static_cast<size_t>(r * tables.page_stride + i)],
                used ? 0 : -1, limits.kv_pages - 1);
  }
}

void check_tables(const StepTables& tables, const RankLimits& limits) {
  check_range("a number of pages", tables.page_stride, 0, limits.pages_per_request);
  check_range("a number of generated rows", tables.generated, 0, tables.rows());
  check_token_ids(tables, limits);
  check_range("the first row", tables.query_start.front(), 0, 0);
  for (int64_t r = 0; r < tables.requests(); ++r) {
    check_request(tables, r, limits);
  }
  check_range("the last row", tables.query_start.back(), tables.rows(), tables.rows());
  int64_t before = -1;
  for (const int32_t row : tables.logit_rows) {
    check_range("the row of logits", row, before + 1, tables.rows() - 1);
    before = row;
  }
}

// `taken`: the places of tokens that have a row.
void check_sample(const SampleRow& row, std::vector<bool>& taken) {
  check_range("the place of a token", row.slot, -1, std::ssize(taken) - 1);
  if (row.slot >= 0) {
    require(!taken[static_cast<size_t>(row.slot)], "a step chooses its token {} twice", row.slot);
    taken[static_cast<size_t>(row.slot)] = true;
  }
  require(std::isfinite(row.temperature) && row.temperature >= 0.0f && row.top_p > 0.0f &&
              row.top_p <= 1.0f && row.min_p >= 0.0f && row.min_p <= 1.0f,
          "a step samples with temperature {}, top_p {}, min_p {}", row.temperature, row.top_p,
          row.min_p);
  check_range("the top_k", row.top_k, 0, std::numeric_limits<int32_t>::max());
  check_range("the use of banned ids", row.use_banned, 0, 1);
  check_range("the index of a token", row.index, 0, std::numeric_limits<int64_t>::max());
}

// What rank 0 says of rows that are adjusted: each one of a token that is chosen, with adjustments
// of its own.
void check_adjusted_rows(const RankStep::Part& part, const RankLimits& limits) {
  int64_t row = 0;
  int64_t first = 0;
  for (const AdjustedRow& adjusted : part.adjusted_rows) {
    check_range("the adjusted row", adjusted.row, row, std::ssize(part.samples) - 1);
    row = int64_t{adjusted.row} + 1;
    check_range("the place of an adjusted row's token",
                part.samples[static_cast<size_t>(adjusted.row)].slot, 0, limits.max_requests - 1);
    check_range("the place of the latest token", adjusted.last, 0, part.tables.rows() - 1);
    check_range("the first of a row's adjustments", adjusted.first, first, first);
    check_range("a number of a row's adjustments", adjusted.count, 1,
                std::min({kMaxRowAdjustments, limits.vocabulary + 1,
                          std::ssize(part.adjustments) - first}));
    first += adjusted.count;
    check_range("the token of a row's last adjustment",
                part.adjustments[static_cast<size_t>(first) - 1].token, -1, -1);
    check_range("whether the latest token is generated", adjusted.generated, 0, 1);
    const Penalties& penalties = adjusted.penalties;
    require(std::isfinite(penalties.repetition) && penalties.repetition > 0.0f &&
                std::isfinite(penalties.frequency) && std::isfinite(penalties.presence),
            "a step has the penalties {}, {} and {}", penalties.repetition, penalties.frequency,
            penalties.presence);
  }
  check_range("a number of adjustments", std::ssize(part.adjustments), first, first);
  for (const LogitAdjustment& one : part.adjustments) {
    check_range("the adjusted token", one.token, -1, limits.vocabulary - 1);
    check_range("how often a token was seen", one.count, kNotSeen,
                std::numeric_limits<int32_t>::max() - 1);
    require(std::isfinite(one.bias) || one.bias == -std::numeric_limits<float>::infinity(),
            "a step has the bias {}", one.bias);
  }
}

void check_step(const RankStep& step, const RankLimits& limits) {
  const StepTables& decode = step.decode.tables;
  const StepTables& prefill = step.prefill.tables;
  check_range("a number of choices", step.choices, 0, limits.max_requests);
  check_range("a number of decode rows", decode.rows(), 0,
              limits.samples ? token_bucket(limits.max_requests) : 0);
  check_range("a number of rows", prefill.rows(), decode.rows() > 0 ? 0 : 1, limits.step_tokens);
  check_range("a number of requests", prefill.requests(), 0, limits.max_requests);
  const int64_t bucket = decode.rows() > 0 ? token_bucket(decode.rows()) : 0;
  check_range("a padded number of decode rows", decode.rows(), bucket, bucket);
  check_range("a number of decoding requests", decode.requests(), decode.rows(), decode.rows());
  check_range("a number of decode samples", std::ssize(step.decode.samples), decode.rows(),
              decode.rows());
  check_range("a number of samples", std::ssize(step.prefill.samples),
              std::ssize(prefill.logit_rows), std::ssize(prefill.logit_rows));
  check_tables(decode, limits);
  check_tables(prefill, limits);
  check_range("a number of generated decode rows", decode.generated, decode.rows(), decode.rows());
  require(std::ranges::all_of(prefill.kv_length, [](int32_t length) { return length > 0; }),
          "a step has padding among rows that are not decode rows");
  std::vector<bool> taken(limits.samples ? static_cast<size_t>(step.choices) : 0);
  for (const RankStep::Part* part : {&step.decode, &step.prefill}) {
    for (const SampleRow& row : part->samples) {
      check_sample(row, taken);
    }
    check_adjusted_rows(*part, limits);
  }
}

}  // namespace

void write_launch(int64_t step, const RankStep& launch, std::vector<std::byte>& bytes) {
  RankMessageWriter writer(bytes);
  writer.number(static_cast<uint8_t>(Kind::launch));
  writer.number(step);
  writer.number(launch.choices);
  writer.part(launch.decode);
  writer.part(launch.prefill);
}

void write_message(Kind kind, int64_t step, std::vector<std::byte>& bytes) {
  RankMessageWriter writer(bytes);
  writer.number(static_cast<uint8_t>(kind));
  writer.number(step);
}

void parse_message(std::span<const std::byte> bytes, const RankLimits& limits,
                   RankMessage& message) {
  RankMessageReader reader(bytes);
  const int64_t kind = reader.number<uint8_t>();
  require(kind >= static_cast<int64_t>(Kind::launch) && kind <= static_cast<int64_t>(Kind::stop),
          "a message of rank 0 is of kind {}", kind);
  message.kind = static_cast<Kind>(kind);
  message.step = reader.number<int64_t>();
  require(message.step >= 0, "a message of rank 0 is of step {}", message.step);
  if (message.kind == Kind::launch) {
    message.launch.choices = reader.number<int64_t>();
    reader.part(message.launch.decode);
    reader.part(message.launch.prefill);
  }
  reader.end();
  if (message.kind == Kind::launch) {
    check_step(message.launch, limits);
  }
}

}  // namespace sparsellm
