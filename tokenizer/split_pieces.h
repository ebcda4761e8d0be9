#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace sparsellm {

// What becomes of the matches where a text is split by a pattern.
enum class SplitBehavior : uint8_t {
  removed,
  isolated,              // pieces of their own
  merged_with_previous,  // of a run of matches the first one, if a piece is in front of it
  merged_with_next,      // of a run of matches the last one, if a piece is after it
  contiguous,            // a run of matches is one piece
};

// Joins the matches of a pattern in a text with what is beside them, and passes on the pieces, none
// of which is empty.
class SplitPieces {
 public:
  using Visit = std::function<void(std::string_view piece)>;

  // `visit` has to live as long.
  SplitPieces(SplitBehavior behavior, const Visit& visit) : behavior_(behavior), visit_(visit) {}

  // The parts of one text, in order, matches and what is between them.
  void add(std::string_view part, bool is_match);
  void finish();  // after the last

 private:
  bool joins(bool is_match) const;
  void flush();

  SplitBehavior behavior_;
  const Visit& visit_;
  std::string_view pending_;
  bool after_match_ = false;  // the part before was one
};

}  // namespace sparsellm
