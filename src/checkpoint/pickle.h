// pickle.h — reads the values in a Python pickle without running it.
//
// A pickle is a program for a machine with a stack and a memo. Its GLOBAL names a function or a
// class, and its REDUCE calls it. Here a call becomes a value, and nothing is ever run. An object
// of an unknown class is opaque: values that are added to it are dropped.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace convoy {

struct PickleValue {
    enum Kind { kOther, kNumber, kText, kSequence, kDict, kGlobal, kCall, kPersistent };
    Kind kind = kOther;
    int64_t number = 0;
    // Also "module.name" of a global, of the function that is called, and of a persistent id's
    // type.
    std::string text = {};
    // Indexes into Pickle::values: members; keys and values of a dict in turn; arguments of a call.
    std::vector<uint32_t> items = {};
};

struct Pickle {
    std::vector<PickleValue> values;
    uint32_t root;

    const PickleValue& at(uint32_t place) const { return values[place]; }
};

// Reads the pickle at the front of `bytes` and removes it from them. Knows the opcodes that
// protocols 2 to 5 write. Calls of collections.OrderedDict become dicts. Values may be shared, or
// contain themselves; their number is bounded. Throws Error.
Pickle read_pickle(std::string_view& bytes);

}  // namespace convoy
