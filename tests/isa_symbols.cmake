# Fails if an object file of kernels for an instruction set (OBJECTS, with NM to read them) defines a
# symbol that the linker may take for the whole program: a CPU without the set would end there.
# (Those that do not come from C++, of coverage, are data.)
execute_process(COMMAND ${NM} --defined-only ${OBJECTS} OUTPUT_VARIABLE symbols
  COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[0-9a-f]+ [WVuwv] (_Z|DW)[^\n]+" shared "${symbols}")
if(shared)
  message(FATAL_ERROR "shared symbols: ${shared}")
endif()
if(NOT symbols MATCHES " [DR] ")
  message(FATAL_ERROR "no tables of kernels in ${OBJECTS}")
endif()
