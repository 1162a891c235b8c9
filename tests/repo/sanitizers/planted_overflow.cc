// Reads one past the end of a heap block.
#include <vector>

int main(int argc, char**) {
  const std::vector<int> values(3, argc);
  const int* volatile data = values.data();
  return data[3];
}
