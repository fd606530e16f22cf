// A library that says a version as NCCL does, for tests.
extern "C" int ncclGetVersion(int* version) {
  *version = 22907;
  return 0;
}
