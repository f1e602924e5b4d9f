// fit_head.h — --freeze-epochs: the last layer is trained alone before all layers are, because the
// gradients of random weights would damage the others.
//
//   images, augmented once ──► all layers but the last, once ──► outputs, kept in memory
//   E passes over the outputs: last layer ──► loss ──► its gradient ──► update
#pragma once

#include "src/checkpoint/safetensors.h"
#include "src/session/job_setup.h"

namespace convoy {

// The weights with a trained last layer, complete. Blocks while this rank reads up to 5,000 images,
// fewer if the outputs would exceed 256 MB. Trains E passes, but at least 100 steps, with the
// optimizer and loss of the run. The rate falls to 0 from that of the run, of sgd from ten times
// that rate, as random weights have far to go. A signal ends it early.
SafeTensors fit_head(const SafeTensors& weights, JobSetup& setup);

}  // namespace convoy
