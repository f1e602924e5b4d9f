// agree.h — texts between the ranks: what one decides, what each has to say. All collective.
#pragma once

#include <string>
#include <vector>

#include "net/communicator.h"

namespace convoy {

// One text of rank 0 to all ranks.
std::string share_from_rank0(Communicator& communicator, const std::string& text);
// Every rank's text, by rank.
std::vector<std::string> share_from_all(Communicator& communicator, const std::string& text);

}  // namespace convoy
