# Writes OUTPUT, a header with the version and the commit of SOURCE_DIR; only when it changes, so
# that nothing is compiled again for nothing.
execute_process(COMMAND git -C ${SOURCE_DIR} describe --always --dirty --abbrev=12 --exclude=*
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT commit)
  set(commit "unknown")
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT [[#pragma once

namespace sparsellm {

inline constexpr char kVersion[] = "@VERSION@";
inline constexpr char kCommit[] = "@commit@";

}  // namespace sparsellm
]] @ONLY)
