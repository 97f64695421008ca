#include "attention/decode/codes_launch.cuh"

template void gossamer::launch_codes<96>(const DecodeCall&);
