// image_fault.h — whether an image is bad, and why.
#pragma once

#include <new>
#include <string>

#include "data/sources/source.h"
#include "data/sources/storage.h"

namespace convoy {

// Runs `work`, which reads and decodes sample i. Returns why the image is bad, or "". Passes on
// other exceptions, such as Unreachable.
template <class Work>
std::string image_fault(const Source& source, size_t i, const Work& work) try {
    work();
    return "";
} catch (const Unreachable&) {
    throw;
} catch (const Error& error) {
    return error.what();
} catch (const std::bad_alloc&) {
    return source.name(i) + ": takes more memory than there is";
}

}  // namespace convoy
