// A library that says it is the CUDA driver, of a version that is too old for any build, for a
// program that is started with it in the place of the real one. The signatures are those of the
// driver's stable C interface.

#include <dlfcn.h>

extern "C" {

int cuInit(unsigned) { return 0; }

int cuDriverGetVersion(int* version) {
  *version = 10000;
  return 0;
}

int cuGetProcAddress_v2(const char* symbol, void** function, int, unsigned long, int* status) {
  constexpr int kNotFound = 500;
  *function = dlsym(RTLD_DEFAULT, symbol);
  if (status != nullptr) {
    *status = *function != nullptr ? 0 : 1;
  }
  return *function != nullptr ? 0 : kNotFound;
}

int cuGetProcAddress(const char* symbol, void** function, int version, unsigned long flags) {
  return cuGetProcAddress_v2(symbol, function, version, flags, nullptr);
}

int cuGetExportTable(const void**, const void*) {
  constexpr int kUnknown = 999;
  return kUnknown;
}
}
