#include "src/base/input_size.h"

#include "src/base/text.h"

namespace convoy {

std::optional<InputSize> parse_input_size(std::string_view text) {
    const std::vector<std::string> words = split(text, 'x');
    int numbers[3] = {0, 0, 0};
    if (words.size() > 3) return {};
    for (size_t i = 0; i < words.size(); ++i) {
        numbers[i] = to_number<int>(words[i]).value_or(0);
        if (numbers[i] < 1) return {};
    }
    if (words.size() == 1) numbers[1] = numbers[0];
    const InputSize size(numbers[0], numbers[1], numbers[2]);
    if (size.H > InputSize::kMost || size.W > InputSize::kMost) return {};
    if (words.size() == 3 && size.C != 1 && size.C != 3) return {};
    return size;
}

InputStatistics InputStatistics::of_channels(int C) const {
    InputStatistics all = *this;
    for (auto* values : {&all.mean, &all.std})
        if (C == 1) values->fill(((*values)[0] + (*values)[1] + (*values)[2]) / 3);
    return all;
}

std::string input_size_text(InputSize size) {
    if (size.C) return cat(size.H, "x", size.W, "x", size.C);
    return size.H == size.W ? cat(size.H) : cat(size.H, "x", size.W);
}

}  // namespace convoy
