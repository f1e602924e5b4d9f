// pickle.h — what a pickle of Python holds, without running it.
//
// A pickle is a program for a machine with a stack and a memo; its GLOBAL names a function, its
// REDUCE calls it. Here a call is a value like others, and a GLOBAL that the caller does not know
// is an error: nothing is ever run.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace convoy {

struct PickleValue {
    enum Kind { kOther, kNumber, kText, kSequence, kDict, kGlobal, kCall, kPersistent };
    Kind kind = kOther;
    int64_t number = 0;
    std::string text = {};  // also "module.name" of a global, or of the one that is called
    // Places in Pickle::values: members; keys and values of a dict in turn; arguments of a call.
    std::vector<uint32_t> items = {};
};

struct Pickle {
    std::vector<PickleValue> values;
    uint32_t root;

    const PickleValue& at(uint32_t place) const { return values[place]; }
};

// globals: those that are known ("collections.OrderedDict", whose calls become dicts). Opcodes are
// those of protocols 2 to 5 that dicts, sequences, numbers, text and tensors need. Values may be
// shared, or contain themselves; their number is bounded. Throws Error.
Pickle read_pickle(std::string_view bytes, std::span<const std::string_view> globals);

}  // namespace convoy
