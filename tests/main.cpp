#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#ifdef __SANITIZE_THREAD__
// OpenCV starts GDAL when it first looks for a codec, and GDAL takes its own locks in two orders,
// once, on one thread. That is no fault of what is tested here.
extern "C" const char* __tsan_default_suppressions();  // the sanitizer asks for it by this name
extern "C" const char* __tsan_default_suppressions() { return "deadlock:libgdal\n"; }
#endif
