#include "server/run_server.h"

int main(int argc, char** argv) { return pleiad::RunServer(argc, argv); }
