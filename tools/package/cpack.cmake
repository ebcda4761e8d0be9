# cpack -G DEB: sparsellm, the programs, and libsparsellm-dev.

set(CPACK_PACKAGE_NAME sparsellm)
set(CPACK_PACKAGE_VENDOR "SparseLLM")
set(CPACK_PACKAGE_CONTACT "the SparseLLM authors")
set(CPACK_GENERATOR DEB)
set(CPACK_COMPONENTS_ALL programs development)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PROGRAMS_PACKAGE_NAME sparsellm)
set(CPACK_DEBIAN_PROGRAMS_PACKAGE_SECTION utils)
set(CPACK_DEBIAN_PROGRAMS_DESCRIPTION "${PROJECT_DESCRIPTION}: programs")
set(CPACK_DEBIAN_PROGRAMS_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libsparsellm-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_DESCRIPTION "${PROJECT_DESCRIPTION}: static libraries and headers")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "libspdlog-dev, libsentencepiece-dev")
if(SPARSELLM_PCRE2)
  string(APPEND CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS ", libpcre2-dev")
endif()
if(SPARSELLM_UTF8PROC)
  string(APPEND CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS ", libutf8proc-dev")
endif()
if(SPARSELLM_HAS_CUDA)
  set(cuda_version ${CUDAToolkit_VERSION_MAJOR}.${CUDAToolkit_VERSION_MINOR})
  string(APPEND CPACK_DEBIAN_PACKAGE_RELEASE "+cuda${cuda_version}")
  # Where the toolkit belongs to no package, shlibdeps names none. Then these are what to install,
  # but no condition: the libraries may be there without them.
  string(REPLACE "." "-" suffix ${cuda_version})
  set(CPACK_DEBIAN_PROGRAMS_PACKAGE_RECOMMENDS
    "cuda-cudart-${suffix}, libcublas-${suffix}, libcusparse-${suffix}")
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CUDAToolkit_LIBRARY_DIR})
endif()

include(CPack)
