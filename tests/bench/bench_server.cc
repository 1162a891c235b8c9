// pleiad-server without a stage, except on a GPU, and with an echo on its listeners: what is left is the wire, beside
// its floor.
#include "tests/bench/bench_parts.h"

int main(int argc, char** argv) { return pleiad::RunServer(argc, argv, pleiad::bench::BenchParts()); }
