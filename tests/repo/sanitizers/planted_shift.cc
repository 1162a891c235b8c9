// Shifts a 32-bit number by 33.
int main(int argc, char**) {
  const volatile int bits = 32 + argc;
  return (argc << bits) == 0 ? 0 : 1;
}
