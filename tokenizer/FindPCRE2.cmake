# PCRE2::8BIT, in PCRE2_ROOT or where the system has it: the CMake package of PCRE2 is not in
# Debian's. For the build, and for find_package(SparseLLM), beside whose config this lies.
find_path(PCRE2_INCLUDE_DIR pcre2.h HINTS ${PCRE2_ROOT} PATH_SUFFIXES include)
find_library(PCRE2_8_LIBRARY pcre2-8 HINTS ${PCRE2_ROOT} PATH_SUFFIXES lib)
set(PCRE2_VERSION)
if(PCRE2_INCLUDE_DIR)
  file(STRINGS ${PCRE2_INCLUDE_DIR}/pcre2.h version REGEX "^#define PCRE2_M(AJOR|INOR) +[0-9]+")
  string(REGEX REPLACE "[^0-9;]*PCRE2_M[A-Z]+ +([0-9]+)[^;]*" "\\1" version "${version}")
  list(JOIN version "." PCRE2_VERSION)
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(PCRE2
  REQUIRED_VARS PCRE2_8_LIBRARY PCRE2_INCLUDE_DIR
  VERSION_VAR PCRE2_VERSION
  REASON_FAILURE_MESSAGE "install libpcre2-dev or set PCRE2_ROOT")
if(PCRE2_FOUND AND NOT TARGET PCRE2::8BIT)
  add_library(PCRE2::8BIT UNKNOWN IMPORTED GLOBAL)
  set_target_properties(PCRE2::8BIT PROPERTIES
    IMPORTED_LOCATION "${PCRE2_8_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${PCRE2_INCLUDE_DIR}")
endif()
