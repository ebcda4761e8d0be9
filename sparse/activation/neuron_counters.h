#pragma once

#include "kernels/base/neuron_counters.h"  // where it is, now that activate() counts, too
