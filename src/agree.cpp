#include "src/agree.h"

namespace convoy {

std::vector<std::string> share_from_all(Communicator& communicator, const std::string& text) {
    std::vector<std::string> all;
    for (const auto& bytes : communicator.allgather(std::as_bytes(std::span(text))))
        all.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return all;
}

std::string share_from_rank0(Communicator& communicator, const std::string& text) {
    return share_from_all(communicator, communicator.rank() == 0 ? text : "").front();
}

}  // namespace convoy
