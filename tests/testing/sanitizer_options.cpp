// The sanitizers' defaults for a test program that this file is compiled into: memory that cannot
// be had is a null pointer, as without them, and not the end of the program.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
extern "C" const char* __tsan_default_options() { return "allocator_may_return_null=1"; }
