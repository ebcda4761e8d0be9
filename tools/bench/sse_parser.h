#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace sparsellm {

// Reads a stream of server-sent events (text/event-stream, as the HTML standard defines it),
// wherever it is cut into parts. Of an event the data alone is kept: comments, and fields such as
// event and id, are passed over. An event that is not complete at the end of the stream is none.
class SseParser {
 public:
  // The data of an event, its lines joined by newlines; valid during the call.
  using OnData = std::function<void(std::string_view data)>;

  // Of the data of an event and of a line at most.
  static constexpr size_t kMaxBytes = size_t{16} << 20;

  // The next part of the stream. Throws Error for an event that is too large, after which nothing
  // more may be added, and what `on_data` throws.
  void add(std::string_view bytes, const OnData& on_data);

 private:
  void take_line(std::string_view line, const OnData& on_data);

  std::string line_;           // that has no end yet
  std::string data_;           // of the event
  bool has_data_ = false;      // also of empty data
  bool begun_ = false;         // the first line has been read
  bool after_return_ = false;  // a newline that comes next is the end of the same line
};

}  // namespace sparsellm
