# SentencePiece::sentencepiece, in SENTENCEPIECE_ROOT or where the system has it: SentencePiece has
# no CMake package. For the build, and for find_package(SparseLLM), beside whose config this lies.
find_path(SENTENCEPIECE_INCLUDE_DIR sentencepiece_processor.h
          HINTS ${SENTENCEPIECE_ROOT} PATH_SUFFIXES include)
find_library(SENTENCEPIECE_LIBRARY sentencepiece HINTS ${SENTENCEPIECE_ROOT} PATH_SUFFIXES lib)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(SentencePiece
  REQUIRED_VARS SENTENCEPIECE_LIBRARY SENTENCEPIECE_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "install libsentencepiece-dev or set SENTENCEPIECE_ROOT")
if(SentencePiece_FOUND AND NOT TARGET SentencePiece::sentencepiece)
  add_library(SentencePiece::sentencepiece UNKNOWN IMPORTED GLOBAL)
  set_target_properties(SentencePiece::sentencepiece PROPERTIES
    IMPORTED_LOCATION "${SENTENCEPIECE_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${SENTENCEPIECE_INCLUDE_DIR}")
endif()
