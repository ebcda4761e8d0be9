# Utf8proc::utf8proc, in UTF8PROC_ROOT or where the system has it: Debian's utf8proc has no CMake
# package. For the build, and for find_package(SparseLLM), beside whose config this lies.
find_path(UTF8PROC_INCLUDE_DIR utf8proc.h HINTS ${UTF8PROC_ROOT} PATH_SUFFIXES include)
find_library(UTF8PROC_LIBRARY utf8proc HINTS ${UTF8PROC_ROOT} PATH_SUFFIXES lib)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Utf8proc
  REQUIRED_VARS UTF8PROC_LIBRARY UTF8PROC_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "install libutf8proc-dev or set UTF8PROC_ROOT")
if(Utf8proc_FOUND AND NOT TARGET Utf8proc::utf8proc)
  add_library(Utf8proc::utf8proc UNKNOWN IMPORTED GLOBAL)
  set_target_properties(Utf8proc::utf8proc PROPERTIES
    IMPORTED_LOCATION "${UTF8PROC_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${UTF8PROC_INCLUDE_DIR}")
endif()
