# What cmake --install copies and cpack packs (cpack.cmake): the programs (component "programs"), and for
# find_package(SparseLLM) the libraries with the headers of what they promise ("development").

set(libraries headers cpu base kernels sparse tokenizer models engine)
foreach(library ${libraries})
  add_library(SparseLLM::${library} ALIAS sparsellm_${library})
  set_target_properties(sparsellm_${library} PROPERTIES EXPORT_NAME ${library})
endforeach()
if(NOT SPARSELLM_INSTALL)
  return()
endif()

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(doc_dir ${CMAKE_INSTALL_DATAROOTDIR}/doc)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/SparseLLM)

# What the programs of docs/example include, and all that it pulls in; consumer_test says what is
# missing. They keep their folders, below one of the project's own that is the folder of includes: so
# their #include lines are right as they stand, and a kernels/rope.h is nowhere in another project's
# way.
set(public_headers
  engine/engine.h
  engine/engine_options.h
  engine/log_probability.h
  engine/request.h
  engine/sampler.h
  engine/stats.h
  kernels/activation.h
  kernels/base/buffer.h
  kernels/base/cpu_isa.h
  kernels/base/cuda_context.h
  kernels/base/cuda_queue.h
  kernels/base/device.h
  kernels/base/dtype.h
  kernels/base/error.h
  kernels/base/exec.h
  kernels/base/file_descriptor.h
  kernels/base/kernel_cache.h
  kernels/base/kernel_compiler.h
  kernels/base/open_directory.h
  kernels/base/parallel.h
  kernels/base/run_time_compiler.h
  kernels/base/tensor.h
  kernels/base/tune_cache.h
  kernels/base/workspace.h
  kernels/rope.h
  models/activation_sparsity.h
  models/config.h
  models/format_sum.h
  models/neuron_counts.h
  models/weights/load_progress.h
  sparse/activation/votes.h
  sparse/general_sparse/general_matrix.h
  sparse/matrices/compressed_rows.h
  sparse/matrices/matrix_market.h
  tokenizer/tokenizer.h)
foreach(header ${public_headers})
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${header} DESTINATION include/sparsellm/${folder} COMPONENT development)
endforeach()

list(TRANSFORM libraries PREPEND sparsellm_)
install(TARGETS ${libraries} EXPORT SparseLLM
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
install(EXPORT SparseLLM NAMESPACE SparseLLM:: FILE SparseLLMTargets.cmake
  DESTINATION ${package_dir} COMPONENT development)
configure_package_config_file(tools/package/SparseLLMConfig.cmake.in
  ${PROJECT_BINARY_DIR}/SparseLLMConfig.cmake INSTALL_DESTINATION ${package_dir})
# Of 0.x another x may be another interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/SparseLLMConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/SparseLLMConfig.cmake
  ${PROJECT_BINARY_DIR}/SparseLLMConfigVersion.cmake
  tokenizer/FindPCRE2.cmake tokenizer/FindSentencePiece.cmake tokenizer/FindUtf8proc.cmake
  DESTINATION ${package_dir} COMPONENT development)
install(FILES docs/example/CMakeLists.txt docs/example/multiply.cpp docs/example/stream.cpp
  DESTINATION ${doc_dir}/libsparsellm-dev/example COMPONENT development)
install(FILES LICENSE DESTINATION ${doc_dir}/libsparsellm-dev RENAME copyright
  COMPONENT development)

# A toolkit in a folder of its own is found there; the system's libraries need no path.
set(programs sparsellm-run sparsellm-convert sparsellm-eval sparsellm-bench)
if(SPARSELLM_HAS_SERVER)
  list(APPEND programs sparsellm-serve)
endif()
set_target_properties(${programs} PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
install(TARGETS ${programs}
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)
install(DIRECTORY configs DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/sparsellm COMPONENT programs)
install(FILES LICENSE DESTINATION ${doc_dir}/sparsellm RENAME copyright COMPONENT programs)
