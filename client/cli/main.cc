#include "client/cli/commands.h"

int main(int argc, char** argv) { return pleiad::cli::Main(argc, argv); }
